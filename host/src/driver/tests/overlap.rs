//! For how long containers run on CPUs of others' claims, in a time that the test tells.

use super::super::locks::lock;
use super::super::{Container, Driver};
use super::support::{Home, container, unprepare, update};
use crate::clock::Clock;
use futures::future::{BoxFuture, pending};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

struct Told {
    begin: (SystemTime, Instant),
    passed: Mutex<Duration>,
}

impl Told {
    fn new() -> Arc<Self> {
        Arc::new(Self { begin: (SystemTime::now(), Instant::now()), passed: Mutex::default() })
    }

    fn pass(&self, seconds: u64) {
        *lock(&self.passed) += Duration::from_secs(seconds);
    }
}

impl Clock for Told {
    fn sleep(&self, _: Duration) -> BoxFuture<'static, ()> {
        Box::pin(pending())
    }

    fn now(&self) -> SystemTime {
        self.begin.0 + *lock(&self.passed)
    }

    fn instant(&self) -> Instant {
        self.begin.1 + *lock(&self.passed)
    }
}

fn seconds(driver: &Driver) -> u64 {
    driver.status().overlap.as_secs()
}

fn home(clock: &Arc<Told>) -> Home {
    let mut home = Home::new();
    home.clock = clock.clone();
    home
}

/// A container without a claim that has run for so long.
fn since(clock: &Told, id: &str, mask: &str, seconds: u64) -> Container {
    let started = Some(clock.now() - Duration::from_secs(seconds));
    Container { started, ..container(id, id, &[], mask) }
}

/// The container that has claim A.
fn owner(clock: &Told, seconds: u64) -> Container {
    let started = Some(clock.now() - Duration::from_secs(seconds));
    Container { started, ..container("a", "a", &["DRA_CPUSET_A=0-1"], "0-1") }
}

#[tokio::test]
async fn a_claim_that_waits_for_its_container_overlaps_with_nobody() {
    let clock = Told::new();
    let home = home(&clock);
    let driver = home.start();
    driver.create_container(&container("b", "b", &[], "")).unwrap();
    driver.start_container(&container("b", "b", &[], "0-7"));
    home.prepare(&driver, "A", "2").await.unwrap();
    clock.pass(1000); // an image is pulled
    assert_eq!(seconds(&driver), 0);
    let created = driver.create_container(&owner(&clock, 0)).unwrap();
    assert_eq!(created.updates, [update("b", "2-7")]);
    clock.pass(1000);
    assert_eq!(seconds(&driver), 0);
    // The same over a restart of the driver.
    let home = self::home(&clock);
    home.prepare(&home.start(), "A", "2").await.unwrap();
    clock.pass(100);
    let driver = home.start();
    driver.synchronize(vec![since(&clock, "b", "0-7", 500)]);
    assert_eq!(seconds(&driver), 0);
}

#[tokio::test]
async fn known_containers_overlap_until_they_are_told() {
    let clock = Told::new();
    let home = home(&clock);
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    driver.create_container(&owner(&clock, 0)).unwrap();
    driver.start_container(&owner(&clock, 0));
    for id in ["b", "c"] {
        driver.create_container(&container(id, id, &[], "")).unwrap();
    }
    clock.pass(100);
    assert_eq!(seconds(&driver), 0);
    for id in ["b", "c"] {
        // Somebody else has changed the mask meanwhile.
        driver.start_container(&container(id, id, &[], "0-7"));
    }
    clock.pass(5);
    assert_eq!(seconds(&driver), 10, "two containers");
    driver.stop_container("c"); // its answer has the mask of b
    clock.pass(50);
    assert_eq!(seconds(&driver), 10);
    driver.pushed(&[update("b", "2-7")], &["b".to_owned()].into());
    clock.pass(50);
    assert_eq!(seconds(&driver), 10, "where it runs is not known");
}

#[tokio::test]
async fn a_container_that_comes_new_has_overlapped_since_its_start_or_since_the_claim() {
    let clock = Told::new();
    let home = home(&clock);
    let driver = home.start();
    driver.synchronize(Vec::new());
    clock.pass(100);
    home.prepare(&driver, "A", "2").await.unwrap();
    clock.pass(10);
    let own = owner(&clock, 0);
    driver.create_container(&own).unwrap();
    driver.start_container(&own);
    clock.pass(30);
    let mut untold = since(&clock, "untold", "0-7", 1);
    untold.started = None;
    let others = vec![own, since(&clock, "apart", "2-7", 30), untold];
    driver.synchronize(others.clone());
    assert_eq!(seconds(&driver), 0);
    let mut everywhere = since(&clock, "everywhere", "", 30);
    everywhere.cpus = None;
    let first: Vec<_> = others.iter().cloned().chain([everywhere]).collect();
    driver.synchronize(first.clone());
    assert_eq!(seconds(&driver), 30, "no mask is every CPU");
    driver.synchronize(first.iter().cloned().chain([since(&clock, "old", "0-3", 90)]).collect());
    assert_eq!(
        seconds(&driver),
        30 + 40,
        "the claim is no older, and known containers are not counted again"
    );
    clock.pass(1000);
    assert_eq!(seconds(&driver), 70, "all have their masks");
    unprepare(&driver, "A").await;
    driver.synchronize(vec![since(&clock, "after", "0-7", 500)]);
    assert_eq!(seconds(&driver), 70);
}

#[tokio::test]
async fn after_a_restart_a_claim_counts_since_its_record_was_written() {
    let clock = Told::new();
    let home = home(&clock);
    home.prepare(&home.start(), "A", "2").await.unwrap();
    clock.pass(60);
    let driver = home.start();
    driver.synchronize(vec![
        owner(&clock, 50),
        since(&clock, "b", "0-7", 20),
        since(&clock, "c", "0-7", 3600),
    ]);
    let counted = seconds(&driver);
    assert_eq!(counted, 20 + 50, "its container came after it");
}
