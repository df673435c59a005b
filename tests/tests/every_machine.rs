//! Every machine that ships, grouped in every way: the API server takes its slices, and `packed` gives out all that
//! they offer, up to the floor of the shared pool.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use dracpu::cdi::{NoProbe, SpecDir};
use dracpu::clock::SystemClock;
use dracpu::config::{Config, ConfigFlags, DeviceMode, GroupBy};
use dracpu::driver::{
    AllocationResult, Api, ApiError, Claim, ClaimRef, ClaimStatus, Driver, DriverParts, LoadedOnce,
};
use dracpu::metadata::MetadataFiles;
use dracpu::slices::Pool;
use dracpu::strategy::Catalogue;
use dracpu_cpuset::CpuSet;
use dracpu_tests::support::api_server::faults_of_slice;
use dracpu_topology::{Topology, examples, machine};
use futures::future::{BoxFuture, ready};
use k8s_openapi::api::resource::v1::ResourceSlice;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// Claims by name.
#[derive(Default)]
struct Claims(Mutex<BTreeMap<String, Claim>>);

impl Api for Claims {
    fn claim<'a>(&'a self, _: &'a str, name: &'a str) -> BoxFuture<'a, Result<Claim, ApiError>> {
        Box::pin(ready(self.0.lock().unwrap().get(name).cloned().ok_or(ApiError::NotFound)))
    }

    fn claims_of_pod<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Vec<Claim>, ApiError>> {
        Box::pin(ready(Ok(Vec::new())))
    }

    fn pcie_roots<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        _: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<BTreeSet<String>, ApiError>> {
        Box::pin(ready(Ok(BTreeSet::new())))
    }

    fn write_status<'a>(&'a self, _: &'a ClaimStatus) -> BoxFuture<'a, Result<(), ApiError>> {
        Box::pin(ready(Ok(())))
    }
}

struct Node {
    driver: Arc<Driver>,
    claims: Arc<Claims>,
    config: Config,
    _records: tempfile::TempDir,
}

impl Node {
    fn new(topology: &Topology, mode: DeviceMode, strategies: &Arc<LoadedOnce>) -> Self {
        let mut config = ConfigFlags::default().load().unwrap();
        config.mode = mode;
        config.node_name = "n".to_owned();
        config.expose_pcie_roots = true;
        let records = tempfile::tempdir().unwrap();
        let claims = Arc::new(Claims::default());
        let driver = Driver::start(DriverParts {
            config: config.clone(),
            topology: topology.clone(),
            strategies: strategies.clone(),
            api: claims.clone(),
            specs: SpecDir::new(records.path().to_owned(), Arc::new(NoProbe)),
            metadata: MetadataFiles::new(
                records.path().join("metadata"),
                records.path().to_owned(),
                Arc::new(NoProbe),
            ),
            probe: Arc::new(NoProbe),
            boot_id: "boot".to_owned(),
            clock: Arc::new(SystemClock),
            containers_within: None,
        });
        Self { driver: driver.unwrap(), claims, config, _records: records }
    }

    /// A claim for devices, each with so many CPUs where it has a capacity.
    async fn prepare(&self, devices: &[(&str, Option<u32>)]) -> Result<CpuSet, String> {
        let number = self.claims.0.lock().unwrap().len();
        let name = format!("claim-{number}");
        let id = ClaimRef { uid: name.clone(), namespace: "ns".to_owned(), name: name.clone() };
        let result = |(device, cpus): &(&str, Option<u32>)| AllocationResult {
            request: "r".to_owned(),
            driver: dracpu::DRIVER_NAME.to_owned(),
            pool: "n".to_owned(),
            device: (*device).to_owned(),
            share_id: None,
            admin_access: false,
            consumed_cpus: cpus.map(|cpus| cpus.to_string()),
        };
        let results = Some(devices.iter().map(result).collect());
        let claim = Claim {
            id: id.clone(),
            results,
            config: Vec::new(),
            pcie_root_matches: Vec::new(),
            pod_claim_name: None,
            reserved_for: Vec::new(),
        };
        self.claims.0.lock().unwrap().insert(name, claim);
        let (_, answer) = self.driver.prepare(vec![id]).await.remove(0);
        let prepared = answer.map_err(|error| format!("{:#}", anyhow::Error::new(error)))?;
        Ok(prepared.devices.iter().flat_map(|device| device.cpus.iter()).collect())
    }
}

/// The device mode of each way to publish a machine.
fn modes() -> impl Iterator<Item = DeviceMode> {
    GroupBy::ALL.into_iter().map(DeviceMode::Grouped).chain([DeviceMode::Individual])
}

/// Claims of half of what is left of a device, again and again, so that all sizes occur.
async fn give_out_all(node: &Node, isolated: &CpuSet, what: &str) {
    let devices = node.driver.devices().borrow().clone();
    let mut held = CpuSet::new();
    let mut refused = Vec::new();
    for device in devices.iter() {
        let mut left = device.capacity.map_or(1, |capacity| capacity.cpus);
        while left > 0 {
            let count = left.div_ceil(2);
            match node.prepare(&[(&device.name, device.capacity.map(|_| count))]).await {
                Ok(cpus) => {
                    assert_eq!(u32::try_from(cpus.len()).unwrap(), count, "{what}: {}", device.name);
                    assert!(cpus.is_subset(&device.cpus), "{what}: {cpus} is not of {}", device.name);
                    assert!(cpus.is_disjoint(&held), "{what}: {cpus} was given twice");
                    held.extend_from(&cpus);
                    left -= count;
                }
                Err(why) => {
                    refused.push(why);
                    break;
                }
            }
        }
    }
    let status = node.driver.status();
    assert_eq!(status.allocated, held, "{what}");
    assert!(!status.shared.is_empty() && status.shared.is_disjoint(&held), "{what}: {}", status.shared);
    // What no device stands for stays with everybody; else the last CPU does, by the rule's name.
    let published: CpuSet = devices.iter().flat_map(|device| device.cpus.iter()).collect();
    if status.online.difference(&published).is_subset(isolated) {
        assert_eq!((status.shared.len(), refused.len()), (1, 1), "{what}: {refused:?}");
        assert!(refused[0].contains("minSharedCPUs"), "{what}: {}", refused[0]);
    } else {
        assert!(refused.is_empty(), "{what}: {refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_are_valid_and_all_that_they_offer_can_be_had() {
    let strategies = Arc::new(LoadedOnce::new(Catalogue::new(&[]).unwrap()));
    for example in examples() {
        let topology = machine::load(example.name).unwrap().topology;
        for mode in modes() {
            let what = format!("{} {mode:?}", example.name);
            let node = Node::new(&topology, mode, &strategies);
            let devices = node.driver.devices().borrow().clone();
            assert!(!devices.is_empty(), "{what}");
            for spec in Pool::from(&node.config).desired(&devices) {
                let metadata = ObjectMeta { generate_name: Some("x-".to_owned()), ..ObjectMeta::default() };
                assert_eq!(faults_of_slice(&ResourceSlice { metadata, spec }), [""; 0], "{what}");
            }
            give_out_all(&node, &topology.isolated, &what).await;
        }
    }
}
