//! Callers that go away: a handler's future that is polled some times and dropped. What it had begun is finished or
//! was never begun, and the next call finds it so.

use super::support::{DEVICE, Home, held, prepare, reference};
use crate::cdi::{Probe, Step};
use crate::driver::{ClaimRef, Driver, PrepareError};
use futures::poll;
use std::pin::pin;
use std::sync::{Arc, Mutex, mpsc};

/// More than a call takes.
const MOST_POLLS: usize = 12;

/// Polls a call so many times, letting other tasks run in between, and drops it. Whether it has ended.
async fn poll_and_drop<T>(call: impl Future<Output = T>, polls: usize) -> bool {
    let mut call = pin!(call);
    for _ in 0..polls {
        if poll!(call.as_mut()).is_ready() {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

fn claims(home: &Home, uids: &[&str]) -> Vec<ClaimRef> {
    uids.iter().map(|uid| home.allocate(uid, &[(DEVICE, "2")])).collect()
}

/// The claims with a spec; just these have files about their devices.
fn spec_count(home: &Home) -> usize {
    let entries = std::fs::read_dir(home.cdi_dir()).into_iter().flatten();
    let names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    assert!(names.iter().all(|name| name.ends_with(".json")), "{names:?}");
    let claims = names.iter().filter(|name| name.starts_with("dra.k8s.io-cpu_claim-")).count();
    assert_eq!(home.with_metadata().len(), claims, "{names:?}");
    claims
}

/// All claims, whether by the dropped call or by this one, have two CPUs each, which nobody else has.
async fn all_are_whole(home: &Home, driver: &Arc<Driver>, uids: &[&str], told: &str) {
    for uid in uids {
        let answer = prepare(driver, reference(uid)).await.unwrap();
        assert_eq!(answer.devices[0].cpus.len(), 2, "{told}");
    }
    let before = held(driver);
    assert_eq!(driver.status().allocated.len(), 2 * uids.len(), "{told}: {before:?}");
    assert_eq!(held(&home.start()), before, "{told}: a start finds what was answered");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_prepare_that_is_dropped_after_any_number_of_polls_ends_whole_or_never_began() {
    for polls in 0..MOST_POLLS {
        let home = Home::new();
        let driver = home.start();
        poll_and_drop(driver.prepare(claims(&home, &["A", "B"])), polls).await;
        all_are_whole(&home, &driver, &["A", "B"], &format!("{polls} polls")).await;
        assert_eq!(spec_count(&home), 2, "{polls} polls");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unprepare_that_is_dropped_after_any_number_of_polls_frees_all_or_nothing_of_a_claim() {
    for polls in 0..MOST_POLLS {
        let home = Home::new();
        let driver = home.start();
        driver.prepare(claims(&home, &["A", "B"])).await;
        poll_and_drop(driver.unprepare(vec![reference("A"), reference("B")]), polls).await;
        for (_, answer) in driver.unprepare(vec![reference("A"), reference("B")]).await {
            answer.unwrap();
        }
        assert_eq!((held(&driver), spec_count(&home)), (vec![], 0), "{polls} polls");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_calls_for_the_same_claims_in_both_directions_leave_one_owner_a_cpu() {
    let home = Home::new();
    let driver = home.start();
    for polls in 0..MOST_POLLS {
        let (one, other) = (claims(&home, &["A", "B", "C"]), claims(&home, &["C", "A"]));
        let going = vec![reference("B"), reference("A")];
        tokio::join!(
            poll_and_drop(driver.prepare(one), polls),
            poll_and_drop(driver.unprepare(going), MOST_POLLS - polls),
            poll_and_drop(driver.prepare(other), polls / 2),
        );
        // Whatever of them goes on in the background was begun before these, and gives no claim anything after them.
        for uid in ["A", "B", "C"] {
            driver.unprepare(vec![reference(uid)]).await.remove(0).1.unwrap();
        }
        settled(&driver).await;
        assert_eq!((held(&driver), spec_count(&home)), (vec![], 0), "{polls} polls");
    }
    all_are_whole(&home, &driver, &["A", "B", "C"], "in the end").await;
}

/// Waits until no operation of a dropped call is left: each holds the driver.
async fn settled(driver: &Arc<Driver>) {
    while Arc::strong_count(driver) > 1 {
        tokio::task::yield_now().await;
    }
}

/// Holds prepare calls up once they have read the claim object.
struct Gate(Mutex<mpsc::Receiver<()>>);

impl Probe for Gate {
    fn reached(&self, step: Step) {
        if step == Step::ClaimRead {
            self.0.lock().unwrap().recv().unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_prepare_that_was_dropped_gives_nothing_to_a_claim_that_was_unprepared_since() {
    let mut home = Home::new();
    let (open, gate) = mpsc::channel::<()>();
    home.probe = Arc::new(Gate(Mutex::new(gate)));
    let driver = home.start();
    let claim = claims(&home, &["A"]);
    assert!(!poll_and_drop(driver.prepare(claim.clone()), 1).await);
    driver.unprepare(claim.clone()).await.remove(0).1.unwrap();
    open.send(()).unwrap();
    settled(&driver).await;
    assert_eq!((held(&driver), spec_count(&home)), (vec![], 0));
    // One that waits for its answer is told, and the next one is served.
    let waiting = driver.prepare(claim.clone());
    let meanwhile = async {
        driver.unprepare(claim.clone()).await.remove(0).1.unwrap();
        open.send(()).unwrap();
    };
    let (mut waiting, ()) = tokio::join!(waiting, meanwhile);
    assert!(matches!(waiting.remove(0).1, Err(PrepareError::Overtaken)));
    open.send(()).unwrap();
    prepare(&driver, reference("A")).await.unwrap();
}
