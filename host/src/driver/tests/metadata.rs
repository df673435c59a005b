//! What containers are told of their devices comes and goes with the claim.

use super::support::{DEVICE, Home, held, holds, prepare, reference, unprepare};
use crate::cdi::Access;
use crate::driver::{Claim, Driver};
use std::sync::Arc;

/// Prepares a claim with these requests of one CPU each.
async fn prepare_requests(
    home: &Home,
    driver: &Arc<Driver>,
    uid: &str,
    requests: &[&str],
) -> Vec<Vec<String>> {
    let claim = home.allocate(uid, &vec![(DEVICE, "1"); requests.len()]);
    if let Some(Claim { results: Some(results), .. }) = home.api.claims.lock().unwrap().get_mut(uid) {
        for (result, request) in results.iter_mut().zip(requests) {
            result.request = (*request).to_owned();
        }
    }
    let prepared = prepare(driver, claim).await.unwrap();
    prepared.devices.into_iter().map(|device| device.cdi_device_ids).collect()
}

#[tokio::test]
async fn the_first_device_of_each_request_names_what_mounts_the_requests_file() {
    let home = Home::new();
    let ids = prepare_requests(&home, &home.start(), "A", &["a", "b/one", "a"]).await;
    let own = "dra.k8s.io/cpu=claim-A";
    let expected = [vec![own, "dra.cpu/metadata=A_a"], vec![own, "dra.cpu/metadata=A_b"], vec![own]];
    assert_eq!(ids, expected);
    for request in ["a", "b"] {
        assert!(home.metadata_dir().join("ns_A").join(request).join("metadata.json").is_file());
    }
}

#[tokio::test]
async fn a_claim_without_its_files_is_refused_and_leaves_nothing() {
    let (home, disk) = Home::with_disk();
    let driver = home.start();
    disk.fail_at(&[Access::WriteMetadata]);
    let error = home.prepare(&driver, "A", "2").await.unwrap_err().to_string();
    assert!(error.contains("device metadata ") && error.contains("cannot be written"), "{error}");
    assert_eq!((held(&driver), home.with_metadata()), (vec![], vec![]));

    disk.fail_at(&[Access::Write]);
    home.prepare(&driver, "A", "2").await.unwrap_err();
    assert_eq!(
        (held(&driver), home.with_metadata()),
        (vec![], vec![]),
        "files that nobody may mount are gone"
    );

    disk.fail_at(&[]);
    home.prepare(&driver, "A", "2").await.unwrap();
    assert_eq!(home.with_metadata(), ["A"]);
    disk.fail_at(&[Access::RemoveMetadata]);
    let error = driver.unprepare(vec![reference("A")]).await.remove(0).1.unwrap_err().to_string();
    assert!(error.contains("device metadata ") && error.contains("stay booked"), "{error}");
    assert_eq!((held(&driver), home.with_metadata()), (vec![holds("A", "0-1")], vec!["A".to_owned()]));
    disk.fail_at(&[]);
    unprepare(&driver, "A").await;
    assert_eq!((held(&driver), home.with_metadata()), (vec![], vec![]));
}

#[tokio::test]
async fn lost_files_are_written_again_from_the_record_and_those_of_former_claims_are_swept() {
    let home = Home::new();
    let driver = home.start();
    let answer = home.prepare(&driver, "A", "2").await.unwrap();
    home.prepare(&driver, "B", "2").await.unwrap();
    drop(driver);
    std::fs::remove_file(home.spec("B")).unwrap(); // unprepared by somebody else, say
    std::fs::remove_dir_all(home.metadata_dir().join("ns_A")).unwrap();
    let driver = home.start();
    *home.api.down.lock().unwrap() = true;
    assert_eq!(prepare(&driver, reference("A")).await.unwrap(), answer);
    assert_eq!(home.with_metadata(), ["A"]);
}

#[tokio::test]
async fn the_end_of_a_claim_leaves_the_files_of_a_new_one_with_its_name() {
    let home = Home::new();
    let driver = home.start();
    let named = |uid: &str| {
        let mut claim = home.allocate(uid, &[(DEVICE, "1")]);
        claim.name = "same".to_owned();
        let mut claims = home.api.claims.lock().unwrap();
        let mut object = claims.remove(uid).unwrap();
        object.id = claim.clone();
        claims.insert("same".to_owned(), object);
        claim
    };
    let old = named("old");
    prepare(&driver, old.clone()).await.unwrap();
    let new = named("new");
    prepare(&driver, new).await.unwrap();
    driver.unprepare(vec![old]).await.remove(0).1.unwrap();
    let file = home.metadata_dir().join("ns_same/r/metadata.json");
    let text = std::fs::read_to_string(&file).unwrap();
    assert!(text.contains(r#""uid":"new""#), "{text}");
    assert!(home.cdi_dir().join("dra.cpu_metadata_new_r.json").is_file());
    assert!(!home.cdi_dir().join("dra.cpu_metadata_old_r.json").exists());
}
