//! The process dies at each step of a claim operation; the next one starts from the files.

use super::support::{Home, held, holds, prepare, unprepare};
use crate::cdi::{Probe, Step};
use std::sync::Arc;

/// Ends the thread at a step: what the driver has in memory is then thrown away.
struct DieAt(Step);

impl Probe for DieAt {
    fn reached(&self, step: Step) {
        if step == self.0 {
            std::panic::resume_unwind(Box::new("dead"));
        }
    }
}

/// Of the steps of an unprepare, after which the claim is still there.
const UNCOMMITTED: [Step; 3] = [Step::Removing, Step::MetadataUnmounted, Step::MetadataRemoved];
const COMMITTED: [Step; 3] = [Step::Renamed, Step::WriteSynced, Step::Answering];

#[tokio::test]
async fn a_crash_in_prepare_leaves_the_claim_prepared_or_untouched() {
    for &step in Step::PREPARE {
        let mut home = Home::new();
        let before = home.start();
        home.prepare(&before, "other", "3").await.unwrap();
        drop(before);

        home.probe = Arc::new(DieAt(step));
        let dying = home.start();
        assert!(home.prepare(&dying, "A", "2").await.is_err(), "{step:?} was not reached");
        drop(dying);

        home.probe = Arc::new(crate::cdi::NoProbe);
        let after = home.start();
        let mut expected = vec![holds("other", "0-2")];
        if COMMITTED.contains(&step) {
            expected.insert(0, holds("A", "3-4"));
        }
        assert_eq!(held(&after), expected, "{step:?}");
        let names: Vec<_> =
            std::fs::read_dir(home.cdi_dir()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.iter().all(|name| name.to_string_lossy().ends_with(".json")), "{step:?}: {names:?}");
        let committed = COMMITTED.contains(&step);
        let with_metadata = if committed { vec!["A", "other"] } else { vec!["other"] };
        assert_eq!(
            home.with_metadata(),
            with_metadata,
            "{step:?}: nothing is left of a claim that is not there"
        );
        home.prepare(&after, "A", "2").await.unwrap();
        assert_eq!(held(&after), [holds("A", "3-4"), holds("other", "0-2")], "{step:?}");
        assert_eq!(home.with_metadata(), ["A", "other"], "{step:?}");
    }
}

#[tokio::test]
async fn a_crash_in_unprepare_leaves_the_claim_whole_or_gone() {
    for &step in Step::UNPREPARE {
        let mut home = Home::new();
        let before = home.start();
        home.prepare(&before, "A", "2").await.unwrap();
        drop(before);

        home.probe = Arc::new(DieAt(step));
        let dying = home.start();
        let answer = dying.unprepare(vec![super::support::reference("A")]).await.remove(0).1;
        assert!(answer.is_err(), "{step:?} was not reached");
        drop(dying);

        home.probe = Arc::new(crate::cdi::NoProbe);
        let after = home.start();
        let expected = if UNCOMMITTED.contains(&step) { vec![holds("A", "0-1")] } else { vec![] };
        assert_eq!(held(&after), expected, "{step:?}");
        if UNCOMMITTED.contains(&step) {
            prepare(&after, super::support::reference("A")).await.unwrap();
            assert_eq!(home.with_metadata(), ["A"], "{step:?}: what was removed is back");
        }
        unprepare(&after, "A").await;
        assert_eq!((held(&after), home.with_metadata()), (vec![], vec![]), "{step:?}");
    }
}

#[tokio::test]
async fn a_panic_fails_that_claim_and_not_the_next() {
    let home = Home::new();
    let driver = home.start();
    *home.strategy.before.lock().unwrap() = Some(Box::new(|_| std::panic::resume_unwind(Box::new("fault"))));
    let error = home.prepare(&driver, "A", "2").await.unwrap_err().to_string();
    assert!(error.contains("report it"), "{error}");
    *crate::driver::locks::lock(&home.strategy.before) = None;
    home.prepare(&driver, "B", "2").await.unwrap();
    prepare(&driver, super::support::reference("A")).await.unwrap();
    assert_eq!(held(&driver), [holds("A", "2-3"), holds("B", "0-1")]);
}
