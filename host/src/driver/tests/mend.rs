//! Files of claims that are lost while the driver runs.

use super::support::{Home, held, holds, prepare, reference, unprepare};
use crate::cdi::{Access, Probe, Step};
use std::os::unix::fs::MetadataExt as _;
use std::sync::{Arc, Mutex, OnceLock, Weak};

#[tokio::test]
async fn files_that_were_removed_or_damaged_are_written_again_and_those_in_place_are_not_touched() {
    let home = Home::new();
    let driver = home.start();
    for uid in ["removed", "damaged", "without-metadata", "whole"] {
        home.prepare(&driver, uid, "1").await.unwrap();
    }
    let text = std::fs::read_to_string(home.spec("removed")).unwrap();
    let inode = || std::fs::metadata(home.spec("whole")).unwrap().ino();
    let whole = inode();
    std::fs::remove_file(home.spec("removed")).unwrap();
    std::fs::write(home.spec("damaged"), "{").unwrap();
    std::fs::remove_dir_all(home.metadata_dir().join("ns_without-metadata")).unwrap();
    assert_eq!(driver.mend_files().await, 3);
    assert_eq!(std::fs::read_to_string(home.spec("removed")).unwrap(), text);
    assert_eq!(home.with_metadata(), ["damaged", "removed", "whole", "without-metadata"]);
    assert_eq!(inode(), whole);
    assert_eq!(driver.mend_files().await, 0);
    let before = held(&driver);
    drop(driver);
    assert_eq!(held(&home.start()), before, "the next start finds all of them");
}

#[tokio::test]
async fn files_that_cannot_be_written_again_are_tried_again() {
    let (home, disk) = Home::with_disk();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    std::fs::remove_file(home.spec("A")).unwrap();
    disk.fail_at(&[Access::Write]);
    assert_eq!(driver.mend_files().await, 0);
    assert_eq!(held(&driver), [holds("A", "0-1")]);
    disk.fail_at(&[]);
    assert_eq!(driver.mend_files().await, 1);
    assert!(home.spec("A").exists());
}

/// Looks at the files just when an unprepare has removed a claim's spec.
#[derive(Default)]
struct LookingMeanwhile {
    driver: OnceLock<Weak<crate::driver::Driver>>,
    look: Mutex<Option<std::thread::JoinHandle<usize>>>,
}

impl Probe for LookingMeanwhile {
    fn reached(&self, step: Step) {
        let driver = self.driver.get().and_then(Weak::upgrade);
        if let (Step::Unlinked, Some(driver)) = (step, driver) {
            let look = move || {
                let tasks = tokio::runtime::Builder::new_current_thread().build().unwrap();
                tasks.block_on(driver.mend_files())
            };
            *self.look.lock().unwrap() = Some(std::thread::spawn(look));
        }
    }
}

#[tokio::test]
async fn a_claim_that_is_unprepared_meanwhile_stays_without_a_file() {
    let mut home = Home::new();
    let probe = Arc::new(LookingMeanwhile::default());
    home.probe = probe.clone();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    probe.driver.set(Arc::downgrade(&driver)).unwrap();
    unprepare(&driver, "A").await;
    let look = probe.look.lock().unwrap().take().unwrap();
    assert_eq!(look.join().unwrap(), 0);
    assert!(!home.spec("A").exists());
    assert!(prepare(&driver, reference("A")).await.is_ok(), "it can be prepared anew");
}
