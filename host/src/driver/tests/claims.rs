use super::support::{DEVICE, Home, Lowest, cpus, held, holds, prepare, reference, unprepare};
use crate::cdi::{Access, Probe, Step};
use crate::config::{DeviceMode, GroupBy, MinSharedCpus};
use crate::device::{Group, fixtures};
use crate::driver::{
    AllocationResult, Claim, ClaimRef, ClaimState, ConfigSource, Decide, Driver, OpaqueConfig, Prepared,
    ReleaseError, Strategies, Unusable,
};
use crate::strategy::Request;
use dracpu_cpuset::CpuSet;
use dracpu_topology::{PcieRoot, Topology};
use serde_json::{Map, Value, json};
use std::sync::{Arc, Mutex, mpsc};

#[tokio::test]
async fn a_recorded_claim_is_answered_without_api_and_strategy() {
    let home = Home::new();
    let driver = home.start();
    let first = home.prepare(&driver, "A", "2").await.unwrap();
    assert_eq!(first.devices[0].cdi_device_ids, ["dra.k8s.io/cpu=claim-A", "dra.cpu/metadata=A_r"]);
    let asked = *home.api.asked.lock().unwrap();
    *home.api.down.lock().unwrap() = true;
    *home.strategy.before.lock().unwrap() = Some(Box::new(|_| unreachable!("the strategy was asked")));
    assert_eq!(prepare(&driver, reference("A")).await.unwrap(), first);
    drop(driver);
    let again = home.start();
    assert_eq!(prepare(&again, reference("A")).await.unwrap(), first);
    assert_eq!(*home.api.asked.lock().unwrap(), asked);
    let error = prepare(&again, reference("B")).await.unwrap_err();
    assert!(format!("{:#}", anyhow::Error::new(error)).contains("API server cannot be reached"));
}

#[tokio::test]
async fn a_spec_that_is_missing_or_damaged_is_written_again() {
    let home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    let text = std::fs::read_to_string(home.spec("A")).unwrap();
    std::fs::write(home.spec("A"), "{").unwrap();
    prepare(&driver, reference("A")).await.unwrap();
    assert_eq!(std::fs::read_to_string(home.spec("A")).unwrap(), text);
    std::fs::remove_dir_all(home.cdi_dir()).unwrap();
    prepare(&driver, reference("A")).await.unwrap();
    assert_eq!(std::fs::read_to_string(home.spec("A")).unwrap(), text);
}

#[tokio::test]
async fn what_a_claim_cannot_have_is_refused_by_name_and_books_nothing() {
    let home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "first", "4").await.unwrap();
    fn result(claim: &mut Claim) -> &mut AllocationResult {
        &mut claim.results.as_mut().unwrap()[0]
    }
    type Case = (&'static str, fn(&mut Claim));
    let cases: [Case; 9] = [
        ("is not allocated", |claim| claim.results = None),
        ("UID other: the claim has been deleted", |claim| claim.id.uid = "other".into()),
        ("pool m is not this node's, which is n", |claim| result(claim).pool = "m".into()),
        ("adminAccess is not supported", |claim| result(claim).admin_access = true),
        ("no such device; it has cpudevnuma000", |claim| result(claim).device = "x".into()),
        ("consumedCapacity has no dra.cpu/cpu", |claim| result(claim).consumed_cpus = None),
        ("1500m is not a whole number", |claim| result(claim).consumed_cpus = Some("1500m".into())),
        ("CPUs 0-3 by claim first", |claim| result(claim).consumed_cpus = Some("5".into())),
        ("minSharedCPUs is 1", |claim| result(claim).consumed_cpus = Some("4".into())),
    ];
    for (words, change) in cases {
        let id = home.allocate("x", &[(DEVICE, "2")]);
        change(home.api.claims.lock().unwrap().get_mut("x").unwrap());
        let error = format!("{:#}", anyhow::Error::new(prepare(&driver, id).await.unwrap_err()));
        assert!(error.contains(words), "{error}");
        assert_eq!(held(&driver), [holds("first", "0-3")]);
    }
}

#[tokio::test]
async fn a_uid_that_no_spec_can_carry_is_refused_before_anything_is_booked_and_unprepared_as_unknown() {
    let home = Home::new();
    let driver = home.start();
    for uid in ["a".repeat(234), String::new(), "a/b".to_owned()] {
        home.prepare(&driver, &uid, "2").await.unwrap_err();
        assert_eq!(held(&driver), [], "{uid}");
        unprepare(&driver, &uid).await;
    }
    home.prepare(&driver, "A", "2").await.unwrap();
    assert_eq!(held(&driver), [holds("A", "0-1")]);
}

#[tokio::test]
async fn a_claim_without_a_result_for_this_driver_prepares_to_nothing() {
    let home = Home::new();
    let driver = home.start();
    let id = home.allocate("A", &[(DEVICE, "2")]);
    home.api.claims.lock().unwrap().get_mut("A").unwrap().results.as_mut().unwrap()[0].driver = "gpu".into();
    assert_eq!(prepare(&driver, id).await.unwrap().devices, []);
    assert_eq!(held(&driver), []);
    assert!(!home.cdi_dir().exists());
}

#[tokio::test]
async fn failed_files_free_nothing_and_book_nothing_that_they_should_not() {
    let (home, disk) = Home::with_disk();
    let driver = home.start();
    disk.fail_at(&[Access::Write]);
    assert!(home.prepare(&driver, "A", "2").await.is_err());
    assert_eq!(held(&driver), []);
    disk.fail_at(&[Access::Write, Access::Remove]);
    assert!(home.prepare(&driver, "A", "2").await.is_err());
    assert_eq!(held(&driver), [], "nothing was written, so nothing need be removed");
    disk.fail_at(&[Access::DirectorySync, Access::Remove]);
    let error = home.prepare(&driver, "A", "2").await.unwrap_err().to_string();
    assert!(error.contains("keeps its CPUs"), "{error}");
    assert_eq!(held(&driver), [holds("A", "0-1")]);
    disk.fail_at(&[Access::Remove]);
    prepare(&driver, reference("A")).await.unwrap();
    assert!(driver.unprepare(vec![reference("A")]).await.remove(0).1.is_err());
    assert_eq!(held(&driver), [holds("A", "0-1")]);
    disk.fail_at(&[]);
    unprepare(&driver, "A").await;
    unprepare(&driver, "A").await;
    unprepare(&driver, "../never").await;
    assert_eq!(held(&driver), []);
}

#[tokio::test]
async fn claims_of_one_call_are_served_in_order_and_one_at_a_time_across_calls() {
    let home = Home::new();
    let driver = home.start();
    let claims: Vec<ClaimRef> =
        ["A", "B", "C"].iter().map(|uid| home.allocate(uid, &[(DEVICE, "2")])).collect();
    let answers = driver.prepare(claims).await;
    assert!(answers.iter().all(|(_, answer)| answer.is_ok()));
    assert_eq!(held(&driver), [holds("A", "0-1"), holds("B", "2-3"), holds("C", "4-5")]);
    for uid in ["A", "B", "C"] {
        unprepare(&driver, uid).await;
    }
    let (one, two) = tokio::join!(home.prepare(&driver, "X", "5"), home.prepare(&driver, "Y", "5"));
    assert!(one.is_ok() != two.is_ok());
    let same = tokio::join!(home.prepare(&driver, "Z", "1"), home.prepare(&driver, "Z", "1"));
    assert_eq!(same.0.unwrap(), same.1.unwrap());
}

/// Tells when a step is reached.
struct Tell(Step, Mutex<mpsc::Sender<()>>);

impl Probe for Tell {
    fn reached(&self, step: Step) {
        if step == self.0 {
            let _ = self.1.lock().unwrap().send(());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_the_kubelet_drops_goes_on() {
    let mut home = Home::new();
    let (sender, done) = mpsc::channel();
    home.probe = Arc::new(Tell(Step::Answering, Mutex::new(sender)));
    let driver = home.start();
    let (open, gate) = mpsc::channel::<()>();
    let gate = Mutex::new(gate);
    *home.strategy.before.lock().unwrap() = Some(Box::new(move |_| gate.lock().unwrap().recv().unwrap()));
    let id = home.allocate("A", &[(DEVICE, "2")]);
    let call = tokio::time::timeout(std::time::Duration::from_millis(1), driver.prepare(vec![id])).await;
    assert!(call.is_err(), "the strategy is still at it");
    open.send(()).unwrap();
    tokio::task::spawn_blocking(move || done.recv().unwrap()).await.unwrap();
    assert_eq!(held(&driver), [holds("A", "0-1")]);
}

#[tokio::test]
async fn without_a_strategy_only_new_claims_are_refused() {
    let home = Home::new();
    let driver = home.start();
    home.prepare(&driver, "A", "2").await.unwrap();
    drop(driver);
    *home.strategy.broken.lock().unwrap() = true;
    let driver = home.start();
    assert!(driver.strategy().unwrap_err().contains("the file is missing"));
    assert!(driver.devices().borrow().is_empty());
    prepare(&driver, reference("A")).await.unwrap();
    let error = home.prepare(&driver, "B", "2").await.unwrap_err().to_string();
    assert_eq!(error, "no CPUs can be given: strategy packed: the file is missing");
}

#[tokio::test]
async fn the_scheduler_chooses_in_individual_mode_and_names_outlast_hotplug() {
    let mut home = Home::new();
    home.config.mode = DeviceMode::Individual;
    *home.strategy.broken.lock().unwrap() = true;
    let driver = home.start();
    let claim = home.allocate("A", &[("cpudev003", ""), ("cpudev005", "")]);
    assert_eq!(prepare(&driver, claim).await.unwrap().devices[1].cpus, cpus("5"));
    let error = prepare(&driver, home.allocate("B", &[("cpudev003", "")])).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "request r asks for 1 CPU of device cpudev003, 0 of 1 are free; CPUs 3 are held by claim A until it is \
         unprepared; wait for its pod to end, or delete it"
    );
    let mut rows = fixtures::rows(1, 8, 1);
    rows.remove(1);
    driver.machine_changed(fixtures::machine(&rows));
    let names: Vec<String> = driver.devices().borrow().iter().map(|device| device.name.clone()).collect();
    assert_eq!(
        names,
        ["cpudev000", "cpudev002", "cpudev003", "cpudev004", "cpudev005", "cpudev006", "cpudev007"]
    );
    assert_eq!(
        prepare(&driver, home.allocate("C", &[("cpudev006", "")])).await.unwrap().devices[0].cpus,
        cpus("6")
    );
}

/// Strategies of which one cannot be opened.
struct AllBut(&'static str, Lowest);

impl Strategies for AllBut {
    fn open(
        &self,
        name: &str,
        topology: &Topology,
        reserved: &CpuSet,
        groups: &[Group],
        options: &Map<String, Value>,
    ) -> Result<Box<dyn Decide>, String> {
        match name == self.0 {
            true => Err(format!("strategy {name}: damaged")),
            false => self.1.open(name, topology, reserved, groups, options),
        }
    }
}

#[tokio::test]
async fn a_strategy_that_cannot_be_replaced_stays_also_over_hotplug() {
    let mut home = Home::new();
    home.config.selection.allowed_strategies = vec!["other".to_owned()];
    let driver = home.start();
    let selection = home.config.selection.clone();
    let but = |name| Arc::new(AllBut(name, home.strategy.clone())) as Arc<dyn Strategies>;
    let select = |strategies: Arc<dyn Strategies>| driver.select(selection.clone(), &strategies);
    let faults = select(but("other")).unwrap_err();
    assert_eq!(
        faults,
        [Unusable { strategy: "other".to_owned(), why: "strategy other: damaged".to_owned() }]
    );
    let of_other = |uid: &str| {
        let claim = home.allocate(uid, &[(DEVICE, "1")]);
        let parameters = json!({"apiVersion": "v1alpha1", "cpuConfig": {"strategy": "other"}});
        let config = OpaqueConfig { source: ConfigSource::Claim, requests: Vec::new(), parameters };
        home.api.claims.lock().unwrap().get_mut(uid).unwrap().config.push(config);
        claim
    };
    prepare(&driver, of_other("A")).await.unwrap();
    driver.machine_changed(home.topology.clone());
    prepare(&driver, of_other("B")).await.unwrap();
    // The active one: nothing is replaced.
    assert_eq!(select(but("packed")).unwrap_err().len(), 1);
    home.prepare(&driver, "C", "1").await.unwrap();
    assert!(driver.strategy().unwrap().is_some());
    select(Arc::new(home.strategy.clone())).unwrap();
}

#[tokio::test]
async fn a_claim_gets_isolated_cpus_before_others_are_left_without_any() {
    let mut home = Home::new();
    home.topology = Topology { isolated: cpus("4-7"), ..fixtures::machine(&fixtures::rows(1, 8, 1)) };
    let driver = home.start();
    let held = |prepared: Prepared| prepared.devices[0].cpus.to_string();
    assert_eq!(held(home.prepare(&driver, "A", "4").await.unwrap()), "0-2,4");
    assert_eq!(held(home.prepare(&driver, "B", "3").await.unwrap()), "5-7");
    let error = home.prepare(&driver, "C", "1").await.unwrap_err();
    assert!(error.to_string().contains("minSharedCPUs"), "{error}");
}

#[tokio::test]
async fn a_device_keeps_what_it_does_not_offer_for_the_sake_of_all() {
    let mut home = Home::new();
    home.topology = Topology { isolated: cpus("3"), ..fixtures::machine(&fixtures::rows(2, 4, 1)) };
    home.config.min_shared_cpus = MinSharedCpus::Explicit(2);
    let driver = home.start();
    let offers: Vec<u32> =
        driver.devices().borrow().iter().map(|device| device.capacity.unwrap().cpus).collect();
    assert_eq!(offers, [2, 4]);
    let first = home.prepare(&driver, "A", "2").await.unwrap();
    assert_eq!(first.devices[0].cpus, cpus("0,3"));
    let other = home.allocate("B", &[("cpudevnuma001", "4")]);
    assert_eq!(prepare(&driver, other).await.unwrap().devices[0].cpus, cpus("4-7"));
}

/// Strategies that tell what they are opened with.
struct Told(Mutex<Vec<(String, Map<String, Value>)>>, Lowest);

impl Strategies for Told {
    fn open(
        &self,
        name: &str,
        topology: &Topology,
        reserved: &CpuSet,
        groups: &[Group],
        options: &Map<String, Value>,
    ) -> Result<Box<dyn Decide>, String> {
        self.0.lock().unwrap().push((name.to_owned(), options.clone()));
        self.1.open(name, topology, reserved, groups, options)
    }
}

#[tokio::test]
async fn a_strategy_that_stays_keeps_the_options_that_it_was_opened_with() {
    let home = Home::new();
    let driver = home.start();
    let mut selection = home.config.selection.clone();
    let own = Map::from_iter([("own".to_owned(), json!(true))]);
    selection.strategy_options = own.clone();
    let told = Arc::new(Told(Mutex::default(), home.strategy.clone()));
    let strategies: Arc<dyn Strategies> = told.clone();
    driver.select(selection.clone(), &strategies).unwrap();
    // It is the active one no more, and cannot be replaced.
    selection.allowed_strategies = vec![std::mem::replace(&mut selection.allocator, "other".to_owned())];
    let damaged = Arc::new(AllBut("packed", home.strategy.clone())) as Arc<dyn Strategies>;
    assert_eq!(driver.select(selection, &damaged).unwrap_err().len(), 1);
    told.0.lock().unwrap().clear();
    driver.machine_changed(home.topology.clone());
    assert_eq!(*told.0.lock().unwrap(), [("packed".to_owned(), own)]);
}

#[tokio::test]
async fn names_of_caches_outlast_hotplug() {
    let mut home = Home::new();
    home.config.mode = DeviceMode::Grouped(GroupBy::Llc);
    let rows = fixtures::rows(3, 2, 1);
    home.topology = fixtures::machine(&rows);
    let driver = home.start();
    let names = |driver: &Driver| -> Vec<String> {
        driver.devices().borrow().iter().map(|device| device.name.clone()).collect()
    };
    assert_eq!(names(&driver), ["cpudevllc000", "cpudevllc001", "cpudevllc002"]);
    let later: Vec<_> = rows.iter().filter(|row| row.cpu > 1).copied().collect();
    driver.machine_changed(fixtures::machine(&later));
    assert_eq!(names(&driver), ["cpudevllc001", "cpudevllc002"]);
    let claim = home.allocate("A", &[("cpudevllc002", "1")]);
    assert_eq!(prepare(&driver, claim).await.unwrap().devices[0].cpus, cpus("4"));
    driver.machine_changed(home.topology.clone());
    assert_eq!(names(&driver), ["cpudevllc000", "cpudevllc001", "cpudevllc002"]);
}

/// What the strategy was told of PCIe roots for the request of a claim whose devices `gpu0` and `nic0` must match.
async fn told_roots(roots: &[(&str, &[&str])], matches: &[&str]) -> Vec<usize> {
    let mut home = Home::new();
    for (name, list) in [("pci0000:00", "0-3"), ("pci0000:40", "4-7")] {
        home.topology.pcie_roots.push(PcieRoot { name: name.into(), cpus: cpus(list) });
    }
    for (device, roots) in roots {
        let roots = roots.iter().map(|&root| root.to_owned()).collect();
        home.api.roots.lock().unwrap().insert((*device).to_owned(), roots);
    }
    let told = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&told);
    let script = move |requests: &[Request]| *seen.lock().unwrap() = requests[0].pcie_roots.clone();
    *home.strategy.before.lock().unwrap() = Some(Box::new(script));
    let driver = home.start();
    let claim = home.allocate("A", &[(DEVICE, "2"), ("gpu0", ""), ("nic0", "")]);
    {
        let mut claims = home.api.claims.lock().unwrap();
        let object = claims.get_mut("A").unwrap();
        object.pcie_root_matches.push(matches.iter().map(|&request| request.to_owned()).collect());
        for (result, request) in object.results.as_mut().unwrap().iter_mut().zip(["r", "gpu", "nic"]) {
            result.request = request.into();
            if request != "r" {
                result.driver = "other".into();
            }
        }
    }
    prepare(&driver, claim).await.unwrap();
    let told = told.lock().unwrap();
    told.clone()
}

#[tokio::test]
async fn the_strategy_is_told_the_root_that_the_claims_other_devices_are_on() {
    let on_40: &[(&str, &[&str])] = &[("gpu0", &["pci0000:40"]), ("nic0", &["pci0000:00", "pci0000:40"])];
    assert_eq!(told_roots(on_40, &[]).await, [1]);
    assert_eq!(told_roots(on_40, &["r", "gpu", "nic"]).await, [1]);
    assert_eq!(told_roots(on_40, &["r", "nic"]).await, [0, 1]);
    // Not matched with CPUs; the device is in no slice; roots that differ or that the machine does not have.
    assert!(told_roots(on_40, &["gpu", "nic"]).await.is_empty());
    assert!(told_roots(&[("gpu0", &["pci0000:40"])], &[]).await.is_empty());
    assert!(told_roots(&[("gpu0", &["pci0000:40"]), ("nic0", &["pci0000:00"])], &[]).await.is_empty());
    assert!(told_roots(&[("gpu0", &["pci0000:80"]), ("nic0", &["pci0000:80"])], &[]).await.is_empty());
}

#[tokio::test]
async fn a_claim_is_released_by_hand_only_when_nobody_else_would() {
    let home = Home::new();
    let driver = home.start();
    assert!(matches!(driver.release("A").await, Err(ReleaseError::Unknown)));
    home.prepare(&driver, "A", "2").await.unwrap();
    let own = super::support::container("a", "p", &["DRA_CPUSET_A=0-1"], "");
    driver.create_container(&own).unwrap();
    assert!(matches!(driver.release("A").await, Err(ReleaseError::InUse(_))));
    driver.stop_container("a");
    assert!(matches!(driver.release("A").await, Err(ReleaseError::Claimed)));
    assert_eq!(driver.find_orphans().await, 0);
    home.api.claims.lock().unwrap().clear();
    *home.api.down.lock().unwrap() = true;
    assert!(matches!(driver.release("A").await, Err(ReleaseError::Unsure(_))));
    assert_eq!((driver.find_orphans().await, driver.status().orphaned.len()), (0, 0));
    *home.api.down.lock().unwrap() = false;
    assert_eq!((driver.find_orphans().await, driver.find_orphans().await), (1, 0));
    assert_eq!(driver.status().orphaned, ["A"]);
    let states = || driver.inventory().claims.iter().map(|claim| claim.state).collect::<Vec<_>>();
    assert_eq!(states(), [ClaimState::Orphan]);
    driver.release("A").await.unwrap();
    assert_eq!((held(&driver), driver.status().orphaned, states()), (vec![], vec![], vec![]));
}

#[tokio::test]
async fn an_explicit_floor_is_kept_and_taken_off_the_offer() {
    let mut home = Home::new();
    home.config.min_shared_cpus = MinSharedCpus::Explicit(3);
    let driver = home.start();
    assert_eq!(driver.devices().borrow()[0].capacity.unwrap().cpus, 5);
    assert!(home.prepare(&driver, "A", "6").await.unwrap_err().to_string().contains("minSharedCPUs is 3"));
    home.prepare(&driver, "A", "5").await.unwrap();
    assert_eq!(driver.status().shared, cpus("5-7"));
}
