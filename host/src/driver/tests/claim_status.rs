//! The status of claims follows what is prepared, whatever the API server says to it.

use super::super::locks::lock;
use super::super::{ApiError, ClaimStatus, Driver};
use super::support::{DEVICE, Home, cpus, prepare, reference, unprepare};
use crate::clock::Clock;
use futures::future::BoxFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// Time that passes when the test says so, and the pauses that were asked for.
struct Pauses {
    asked: watch::Sender<Vec<Duration>>,
    over: Arc<Notify>,
}

impl Clock for Pauses {
    fn sleep(&self, time: Duration) -> BoxFuture<'static, ()> {
        self.asked.send_modify(|asked| asked.push(time));
        let over = Arc::clone(&self.over);
        Box::pin(async move { over.notified().await })
    }
}

impl Pauses {
    /// Waits for the n-th pause, and returns it.
    async fn wait(&self, n: usize) -> Duration {
        let mut asked = self.asked.subscribe();
        let asked = tokio::time::timeout(Duration::from_secs(30), asked.wait_for(|asked| asked.len() > n));
        asked.await.unwrap().unwrap()[n]
    }
}

/// A driver whose statuses are written, until this is dropped.
struct Writing {
    pauses: Arc<Pauses>,
    task: JoinHandle<()>,
}

impl Writing {
    fn start(driver: &Arc<Driver>) -> Self {
        let pauses = Arc::new(Pauses { asked: watch::Sender::default(), over: Arc::default() });
        let task = tokio::spawn(driver.clone().write_statuses_forever(pauses.clone()));
        Self { pauses, task }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Waits for so many writes, and returns them all.
async fn written(home: &Home, count: usize) -> Vec<ClaimStatus> {
    let mut statuses = home.api.statuses.subscribe();
    let enough = statuses.wait_for(|statuses| statuses.len() >= count);
    let statuses = tokio::time::timeout(Duration::from_secs(30), enough).await.unwrap().unwrap().clone();
    assert_eq!(statuses.len(), count, "{statuses:?}");
    statuses
}

#[tokio::test]
async fn each_prepared_claim_is_written_once_and_the_same_after_a_restart() {
    let home = Home::new();
    let driver = home.start();
    let writing = Writing::start(&driver);
    home.prepare(&driver, "A", "2").await.unwrap();
    let first = written(&home, 1).await.remove(0);
    assert_eq!(first.claim, reference("A"));
    assert_eq!(first.strategy.as_deref(), Some("packed"));
    let devices: Vec<_> =
        first.devices.iter().map(|d| (d.pool.as_str(), d.device.as_str(), &d.cpus)).collect();
    assert_eq!(devices, [("n", DEVICE, &cpus("0-1"))]);
    prepare(&driver, reference("A")).await.unwrap();
    home.prepare(&driver, "B", "1").await.unwrap();
    assert_eq!(written(&home, 2).await[1].claim, reference("B"));
    drop(writing);

    let driver = home.start();
    let _writing = Writing::start(&driver);
    let all = written(&home, 4).await;
    assert_eq!(all[2..], all[..2]);
}

#[tokio::test]
async fn what_fails_is_tried_again_after_growing_pauses_and_new_claims_at_once() {
    let home = Home::new();
    let driver = home.start();
    let writing = Writing::start(&driver);
    *lock(&home.api.refuses_status) = Some(ApiError::Unreachable("503".into()));
    home.prepare(&driver, "A", "2").await.unwrap();
    for (n, seconds) in [1, 2, 4].into_iter().enumerate() {
        let pause = writing.pauses.wait(n).await;
        let quarter = Duration::from_millis(seconds * 250);
        assert!(pause >= 3 * quarter && pause <= 5 * quarter, "{pause:?} instead of {seconds} s");
        written(&home, n + 1).await;
        if n < 2 {
            writing.pauses.over.notify_one();
        }
    }
    *lock(&home.api.refuses_status) = None;
    home.prepare(&driver, "B", "1").await.unwrap();
    assert_eq!(written(&home, 4).await[3].claim, reference("B"), "while A waits");
    writing.pauses.over.notify_one();
    assert_eq!(written(&home, 5).await[4].claim, reference("A"));
    assert_eq!(writing.pauses.asked.borrow().len(), 3, "nothing is left to do");
}

#[tokio::test]
async fn a_claim_that_is_gone_is_forgotten() {
    let home = Home::new();
    let driver = home.start();
    *lock(&home.api.refuses_status) = Some(ApiError::Other("422 it is not allocated".into()));
    for uid in ["deleted", "replaced", "unprepared"] {
        home.prepare(&driver, uid, "1").await.unwrap();
    }
    lock(&home.api.claims).remove("deleted");
    lock(&home.api.claims).get_mut("replaced").unwrap().id.uid = "another".into();
    let writing = Writing::start(&driver);
    written(&home, 3).await;
    writing.pauses.wait(0).await; // for the one that may still want it
    unprepare(&driver, "unprepared").await;
    writing.pauses.over.notify_one();
    *lock(&home.api.refuses_status) = None;
    home.prepare(&driver, "next", "1").await.unwrap();
    assert_eq!(written(&home, 4).await[3].claim, reference("next"));
    assert_eq!(writing.pauses.asked.borrow().len(), 1);
}

#[tokio::test]
async fn nothing_is_written_where_the_configuration_says_so() {
    let mut home = Home::new();
    home.config.claim_status = false;
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    assert!(lock(&driver.statuses).is_empty());
    assert!(lock(&home.start().statuses).is_empty());
}
