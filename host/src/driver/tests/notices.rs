//! What people are told, and where.

use super::super::{Driver, Kind, Matter, Notice, Quota};
use super::support::{DEVICE, Home, container, cpus, prepare, reference};
use crate::config::ReservedCpus;
use dracpu_ledger::{Booking, Part};
use std::sync::Arc;
use std::time::Duration;

/// What waits: whom it is about, what, the text.
async fn told(driver: &Driver) -> Vec<(Kind, String, Matter, String)> {
    let (notices, lost) = tokio::time::timeout(Duration::from_secs(30), driver.next_notices()).await.unwrap();
    assert_eq!(lost, 0);
    let shown = |Notice { about, matter, text, .. }: Notice| {
        assert_eq!(about.namespace, "ns");
        (about.kind, about.name, matter, text)
    };
    notices.into_iter().map(shown).collect()
}

async fn only(driver: &Driver, kind: Kind, name: &str, matter: Matter, words: &[&str]) {
    let told = told(driver).await;
    let [(of, who, what, text)] = &told[..] else { panic!("{told:?}") };
    assert_eq!((of, who.as_str(), what), (&kind, name, &matter), "{text}");
    for word in words {
        assert!(text.contains(word), "`{word}` in {text}");
    }
}

fn silent(driver: &Driver) -> bool {
    use futures::FutureExt as _;
    driver.next_notices().now_or_never().is_none()
}

#[tokio::test]
async fn a_refused_claim_is_told_with_what_it_asks_for_what_is_free_and_who_has_the_rest() {
    let home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "5").await.unwrap();
    assert!(silent(&driver));
    let error = home.prepare(&driver, "B", "4").await.unwrap_err().to_string();
    let words = [
        "request r asks for 4 CPUs of device cpudevnuma000, 3 of 8 are free",
        "not enough",
        "CPUs 0-4 by claim A",
    ];
    assert!(words.iter().all(|word| error.contains(word)), "{error}");
    only(&driver, Kind::Claim, "B", Matter::NotPrepared, &words).await;
    home.prepare(&driver, "C", "3").await.unwrap_err();
    let floor = ["asks for 3 CPUs", "3 of 8 are free", "minSharedCPUs is 1", "ask for fewer"];
    only(&driver, Kind::Claim, "C", Matter::NotPrepared, &floor).await;
}

#[tokio::test]
async fn a_claim_that_nobody_can_look_at_is_not_told() {
    let home = Home::new();
    let driver = home.start();
    prepare(&driver, reference("unknown")).await.unwrap_err();
    home.allocate("A", &[(DEVICE, "1")]);
    *super::super::locks::lock(&home.api.down) = true;
    prepare(&driver, reference("A")).await.unwrap_err();
    assert!(silent(&driver));
}

#[tokio::test]
async fn claims_on_reserved_cpus_and_claims_that_overlap_are_told_at_the_start() {
    let mut home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    home.config.reserved_cpus = ReservedCpus::List(cpus("1"));
    only(&home.start(), Kind::Claim, "A", Matter::Stranded, &["CPUs 1, which", "until its pod"]).await;

    home.config.reserved_cpus = ReservedCpus::List(cpus(""));
    let driver = home.start();
    let part = Part { cpus: cpus("1-2"), device: DEVICE.into(), ..Part::default() };
    let other = Booking { namespace: "ns".into(), name: "B".into(), parts: vec![part], ..Booking::default() };
    let mut ledger = driver.ledger();
    ledger.adopt("B".into(), other);
    driver.tell_doubts(&ledger);
    drop(ledger);
    let told = told(&driver).await;
    let text = "CPUs 1 are recorded for claims A and B: delete the pods of all but one";
    assert_eq!(told.len(), 2, "{told:?}");
    for ((kind, name, matter, said), expected) in told.iter().zip(["A", "B"]) {
        assert_eq!((kind, name.as_str(), matter), (&Kind::Claim, expected, &Matter::Conflicted));
        assert!(said.starts_with(text), "{said}");
    }
}

#[tokio::test]
async fn a_claim_whose_object_and_containers_are_gone_is_told() {
    let home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    driver.synchronize(Vec::new());
    super::super::locks::lock(&home.api.claims).clear();
    assert_eq!(driver.find_orphans().await, 1);
    only(&driver, Kind::Claim, "A", Matter::Orphaned, &["CPUs 0-1", "dracpu claims release A"]).await;
    assert_eq!(driver.find_orphans().await, 0);
    assert!(silent(&driver), "once");
}

#[tokio::test]
async fn a_pod_that_makes_up_a_variable_is_told() {
    let home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    for forged in ["DRA_CPUSET_made-up=0-7", "DRA_CPUSET_A=0-7", "DRA_CPUSET_A=x"] {
        driver.create_container(&container("b", "thief", &[forged], "")).unwrap_err();
        only(&driver, Kind::Pod, "thief", Matter::NotBelieved, &["container name-b is not created"]).await;
    }
    driver.synchronize(vec![container("b", "thief", &["DRA_CPUSET_A=4-5"], "0-7")]);
    only(&driver, Kind::Pod, "thief", Matter::NotBelieved, &["is not believed", "holds CPUs 0-1, not 4-5"])
        .await;
    driver.synchronize(vec![container("c", "other", &["DRA_CPUSET_A=x"], "0-7")]);
    only(&driver, Kind::Pod, "other", Matter::NotBelieved, &["treated as one without a claim"]).await;
    driver.synchronize(vec![container("d", "liar", &["DRA_CPUSET_Z=4-5"], "4-5")]);
    assert!(silent(&driver), "it may be true");
    driver.prove_once().await;
    only(&driver, Kind::Pod, "liar", Matter::NotBelieved, &["does not have claim Z"]).await;
}

#[tokio::test]
async fn a_limit_that_can_stop_a_container_on_its_own_cpus_is_told() {
    let mut home = Home::new();
    let quota = |cpus: u64| Some(Quota { micros: cpus * 100_000, period: 100_000 });
    let create = |driver: &Arc<Driver>, own: Option<Quota>, pods: Option<Quota>| {
        let mut asked = container("a", "p", &["DRA_CPUSET_A=0-1"], "");
        (asked.quota, asked.pod.quota) = (own, pods);
        driver.create_container(&asked).unwrap();
    };
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    create(&driver, quota(2), quota(2));
    let own =
        ["container name-a can be throttled", "(0-1, 2 in all)", "its CPU limit is 2", "cfsQuota: remove"];
    only(&driver, Kind::Pod, "p", Matter::Throttled, &own).await;
    create(&driver, quota(3), quota(4));
    create(&driver, None, None);
    let mut shared = container("s", "q", &[], "");
    shared.quota = quota(1);
    driver.create_container(&shared).unwrap();
    assert!(silent(&driver));

    home.config.remove_cfs_quota = true;
    let driver = home.start();
    create(&driver, quota(1), quota(4));
    assert!(silent(&driver), "the node lifts the container's own");
    create(&driver, quota(1), quota(1));
    only(&driver, Kind::Pod, "p", Matter::Throttled, &["CPU limits of its pod add up to 1"]).await;
}
