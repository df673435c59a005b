use super::support::{DEVICE, Home, cpus, prepare, unprepare};
use crate::cdi::Access;
use crate::config::DeviceMode;
use crate::driver::{Driver, PastDecision, ReplayError};

fn past(driver: &Driver, uid: &str) -> Option<PastDecision> {
    driver.past_decisions().into_iter().find(|past| past.claim.uid == uid)
}

#[tokio::test]
async fn what_was_asked_for_a_claim_and_answered_is_remembered_and_gives_the_same_again() {
    let home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    home.prepare(&driver, "B", "3").await.unwrap();
    let of_b = past(&driver, "B").unwrap();
    let question = of_b.question.unwrap();
    assert_eq!((question.requests[0].count, &question.state.free), (3, &cpus("2-7")));
    assert_eq!(question.strategy.digest, "sha256:00");
    assert_eq!(question.groups[question.requests[0].group].device, DEVICE);
    let decided = of_b.decision.unwrap();
    assert_eq!((&decided.grants[0].cpus, of_b.refusal), (&cpus("2-4"), None));

    // Nothing that has happened since counts, and nothing changes.
    unprepare(&driver, "A").await;
    let before = driver.status();
    assert_eq!(driver.replay("B").unwrap().answer.unwrap(), decided);
    assert_eq!(driver.status(), before);
    assert!(past(&driver, "A").is_some(), "it may still be asked about");
    prepare(&driver, home.allocate("B", &[(DEVICE, "3")])).await.unwrap();
    assert_eq!(past(&driver, "B").unwrap().decision, Some(decided), "answered from its record");

    assert_eq!(driver.replay("never").unwrap_err(), ReplayError::Forgotten);
    *home.strategy.broken.lock().unwrap() = true;
    assert!(matches!(driver.replay("B"), Err(ReplayError::NoStrategy(why)) if why.contains("missing")));
    drop(driver);
    *home.strategy.broken.lock().unwrap() = false;
    let again = home.start();
    assert!(
        again.past_decisions().is_empty() && again.replay("B").is_err(),
        "a new daemon has only the records"
    );
}

#[tokio::test]
async fn a_refusal_is_remembered_with_what_was_asked_and_what_was_free() {
    let (home, disk) = Home::with_disk();
    let driver = home.start();
    home.prepare(&driver, "A", "6").await.unwrap();
    home.prepare(&driver, "B", "4").await.unwrap_err();
    let refused = past(&driver, "B").unwrap();
    let question = refused.question.unwrap();
    assert_eq!((question.requests[0].count, &question.state.free), (4, &cpus("6-7")));
    assert_eq!(refused.decision, None);
    let why = refused.refusal.unwrap();
    assert!(why.contains("not enough") && why.contains("CPUs 0-5 by claim A"), "{why}");
    assert!(driver.replay("B").unwrap().answer.is_err());

    // It did not come to a question.
    *home.api.down.lock().unwrap() = true;
    home.prepare(&driver, "C", "1").await.unwrap_err();
    let refused = past(&driver, "C").unwrap();
    assert!(refused.question.is_none() && refused.refusal.unwrap().contains("cannot be reached"));
    *home.api.down.lock().unwrap() = false;

    // Decided, but not written; then it is there.
    disk.fail_at(&[Access::Write]);
    home.prepare(&driver, "C", "1").await.unwrap_err();
    let refused = past(&driver, "C").unwrap();
    assert!(refused.decision.is_some() && refused.refusal.is_some());
    disk.fail_at(&[]);
    home.prepare(&driver, "C", "1").await.unwrap();
    assert_eq!(past(&driver, "C").unwrap().refusal, None);
}

#[tokio::test]
async fn nobody_is_asked_where_the_scheduler_chooses() {
    let mut home = Home::new();
    home.config.mode = DeviceMode::Individual;
    let driver = home.start();
    prepare(&driver, home.allocate("A", &[("cpudev000", "")])).await.unwrap();
    assert!(past(&driver, "A").is_none());
    prepare(&driver, home.allocate("B", &[("cpudev000", "")])).await.unwrap_err();
    let refused = past(&driver, "B").unwrap();
    assert!(refused.question.is_none() && refused.refusal.unwrap().contains("held by claim A"));
}
