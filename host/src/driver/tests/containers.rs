use super::support::{Home, container, cpus, held, holds, prepare, reference, unprepare, update};
use crate::driver::{Container, ContainerError, ReleaseError, Round};
use std::collections::BTreeSet;
use std::sync::{Mutex, mpsc};
use std::time::{Duration, Instant};

#[tokio::test]
async fn a_container_gets_its_claim_and_the_others_leave_it() {
    let mut home = Home::new();
    home.config.remove_cfs_quota = true;
    let driver = home.start();
    let shared = driver.create_container(&container("b", "q", &["X=1"], "")).unwrap();
    assert_eq!((shared.cpus, shared.exclusive, shared.remove_cfs_quota), (cpus("0-7"), false, false));
    home.prepare(&driver, "A", "2").await.unwrap();
    let own = driver.create_container(&container("a", "p", &["DRA_CPUSET_A=0-1"], "")).unwrap();
    assert_eq!((own.cpus, own.exclusive, own.remove_cfs_quota), (cpus("0-1"), true, true));
    assert_eq!(own.updates, [update("b", "2-7")]);
    assert_eq!(driver.stop_container("a"), []);
    assert_eq!(driver.stop_container("unknown"), []);
    driver.remove_container("a");
    unprepare(&driver, "A").await;
    assert_eq!(driver.status().pending_updates, 1);
    assert_eq!(driver.take_pending_updates(), [update("b", "0-7")]);
    assert_eq!(driver.take_pending_updates(), []);
}

#[tokio::test]
async fn masks_are_due_after_unprepare_and_again_when_a_hook_overtook_the_push() {
    let home = Home::new();
    let driver = home.start();
    let due = || async { tokio::time::timeout(Duration::from_millis(1), driver.masks_due()).await.is_ok() };
    driver.create_container(&container("b", "q", &[], "")).unwrap();
    home.prepare(&driver, "A", "2").await.unwrap();
    driver.create_container(&container("a", "p", &["DRA_CPUSET_A=0-1"], "")).unwrap();
    assert!(!due().await, "what hooks bring is not due");
    driver.stop_container("a");
    unprepare(&driver, "A").await;
    assert!(due().await);
    let sent = driver.take_pending_updates();
    assert_eq!(sent, [update("b", "0-7")]);
    driver.pushed(&sent, &BTreeSet::new());
    assert_eq!((due().await, driver.status().pending_updates), (false, 0), "all is said");

    driver.pushed(&sent, &BTreeSet::from(["b".to_owned()]));
    assert_eq!((due().await, driver.status().pending_updates), (false, 1), "left to the next hook");
    assert_eq!(driver.stop_container("a"), sent);

    home.prepare(&driver, "B", "2").await.unwrap();
    let own = driver.create_container(&container("c", "p", &["DRA_CPUSET_B=0-1"], "")).unwrap();
    assert_eq!(own.updates, [update("b", "2-7")]);
    driver.pushed(&sent, &BTreeSet::new());
    assert!(due().await);
    assert_eq!(driver.take_pending_updates(), [update("b", "2-7")]);
}

#[tokio::test]
async fn a_variable_gives_nobody_cpus() {
    let home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    for env in [
        vec!["DRA_CPUSET_made-up=0-7"],
        vec!["DRA_CPUSET_A=0-7"],
        vec!["DRA_CPUSET_A=garbage"],
        vec!["DRA_CPUSET_A=0-1", "DRA_CPUSET_A=0-7"],
        vec!["DRA_CPUSET_A=0-1", "DRA_CPUSET_made-up=5"],
    ] {
        assert!(driver.create_container(&container("f", "evil", &env, "")).is_err(), "{env:?}");
    }
    let twice = ["DRA_CPUSET_A=0-1", "DRA_CPUSET_A=0-1"];
    assert_eq!(driver.create_container(&container("a", "p", &twice, "")).unwrap().cpus, cpus("0-1"));
}

#[tokio::test]
async fn what_the_runtime_says_of_cdi_devices_beats_the_variables() {
    let home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    home.prepare(&driver, "B", "2").await.unwrap();
    // Its variable has been taken out.
    let mut own = container("a", "p", &[], "");
    own.cdi_devices = vec!["dra.k8s.io/cpu=claim-A".into()];
    assert_eq!(driver.create_container(&own).unwrap().cpus, cpus("0-1"));
    // From here on it is known that this runtime names devices.
    let thief = container("t", "evil", &["DRA_CPUSET_B=2-3"], "");
    assert!(matches!(driver.create_container(&thief), Err(ContainerError::Env(_))));
    let mut unknown = container("u", "p", &[], "");
    unknown.cdi_devices = vec!["dra.k8s.io/cpu=claim-U".into()];
    assert!(driver.create_container(&unknown).unwrap_err().to_string().contains("claim U is not prepared"));
}

#[tokio::test]
async fn a_mask_of_the_kubelet_is_put_back_and_a_resize_of_other_things_passes() {
    let home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    let own = container("a", "p", &["DRA_CPUSET_A=0-1"], "");
    driver.create_container(&own).unwrap();
    assert_eq!(driver.update_container(&own, Some(&cpus("0-7"))).cpus, Some(cpus("0-1")));
    assert_eq!(driver.update_container(&own, Some(&cpus("0-1"))).cpus, None);
    assert_eq!(driver.update_container(&own, None).cpus, None);
    let unknown = container("b", "q", &[], "0-7");
    assert_eq!(driver.update_container(&unknown, None).cpus, Some(cpus("2-7")));
    assert_eq!(driver.update_container(&unknown, None).cpus, None);
}

#[tokio::test]
async fn only_the_mask_that_was_given_is_valid() {
    let home = Home::new();
    let driver = home.start();
    let shared = container("b", "q", &[], "");
    assert!(matches!(driver.validate_container(&shared, None), Err(ContainerError::Unseen)));
    driver.create_container(&shared).unwrap();
    // A claim that is prepared in between does not change what was said.
    home.prepare(&driver, "A", "2").await.unwrap();
    driver.validate_container(&shared, Some(&cpus("0-7"))).unwrap();
    for other in [None, Some(&cpus("0-6"))] {
        let error = driver.validate_container(&shared, other).unwrap_err().to_string();
        assert!(error.contains("must be 0-7"), "{error}");
    }
}

#[tokio::test]
async fn a_mask_that_is_pushed_while_a_container_is_made_does_not_refuse_it() {
    let home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    let shared = container("b", "q", &[], "");
    assert_eq!(driver.create_container(&shared).unwrap().cpus, cpus("2-7"));
    unprepare(&driver, "A").await;
    assert_eq!(driver.take_pending_updates(), [update("b", "0-7")]);
    driver.validate_container(&shared, Some(&cpus("2-7"))).unwrap();
}

#[tokio::test]
async fn unprepare_under_a_live_container_moves_it_to_the_pool_and_is_counted() {
    let home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    driver.create_container(&container("a", "p", &["DRA_CPUSET_A=0-1"], "")).unwrap();
    unprepare(&driver, "A").await;
    assert_eq!(driver.create_container(&container("b", "q", &[], "")).unwrap().updates, [update("a", "0-7")]);
    assert_eq!(driver.status().unprepared_in_use, 1);
}

#[tokio::test]
async fn a_runtime_that_has_restarted_loses_no_claim() {
    let home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    home.prepare(&driver, "B", "1").await.unwrap();
    let own = container("a", "p", &["DRA_CPUSET_A=0-1"], "0-1");
    driver.create_container(&own).unwrap();
    let malformed = container("m", "q", &["DRA_CPUSET_B=x"], "0-7");
    assert_eq!(driver.synchronize(vec![malformed.clone(), own.clone()]), [update("m", "3-7")]);
    assert_eq!(driver.synchronize(vec![]), []);
    assert_eq!(held(&driver), [holds("A", "0-1"), holds("B", "2")]);
    drop(driver);
    let driver = home.start();
    assert_eq!(driver.synchronize(vec![own]), []);
}

/// A driver whose CDI directory was wiped while a container of claim A ran.
pub(super) async fn wiped(home: &Home) -> std::sync::Arc<crate::driver::Driver> {
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    home.api.pods.lock().unwrap().insert("p".into(), vec!["A".into()]);
    home.api.pods.lock().unwrap().insert("evil".into(), vec![]);
    drop(driver);
    std::fs::remove_dir_all(home.cdi_dir()).unwrap();
    home.start()
}

#[tokio::test]
async fn a_claim_without_a_record_is_proven_by_the_api_server() {
    let home = Home::new();
    let driver = wiped(&home).await;
    let own = container("a", "p", &["DRA_CPUSET_A=0-1"], "0-1");
    let other = container("b", "q", &[], "0-7");
    assert_eq!(driver.synchronize(vec![own.clone(), other]), [], "left alone, and the pool is not cut");
    assert_eq!((driver.status().shared, driver.status().available), (cpus("0-7"), cpus("2-7")));
    *home.api.down.lock().unwrap() = true;
    assert_eq!(driver.prove_once().await, Round { settled: 0, open: 1 });
    assert!(home.prepare(&driver, "C", "2").await.is_err());
    *home.api.down.lock().unwrap() = false;
    home.prepare(&driver, "B", "2").await.unwrap();
    assert_eq!(driver.prove_once().await, Round { settled: 1, open: 0 });
    assert_eq!(held(&driver), [holds("A", "0-1"), holds("B", "2-3")]);
    assert_eq!(driver.take_pending_updates(), [update("b", "4-7")]);
    assert!(home.spec("A").exists());
    let asked = *home.api.asked.lock().unwrap();
    prepare(&driver, reference("A")).await.unwrap();
    assert_eq!(*home.api.asked.lock().unwrap(), asked);
}

#[tokio::test]
async fn new_claims_wait_for_the_runtimes_word_of_what_runs_and_recorded_ones_do_not() {
    let mut home = Home::new();
    home.prepare(&home.start(), "old", "2").await.unwrap();
    home.containers_within = Some(Duration::from_millis(1));
    let driver = home.start();
    home.prepare(&driver, "old", "2").await.unwrap();
    let refusal = home.prepare(&driver, "A", "2").await.unwrap_err().to_string();
    assert!(refusal.contains("within 0.001 s which containers run"), "{refusal}");
    let released = driver.release("old").await.unwrap_err();
    assert!(matches!(released, ReleaseError::ContainersUnknown), "{released}");
    assert_eq!(held(&driver), [holds("old", "0-1")]);

    home.containers_within = Some(Duration::from_secs(60));
    let driver = home.start();
    let (prepared, ()) = tokio::join!(home.prepare(&driver, "A", "2"), async {
        tokio::task::yield_now().await;
        driver.synchronize(vec![container("w", "p", &["DRA_CPUSET_wiped=2-3"], "2-3")]);
    });
    prepared.unwrap();
    assert_eq!(
        held(&driver),
        [holds("A", "4-5"), holds("old", "0-1")],
        "not what a container without a record has"
    );
}

#[tokio::test]
async fn a_claim_without_a_record_makes_no_second_owner_of_cpus_that_were_given_out_since() {
    let home = Home::new();
    let driver = wiped(&home).await;
    home.prepare(&driver, "B", "2").await.unwrap();
    driver.synchronize(vec![container("a", "p", &["DRA_CPUSET_A=0-1"], "0-1")]);
    assert_eq!(driver.prove_once().await, Round { settled: 1, open: 0 });
    assert_eq!(held(&driver), [holds("B", "0-1")]);
    assert!(!home.spec("A").exists());
    assert_eq!(driver.status().conflicted_cpus, cpus(""));
    assert_eq!(driver.take_pending_updates(), [update("a", "2-7")]);
}

#[tokio::test]
async fn a_claim_without_a_record_is_disproven_unless_pod_claim_and_size_agree() {
    for (name, container) in [
        ("no claim of the pod", container("z", "evil", &["DRA_CPUSET_A=0-1"], "0-7")),
        ("no pod", container("z", "gone", &["DRA_CPUSET_A=0-1"], "0-7")),
        ("other size", container("z", "p", &["DRA_CPUSET_A=0-2"], "0-7")),
        ("made up", container("z", "p", &["DRA_CPUSET_X=2-3"], "2-3")),
    ] {
        let home = Home::new();
        let driver = wiped(&home).await;
        assert_eq!(driver.synchronize(vec![container]), [], "{name}");
        driver.prove_once().await;
        let now = driver.status();
        assert_eq!((held(&driver), now.unproven_cpus, now.shared), (vec![], cpus(""), cpus("0-7")), "{name}");
    }
}

#[tokio::test]
async fn prepare_finds_the_cpus_that_a_running_container_has() {
    let home = Home::new();
    let driver = wiped(&home).await;
    driver.synchronize(vec![container("a", "p", &["DRA_CPUSET_A=4-5"], "4-5")]);
    prepare(&driver, reference("A")).await.unwrap();
    assert_eq!(held(&driver), [holds("A", "4-5")]);
    assert_eq!(driver.status().unproven_cpus, cpus(""));
}

#[tokio::test]
async fn prepare_asks_whose_the_cpus_are_that_a_container_says_it_has() {
    let home = Home::new();
    let driver = wiped(&home).await;
    driver.synchronize(vec![container("z", "evil", &["DRA_CPUSET_A=4-5"], "4-5")]);
    prepare(&driver, reference("A")).await.unwrap();
    assert_eq!(held(&driver), [holds("A", "0-1")], "not what anybody can say");
    assert_eq!(driver.take_pending_updates(), [update("z", "2-7")]);
    let own = driver.create_container(&container("a", "p", &["DRA_CPUSET_A=0-1"], ""));
    assert_eq!(own.unwrap().cpus, cpus("0-1"), "the claim is nobody's yet");
}

#[tokio::test]
async fn who_says_it_has_anothers_claim_takes_nothing_from_that_one() {
    // In either order of pods and of containers.
    for (evil, pod) in [("0", "evil"), ("z", "evil"), ("0", "zealous"), ("z", "zealous")] {
        let home = Home::new();
        let driver = wiped(&home).await;
        home.api.pods.lock().unwrap().insert("zealous".into(), vec![]);
        let own = container("a", "p", &["DRA_CPUSET_A=0-1"], "0-1");
        let forged = container(evil, pod, &["DRA_CPUSET_A=0-1"], "0-1");
        driver.synchronize(vec![own, forged]);
        assert_eq!(driver.prove_once().await, Round { settled: 2, open: 0 });
        assert_eq!(held(&driver), [holds("A", "0-1")]);
        assert_eq!(driver.take_pending_updates(), [update(evil, "2-7")], "{evil} of {pod}");
    }
}

#[tokio::test]
async fn prepare_makes_no_second_owner_of_cpus_that_were_given_out_since() {
    let home = Home::new();
    let driver = wiped(&home).await;
    home.prepare(&driver, "B", "2").await.unwrap();
    driver.synchronize(vec![container("a", "p", &["DRA_CPUSET_A=0-1"], "0-1")]);
    prepare(&driver, reference("A")).await.unwrap();
    assert_eq!(held(&driver), [holds("A", "2-3"), holds("B", "0-1")]);
    assert_eq!(driver.status().conflicted_cpus, cpus(""));
    assert_eq!(driver.take_pending_updates(), [update("a", "4-7")]);
}

#[tokio::test]
async fn a_runtime_that_names_no_devices_is_believed_after_one_that_does() {
    let home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    let mut own = container("a", "p", &["DRA_CPUSET_A=0-1"], "0-1");
    own.cdi_devices.push("dra.k8s.io/cpu=claim-A".into());
    driver.connected(true);
    driver.create_container(&own).unwrap();
    own.cdi_devices.clear();
    driver.connected(true);
    assert_eq!(driver.synchronize(vec![own.clone()]), [update("a", "2-7")], "it would have named the device");
    driver.connected(false);
    assert_eq!(
        driver.synchronize(vec![own.clone()]),
        [],
        "its mask is the claim's again, as the runtime shows"
    );
    let again = Container { id: "a2".into(), ..own };
    assert_eq!(driver.create_container(&again).unwrap().cpus, cpus("0-1"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_hook_does_not_wait_for_a_strategy() {
    let home = Home::new();
    let driver = home.start();
    let (open, gate) = mpsc::channel::<()>();
    let (sender, asked) = mpsc::channel::<()>();
    let (gate, sender) = (Mutex::new(gate), Mutex::new(sender));
    *home.strategy.before.lock().unwrap() = Some(Box::new(move |_| {
        sender.lock().unwrap().send(()).unwrap();
        gate.lock().unwrap().recv().unwrap();
    }));
    let (calling, id) = (driver.clone(), home.allocate("A", &[(super::support::DEVICE, "2")]));
    let call = tokio::spawn(async move { prepare(&calling, id).await });
    tokio::task::spawn_blocking(move || asked.recv().unwrap()).await.unwrap();
    let start = Instant::now();
    driver.create_container(&container("b", "q", &[], "")).unwrap();
    driver.synchronize(vec![]);
    assert!(start.elapsed() < Duration::from_millis(50), "{:?}", start.elapsed());
    open.send(()).unwrap();
    call.await.unwrap().unwrap();
}
