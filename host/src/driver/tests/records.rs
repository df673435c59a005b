//! What a driver makes of the files that it finds.

use super::support::{DEVICE, Home, container, cpus, held, holds, prepare, reference, unprepare, update};
use crate::cdi::Access;
use crate::config::{MinSharedCpus, ReservedCpus};
use crate::device::fixtures;

/// As the Go driver writes it.
pub(super) fn foreign(uid: &str, list: &str) -> String {
    format!(
        r#"{{"cdiVersion":"0.8.0","kind":"dra.k8s.io/cpu","devices":[{{"name":"claim-{uid}","containerEdits":{{"env":["DRA_CPUSET_{uid}={list}"]}}}}],"containerEdits":{{}}}}"#
    )
}

pub(super) fn write(home: &Home, uid: &str, text: &str) {
    std::fs::create_dir_all(home.cdi_dir()).unwrap();
    std::fs::write(home.spec(uid), text).unwrap();
}

#[tokio::test]
async fn claims_of_another_driver_are_taken_over_and_learn_their_results() {
    let home = Home::new();
    write(&home, "A", &foreign("A", "2-4"));
    let driver = home.start();
    assert_eq!(held(&driver), [holds("A", "2-4")]);
    let own = container("a", "p", &["DRA_CPUSET_A=2-4"], "2-4");
    assert_eq!(driver.synchronize(vec![own]), []);
    let answer = prepare(&driver, home.allocate("A", &[(DEVICE, "2"), (DEVICE, "1")])).await.unwrap();
    let parts: Vec<String> = answer.devices.iter().map(|device| device.cpus.to_string()).collect();
    assert_eq!(parts, ["2-3", "4"]);
    *home.api.down.lock().unwrap() = true;
    drop(driver);
    assert_eq!(prepare(&home.start(), reference("A")).await.unwrap(), answer, "the record is complete");
}

#[test]
fn a_configuration_that_leaves_nothing_to_share_is_refused() {
    for (reserved, floor, named) in [
        ("0-7", MinSharedCpus::Default, "of the CPUs 0-7, 0 are left"),
        ("0-7", MinSharedCpus::Default, "0-7 reserved"),
        ("0-5", MinSharedCpus::Explicit(3), "2 are left for containers without a claim, and 3 must be"),
        ("", MinSharedCpus::Explicit(9), "none is reserved; change reservedCPUs or minSharedCPUs"),
    ] {
        let mut home = Home::new();
        home.config.reserved_cpus = ReservedCpus::List(cpus(reserved));
        home.config.min_shared_cpus = floor;
        let refusal = home.try_start().err().unwrap().to_string();
        assert!(refusal.contains(named), "{named} in {refusal}");
    }
    let mut home = Home::new();
    home.config.reserved_cpus = ReservedCpus::List(cpus("0-6"));
    assert!(home.try_start().is_ok());
}

#[tokio::test]
async fn a_record_that_does_not_fit_its_claim_is_kept_and_said() {
    let home = Home::new();
    write(&home, "A", &foreign("A", "2-4"));
    let driver = home.start();
    let error = home.prepare(&driver, "A", "2").await.unwrap_err().to_string();
    assert!(error.contains("CPUs 2-4 are recorded"), "{error}");
    assert_eq!(held(&driver), [holds("A", "2-4")]);
}

#[tokio::test]
async fn no_file_keeps_the_driver_from_starting_and_readable_cpus_go_to_nobody() {
    let home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    home.prepare(&driver, "B", "2").await.unwrap();
    let text = std::fs::read_to_string(home.spec("A")).unwrap();
    drop(driver);
    write(&home, "A", &text[..text.len() / 2]);
    write(
        &home,
        "B",
        &text.replace("claim-A", "claim-B").replace("_A=0-1", "_B=2-3").replace(r#"\"v\":1"#, r#"\"v\":7"#),
    );
    write(&home, "C", "\u{0}garbage");
    write(&home, "D", "{}");
    std::fs::create_dir(home.spec("E")).unwrap();
    let driver = home.start();
    assert_eq!(held(&driver), [holds("A", "0-1"), holds("B", "2-3")]);
    assert_eq!(driver.status().unreadable_specs, [home.spec("C"), home.spec("D"), home.spec("E")]);
    prepare(&driver, reference("A")).await.unwrap();
    prepare(&driver, reference("B")).await.unwrap();
    home.prepare(&driver, "C", "1").await.unwrap();
    unprepare(&driver, "D").await;
    assert!(!home.spec("D").exists());
    assert_eq!(driver.status().unreadable_specs, [home.spec("E")]);
    drop(driver);
    let driver = home.start();
    assert_eq!(held(&driver), [holds("A", "0-1"), holds("B", "2-3"), holds("C", "4")]);
}

#[tokio::test]
async fn overlapping_records_are_both_kept_until_unprepared() {
    let home = Home::new();
    write(&home, "A", &foreign("A", "2-3"));
    write(&home, "B", &foreign("B", "3-4"));
    let driver = home.start();
    let status = driver.status();
    assert_eq!(
        (status.conflicted_cpus, status.conflicted),
        (cpus("3"), vec!["A".to_owned(), "B".to_owned()])
    );
    assert_eq!(status.shared, cpus("0-1,5-7"));
    unprepare(&driver, "A").await;
    assert_eq!(driver.status().shared, cpus("0-2,5-7"));
    unprepare(&driver, "B").await;
    assert_eq!(driver.status().shared, cpus("0-7"));
}

#[tokio::test]
async fn a_claim_on_cpus_reserved_since_is_stranded_but_still_pinned() {
    let mut home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    drop(driver);
    home.config.reserved_cpus = ReservedCpus::List(cpus("1"));
    let driver = home.start();
    let status = driver.status();
    assert_eq!(
        (status.stranded, status.stranded_cpus, status.shared),
        (vec!["A".to_owned()], cpus("1"), cpus("2-7"))
    );
    assert_eq!(driver.devices().borrow()[0].capacity.unwrap().cpus, 7);
    let own = driver.create_container(&container("a", "p", &["DRA_CPUSET_A=0-1"], "")).unwrap();
    assert_eq!(own.cpus, cpus("0-1"));
    unprepare(&driver, "A").await;
    assert_eq!(driver.status().shared, cpus("0,2-7"));
}

#[tokio::test]
async fn after_a_reboot_a_record_counts_as_far_as_the_machine_can_honour_it() {
    let mut home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    home.prepare(&driver, "B", "2").await.unwrap();
    drop(driver);
    let mut rows = fixtures::rows(1, 8, 1);
    rows.remove(3);
    home.topology = fixtures::machine(&rows);
    let driver = home.start();
    assert_eq!(held(&driver), [holds("A", "0-1"), holds("B", "2-3")], "the same boot: containers run");
    assert_eq!(driver.status().unhealthy, ["B"]);
    drop(driver);
    home.boot_id = "boot-2".into();
    let driver = home.start();
    assert_eq!(held(&driver), [holds("A", "0-1")]);
    assert!(!home.spec("B").exists());
    prepare(&driver, reference("B")).await.unwrap();
    assert_eq!(held(&driver), [holds("A", "0-1"), holds("B", "2,4")]);
    drop(driver);

    // Containers may run by now, of the claim that was kept as of any other.
    let mut rows = fixtures::rows(1, 8, 1);
    rows.retain(|row| ![1, 3, 4].contains(&row.cpu));
    home.topology = fixtures::machine(&rows);
    let driver = home.start();
    assert_eq!(held(&driver), [holds("A", "0-1"), holds("B", "2,4")], "the same boot");
}

#[tokio::test]
async fn a_record_that_cannot_be_brought_to_this_boot_keeps_its_cpus_and_is_written_when_it_can() {
    let (mut home, disk) = Home::with_disk();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    drop(driver);
    home.boot_id = "boot-2".into();
    disk.fail_at(&[Access::Write]);
    let driver = home.start();
    assert_eq!(held(&driver), [holds("A", "0-1")]);
    disk.fail_at(&[]);
    prepare(&driver, reference("A")).await.unwrap();
    drop(driver);
    let mut rows = fixtures::rows(1, 8, 1);
    rows.remove(1);
    home.topology = fixtures::machine(&rows);
    assert_eq!(held(&home.start()), [holds("A", "0-1")], "the same boot");
}

#[tokio::test]
async fn masks_and_devices_follow_the_online_cpus_and_claims_keep_theirs() {
    let home = Home::new();
    let driver = home.start();
    driver.create_container(&container("b", "q", &[], "")).unwrap();
    home.prepare(&driver, "A", "2").await.unwrap();
    driver.create_container(&container("a", "p", &["DRA_CPUSET_A=0-1"], "")).unwrap();
    let mut rows = fixtures::rows(1, 8, 1);
    rows.retain(|row| row.cpu != 1 && row.cpu != 7);
    driver.machine_changed(fixtures::machine(&rows));
    assert_eq!(driver.take_pending_updates(), [update("a", "0"), update("b", "2-6")]);
    assert_eq!(driver.devices().borrow()[0].capacity.unwrap().cpus, 6);
    assert_eq!((held(&driver), driver.status().unhealthy), (vec![holds("A", "0-1")], vec!["A".to_owned()]));
    driver.machine_changed(home.topology.clone());
    assert_eq!(driver.take_pending_updates(), [update("a", "0-1"), update("b", "2-7")]);
}
