use super::records::{foreign, write};
use super::support::{Home, container, cpus};
use crate::config::ReservedCpus;
use crate::driver::{ClaimState, Driver, ReleaseError};

#[tokio::test]
async fn a_claim_is_told_as_the_worst_that_is_true_of_it() {
    let mut home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    let one = |driver: &Driver| driver.inventory().claims.remove(0);
    assert_eq!((one(&driver).state, one(&driver).owner), (ClaimState::Waiting, None));
    let own = container("a", "p", &["DRA_CPUSET_A=0-1"], "");
    driver.create_container(&own).unwrap();
    assert_eq!(one(&driver).state, ClaimState::Bound);
    driver.start_container(&own);
    driver.stop_container("a");
    let held = one(&driver);
    assert_eq!((held.state, held.owner.unwrap().pod_name.as_str()), (ClaimState::Held, "p"));
    driver.remove_container("a");
    assert_eq!(one(&driver).state, ClaimState::Held);

    // Reserved since; then its record is found to overlap another one.
    home.config.reserved_cpus = ReservedCpus::List(cpus("1"));
    let driver = home.start();
    assert_eq!(one(&driver).state, ClaimState::Stranded);
    home.api.claims.lock().unwrap().clear();
    driver.find_orphans().await;
    assert_eq!(one(&driver).state, ClaimState::Stranded, "an orphan too, but its CPUs come first");
    write(&home, "B", &foreign("B", "1-2"));
    let driver = home.start();
    let states: Vec<_> =
        driver.inventory().claims.iter().map(|claim| (claim.uid.clone(), claim.state)).collect();
    assert_eq!(states, ["A", "B"].map(|uid| (uid.to_owned(), ClaimState::Conflicted)));
    assert!(matches!(driver.release("B").await, Err(ReleaseError::Nameless)));
}

#[tokio::test]
async fn a_claim_that_only_a_container_speaks_of_is_held_and_not_released() {
    let home = Home::new();
    let driver = home.start();
    driver.synchronize(vec![container("w", "p", &["DRA_CPUSET_wiped=2-3"], "2-3")]);
    let held = driver.inventory().claims.remove(0);
    assert_eq!((held.uid.as_str(), held.state, held.recorded), ("wiped", ClaimState::Held, false));
    assert_eq!(held.booking.cpus(), cpus("2-3"));
    let known = driver.inventory().containers.remove(0);
    assert_eq!((known.wanted, known.unproven), (None, vec!["wiped".to_owned()]), "it is left alone");
    assert!(matches!(driver.release("wiped").await, Err(ReleaseError::InUse(_))));
}
