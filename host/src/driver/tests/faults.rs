//! A disk that fails at any access: a claim is refused and nothing leaks, and when the fault has ended the same call
//! works.

use super::containers::wiped;
use super::support::{DEVICE, Home, container, cpus, held, holds, prepare, reference, unprepare};
use crate::cdi::Access;
use crate::driver::Round;

/// Where the writing of a claim's files can fail before its spec has its name.
const BEFORE_THE_NAME: [Access; 5] =
    [Access::WriteMetadata, Access::Write, Access::TempWrite, Access::TempSync, Access::Rename];

const WRITING: [Access; 6] = [
    Access::WriteMetadata,
    Access::Write,
    Access::TempWrite,
    Access::TempSync,
    Access::Rename,
    Access::DirectorySync,
];

/// What there is but device metadata, for which see `with_metadata`.
fn files(home: &Home) -> Vec<String> {
    let entries = std::fs::read_dir(home.cdi_dir()).into_iter().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| !name.starts_with("dra.cpu_metadata_"));
    names.sort();
    names
}

fn specs(uids: &[&str]) -> Vec<String> {
    uids.iter().map(|uid| format!("dra.k8s.io-cpu_claim-{uid}.json")).collect()
}

#[tokio::test]
async fn a_new_claim_that_cannot_be_recorded_is_refused_and_takes_no_cpu() {
    for access in BEFORE_THE_NAME {
        let (home, disk) = Home::with_disk();
        let driver = home.start();
        home.prepare(&driver, "other", "3").await.unwrap();
        let before = driver.status();
        disk.fail_at(&[access]);
        for _ in 0..2 {
            let error = home.prepare(&driver, "A", "2").await.unwrap_err().to_string();
            assert!(error.contains("no CPU was given out; make room"), "{access:?}: {error}");
            assert_eq!(driver.status(), before, "{access:?}");
            assert_eq!(files(&home), specs(&["other"]), "{access:?}");
            assert_eq!(home.with_metadata(), ["other"], "{access:?}");
        }
        assert_eq!(held(&home.start()), [holds("other", "0-2")], "{access:?}");
        disk.fail_at(&[]);
        home.prepare(&driver, "A", "2").await.unwrap();
        assert_eq!(held(&driver), [holds("A", "3-4"), holds("other", "0-2")], "{access:?}");
    }
}

#[tokio::test]
async fn a_claim_whose_name_may_not_last_is_refused_and_nobody_else_gets_its_cpus() {
    let (home, disk) = Home::with_disk();
    let driver = home.start();
    disk.fail_at(&[Access::DirectorySync]);
    let error = home.prepare(&driver, "A", "2").await.unwrap_err().to_string();
    assert!(error.contains("keeps its CPUs"), "{error}");
    assert!(home.prepare(&driver, "B", "2").await.is_err());
    assert_eq!(held(&driver), [holds("A", "0-1"), holds("B", "2-3")]);
    assert_eq!(files(&home), specs(&[]), "nothing is left for the next start");
    disk.fail_at(&[]);
    let answer = prepare(&driver, reference("A")).await.unwrap();
    assert_eq!(answer.devices[0].cpus, cpus("0-1"));
    unprepare(&driver, "B").await;
    assert_eq!((held(&home.start()), home.with_metadata()), (vec![holds("A", "0-1")], vec!["A".to_owned()]));
}

#[tokio::test]
async fn a_recorded_claim_whose_file_cannot_be_restored_keeps_its_cpus() {
    for access in WRITING {
        let (home, disk) = Home::with_disk();
        let driver = home.start();
        let answer = home.prepare(&driver, "A", "2").await.unwrap();
        std::fs::remove_file(home.spec("A")).unwrap();
        std::fs::remove_dir_all(home.metadata_dir()).unwrap();
        disk.fail_at(&[access]);
        for _ in 0..2 {
            let error = prepare(&driver, reference("A")).await.unwrap_err().to_string();
            assert!(error.contains("keeps its CPUs; make room"), "{access:?}: {error}");
            assert_eq!(held(&driver), [holds("A", "0-1")], "{access:?}");
        }
        disk.fail_at(&[]);
        assert_eq!(prepare(&driver, reference("A")).await.unwrap(), answer, "{access:?}");
        assert_eq!((files(&home), held(&home.start())), (specs(&["A"]), vec![holds("A", "0-1")]));
        assert_eq!(home.with_metadata(), ["A"], "{access:?}");
    }
}

#[tokio::test]
async fn a_claim_of_another_driver_that_cannot_be_completed_keeps_its_cpus() {
    for access in WRITING {
        let (home, disk) = Home::with_disk();
        std::fs::create_dir_all(home.cdi_dir()).unwrap();
        let text = r#"{"cdiVersion":"0.8.0","kind":"dra.k8s.io/cpu","devices":[{"name":"claim-A","containerEdits":{"env":["DRA_CPUSET_A=2-4"]}}],"containerEdits":{}}"#;
        std::fs::write(home.spec("A"), text).unwrap();
        let driver = home.start();
        disk.fail_at(&[access]);
        home.prepare(&driver, "A", "3").await.unwrap_err();
        assert_eq!(held(&driver), [holds("A", "2-4")], "{access:?}");
        assert_eq!(held(&home.start()), [holds("A", "2-4")], "{access:?}");
        disk.fail_at(&[]);
        prepare(&driver, reference("A")).await.unwrap();
        assert_eq!((files(&home), held(&home.start())), (specs(&["A"]), vec![holds("A", "2-4")]));
        assert_eq!(home.with_metadata(), ["A"], "{access:?}");
    }
}

#[tokio::test]
async fn a_claim_that_cannot_be_unprepared_keeps_its_cpus() {
    for access in [Access::RemoveMetadata, Access::Remove, Access::DirectorySync] {
        let (home, disk) = Home::with_disk();
        let driver = home.start();
        home.prepare(&driver, "A", "2").await.unwrap();
        disk.fail_at(&[access]);
        for _ in 0..2 {
            let error = driver.unprepare(vec![reference("A")]).await.remove(0).1.unwrap_err().to_string();
            assert!(error.contains("stay booked; make room"), "{access:?}: {error}");
            assert_eq!(held(&driver), [holds("A", "0-1")], "{access:?}");
        }
        disk.fail_at(&[]);
        unprepare(&driver, "A").await;
        assert_eq!((held(&driver), files(&home)), (vec![], specs(&[])), "{access:?}");
        assert_eq!(home.with_metadata(), [""; 0], "{access:?}");
    }
}

#[tokio::test]
async fn a_running_containers_claim_is_held_until_its_record_can_be_written() {
    for access in WRITING {
        let (home, disk) = Home::with_disk();
        let driver = wiped(&home).await;
        driver.synchronize(vec![container("a", "p", &["DRA_CPUSET_A=0-1"], "0-1")]);
        disk.fail_at(&[access]);
        assert_eq!(driver.prove_once().await, Round { settled: 0, open: 1 }, "{access:?}");
        assert!(!driver.status().available.contains(0), "{access:?}");
        disk.fail_at(&[]);
        // By whoever comes first: the kubelet, or the next round.
        prepare(&driver, reference("A")).await.unwrap();
        driver.prove_once().await;
        assert_eq!((held(&driver), files(&home)), (vec![holds("A", "0-1")], specs(&["A"])), "{access:?}");
        assert_eq!(home.with_metadata(), ["A"], "{access:?}");
    }
}

#[tokio::test]
async fn a_record_that_can_be_neither_finished_nor_removed_is_booked() {
    for by_kubelet in [false, true] {
        let (home, disk) = Home::with_disk();
        let driver = wiped(&home).await;
        driver.synchronize(vec![container("a", "p", &["DRA_CPUSET_A=0-1"], "0-1")]);
        // The spec has its name, then the disk fails for good.
        disk.fail_at(&[Access::DirectorySync, Access::Remove]);
        if by_kubelet {
            let error = prepare(&driver, home.allocate("A", &[(DEVICE, "2")])).await.unwrap_err().to_string();
            assert!(error.contains("keeps its CPUs"), "{error}");
        } else {
            driver.prove_once().await;
        }
        assert_eq!(files(&home), specs(&["A"]));
        driver.remove_container("a");
        disk.fail_at(&[]);
        home.prepare(&driver, "B", "2").await.unwrap();
        let expected = [holds("A", "0-1"), holds("B", "2-3")];
        assert_eq!(held(&driver), expected, "{by_kubelet}");
        let next = home.start();
        assert_eq!((held(&next), next.status().conflicted), (expected.to_vec(), vec![]), "{by_kubelet}");
        assert_eq!(home.with_metadata(), ["A", "B"], "{by_kubelet}");
        unprepare(&driver, "A").await;
        assert_eq!(files(&home), specs(&["B"]));
    }
}
