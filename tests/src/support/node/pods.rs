//! Claims and pods: what scheduler, kubelet and runtime do one after another.

use super::super::api_server::Resource;
use super::super::kubelet::{Answers, ClaimRef, Device, Health};
use super::super::runtime::{ContainerSpec, PodSpec};
use super::super::scheduler::{self, Ask, DRIVER};
use super::super::wait::{SOON, poll};
use super::{NODE, Node};
use anyhow::{Context, Result, anyhow};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// A container of a pod.
#[derive(Debug, Clone, Default)]
pub struct ContainerAsk {
    /// Its name.
    pub name: String,
    /// Names of the claims that it uses.
    pub claims: Vec<String>,
    /// Variables of the pod spec.
    pub env: Vec<String>,
    /// Its CPU limit, as CFS quota and period.
    pub quota: Option<(i64, u64)>,
}

impl ContainerAsk {
    /// A container with claims.
    #[must_use]
    pub fn new(name: &str, claims: &[&ClaimRef]) -> Self {
        let claims = claims.iter().map(|claim| claim.name.clone()).collect();
        Self { name: name.to_owned(), claims, ..Self::default() }
    }
}

/// A pod that runs, in whole or in part.
#[derive(Debug, Clone)]
pub struct Pod {
    /// The pod object's name.
    pub name: String,
    /// Its UID.
    pub uid: String,
    /// The sandbox.
    pub sandbox: String,
    /// What it uses.
    pub claims: Vec<ClaimRef>,
    /// By name: the container's id, or why it could not be created.
    pub containers: BTreeMap<String, Result<String, String>>,
    asks: Vec<ContainerAsk>,
}

impl Pod {
    /// A container's id.
    ///
    /// # Panics
    /// When it was not created.
    #[must_use]
    pub fn id(&self, container: &str) -> String {
        self.containers[container].clone().unwrap()
    }
}

impl Node {
    /// The published devices; waits for a complete pool.
    ///
    /// # Errors
    /// When there is none, soon.
    pub async fn devices(&self) -> Result<BTreeMap<String, Value>> {
        poll("complete pool", SOON, || async { scheduler::pool(&self.api, NODE) }).await
    }

    /// Lets the scheduler allocate a claim.
    ///
    /// # Errors
    /// When no published device fits.
    pub async fn allocate(&self, name: &str, asks: &[Ask]) -> Result<ClaimRef> {
        self.devices().await?;
        scheduler::allocate(&self.api, NODE, name, asks)
    }

    /// An allocated claim of one request, as it is told: `cpus` is any text for the quantity.
    #[must_use]
    pub fn write_claim(&self, name: &str, device: &str, cpus: &str, config: &[Value]) -> ClaimRef {
        let result = json!({"request": "r", "driver": DRIVER, "pool": NODE, "device": device,
                            "consumedCapacity": {scheduler::CAPACITY: cpus}});
        scheduler::write_claim(&self.api, name, None, &[result], config)
    }

    /// NodePrepareResources for one claim, as for a pod that uses only it.
    ///
    /// # Errors
    /// The driver's refusal, as the kubelet would show it.
    pub async fn prepare(&self, claim: &ClaimRef) -> Result<Vec<Device>> {
        let mut answers = self.prepare_all(std::slice::from_ref(claim)).await?;
        let answer = answers.remove(&claim.uid).context("an answer for the claim")?;
        answer.map_err(|why| anyhow!("{why}"))
    }

    /// NodePrepareResources for the claims of a pod.
    ///
    /// # Errors
    /// When the call fails as a whole. Refusals of single claims are in the answers.
    pub async fn prepare_all(&self, claims: &[ClaimRef]) -> Result<Answers<Vec<Device>>> {
        let answers = self.kubelet.prepare(DRIVER, claims).await?;
        let prepared = answers.iter().filter_map(|(uid, answer)| Some((uid.clone(), answer.clone().ok()?)));
        self.prepared.lock().unwrap().extend(prepared);
        Ok(answers)
    }

    /// How the devices of a prepared claim are, as a pod's `allocatedResourcesStatus` shows it: by
    /// `resourceID`, which is a device's first CDI id. Of devices with one id the worst.
    ///
    /// # Panics
    /// When the claim is not prepared.
    #[must_use]
    pub fn resource_health(&self, claim: &ClaimRef) -> BTreeMap<String, (Health, String)> {
        let mut status: BTreeMap<String, (Health, String)> = BTreeMap::new();
        for device in &self.prepared.lock().unwrap()[&claim.uid] {
            let Device { pool_name, device_name, cdi_device_ids, .. } = device;
            let id = cdi_device_ids.first().cloned();
            let id = id.unwrap_or_else(|| format!("{DRIVER}/{pool_name}/{device_name}"));
            let health = self.kubelet.device_health(DRIVER, pool_name, device_name);
            let worst = status.get(&id).cloned().into_iter().chain([health]).max();
            status.extend(worst.map(|worst| (id, worst)));
        }
        status
    }

    /// NodeUnprepareResources for one claim.
    ///
    /// # Errors
    /// The driver's refusal.
    pub async fn unprepare(&self, claim: &ClaimRef) -> Result<()> {
        let mut answers = self.unprepare_all(std::slice::from_ref(claim)).await?;
        let answer = answers.remove(&claim.uid).context("an answer for the claim")?;
        answer.map_err(|why| anyhow!("{why}"))
    }

    /// NodeUnprepareResources for the claims of a pod.
    ///
    /// # Errors
    /// When the call fails as a whole. Refusals of single claims are in the answers.
    pub async fn unprepare_all(&self, claims: &[ClaimRef]) -> Result<Answers<()>> {
        let answers = self.kubelet.unprepare(DRIVER, claims).await?;
        let gone = |uid: &String| answers.get(uid).is_some_and(Result::is_ok);
        self.prepared.lock().unwrap().retain(|uid, _| !gone(uid));
        Ok(answers)
    }

    /// Runs a pod. A container that cannot be created does not stop the others.
    ///
    /// # Errors
    /// When a claim cannot be prepared, or the sandbox cannot be run.
    pub async fn run_pod(
        &self,
        name: &str,
        claims: &[&ClaimRef],
        containers: &[ContainerAsk],
    ) -> Result<Pod> {
        let uid = self.write_pod(name, claims, containers);
        let missing: Vec<ClaimRef> = {
            let prepared = self.prepared.lock().unwrap();
            claims
                .iter()
                .filter(|claim| !prepared.contains_key(&claim.uid))
                .map(|claim| (*claim).clone())
                .collect()
        };
        if !missing.is_empty() {
            for answer in self.prepare_all(&missing).await?.into_values() {
                answer.map_err(|why| anyhow!("FailedPrepareDynamicResources: {why}"))?;
            }
        }
        let spec = PodSpec {
            name: name.to_owned(),
            namespace: "default".to_owned(),
            uid: uid.clone(),
            annotations: BTreeMap::new(),
            quota: sum_of_quotas(containers),
        };
        let sandbox = self.runtime.run_pod_sandbox(spec).await?;
        let mut pod = Pod {
            name: name.to_owned(),
            uid,
            sandbox,
            claims: claims.iter().map(|claim| (*claim).clone()).collect(),
            containers: BTreeMap::new(),
            asks: containers.to_vec(),
        };
        for ask in containers {
            self.begin_container(&mut pod, &ask.name).await?;
        }
        Ok(pod)
    }

    /// Runs a pod with one container whose claim another driver prepared: the kubelet knows its devices.
    ///
    /// # Errors
    /// When the sandbox cannot be run.
    pub async fn run_pod_with_cdi(
        &self,
        name: &str,
        claim: &ClaimRef,
        cdi_devices: &[String],
    ) -> Result<Pod> {
        let device = Device {
            request_names: Vec::new(),
            pool_name: NODE.to_owned(),
            device_name: "any".to_owned(),
            cdi_device_ids: cdi_devices.to_vec(),
            share_id: None,
        };
        self.prepared.lock().unwrap().insert(claim.uid.clone(), vec![device]);
        self.run_pod(name, &[claim], &[ContainerAsk::new("app", &[claim])]).await
    }

    /// Creates and starts a container of a pod: at first, after a refusal, or after its end.
    ///
    /// # Errors
    /// When the pod has no such container. A refusal is kept in the pod.
    pub async fn begin_container(&self, pod: &mut Pod, name: &str) -> Result<()> {
        let ask = pod.asks.iter().find(|ask| ask.name == name).context("a container of the pod")?;
        let mut cdi_devices = Vec::new();
        for claim in pod.claims.iter().filter(|claim| ask.claims.contains(&claim.name)) {
            let prepared = self.prepared.lock().unwrap();
            let devices = prepared.get(&claim.uid).context("the claim is prepared")?;
            cdi_devices.extend(devices.iter().flat_map(|device| device.cdi_device_ids.clone()));
        }
        let spec = ContainerSpec {
            name: name.to_owned(),
            env: ask.env.clone(),
            cdi_devices,
            quota: ask.quota,
            ..Default::default()
        };
        let created = async {
            let id = self.runtime.create_container(&pod.sandbox, &spec).await?;
            self.runtime.start_container(&id).await?;
            anyhow::Ok(id)
        };
        let outcome = created.await.map_err(|error| format!("{error:#}"));
        pod.containers.insert(name.to_owned(), outcome);
        Ok(())
    }

    /// Ends a container and begins it anew, as the kubelet does; the old one is removed afterwards.
    ///
    /// # Errors
    /// When the container does not run.
    pub async fn restart_container(&self, pod: &mut Pod, name: &str) -> Result<()> {
        let old = pod.id(name);
        self.runtime.stop_container(&old).await?;
        self.begin_container(pod, name).await?;
        self.runtime.remove_container(&old).await
    }

    /// Ends a pod: containers, sandbox, unprepare, objects.
    ///
    /// # Errors
    /// When a claim cannot be unprepared.
    pub async fn terminate_pod(&self, pod: &Pod) -> Result<()> {
        self.runtime.remove_pod_sandbox(&pod.sandbox).await?;
        if !pod.claims.is_empty() {
            for (claim, answer) in self.unprepare_all(&pod.claims).await? {
                answer.map_err(|why| anyhow!("claim {claim}: {why}"))?;
            }
        }
        for claim in &pod.claims {
            self.api.delete(Resource::ResourceClaims, &claim.namespace, &claim.name);
        }
        self.api.delete(Resource::Pods, "default", &pod.name);
        Ok(())
    }

    fn write_pod(&self, name: &str, claims: &[&ClaimRef], containers: &[ContainerAsk]) -> String {
        let containers: Vec<_> = containers
            .iter()
            .map(|ask| {
                let claims: Vec<_> = ask.claims.iter().map(|claim| json!({"name": claim})).collect();
                json!({"name": ask.name, "image": "app", "resources": {"claims": claims}})
            })
            .collect();
        let used: Vec<_> =
            claims.iter().map(|claim| json!({"name": claim.name, "resourceClaimName": claim.name})).collect();
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "default", "name": name},
            "spec": {"nodeName": NODE, "resourceClaims": used, "containers": containers},
        });
        let uid = self.api.put(Resource::Pods, pod)["metadata"]["uid"].as_str().unwrap().to_owned();
        for claim in claims {
            self.api.change(Resource::ResourceClaims, &claim.namespace, &claim.name, |object| {
                object["status"]["reservedFor"] = json!([{"resource": "pods", "name": name, "uid": uid}]);
            });
        }
        uid
    }
}

/// The pod's quota: none as soon as one of its containers has none.
fn sum_of_quotas(containers: &[ContainerAsk]) -> Option<(i64, u64)> {
    const PERIOD: u64 = 100_000;
    let micros = |(quota, period): (i64, u64)| quota * 100_000 / i64::try_from(period).unwrap();
    let quotas: Option<Vec<i64>> = containers.iter().map(|ask| ask.quota.map(micros)).collect();
    quotas.filter(|all| !all.is_empty()).map(|all| (all.into_iter().sum(), PERIOD))
}
