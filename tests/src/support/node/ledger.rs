//! The driver's books, seen from outside: the records on disk, the metrics, and where containers run.

use super::super::cdi_reader::Spec;
use super::super::cpus::{Cpus, list, parse};
use super::super::kubelet::ClaimRef;
use super::super::runtime::ContainerState;
use super::super::wait::{SOON, poll};
use super::Node;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;

impl Node {
    /// What the claim specs on disk say: by claim UID, its CPUs.
    ///
    /// # Errors
    /// When a spec is not as runtimes want it, or not as the contract says.
    pub fn recorded(&self) -> Result<BTreeMap<String, Cpus>> {
        let mut recorded = BTreeMap::new();
        for entry in std::fs::read_dir(self.cdi_dir())? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or("").to_owned();
            let Some(uid) =
                name.strip_prefix("dra.k8s.io-cpu_claim-").and_then(|rest| rest.strip_suffix(".json"))
            else {
                continue;
            };
            recorded.insert(uid.to_owned(), self.record_of(uid).with_context(|| name.clone())?);
        }
        Ok(recorded)
    }

    /// What the spec of one claim says.
    ///
    /// # Errors
    /// As [`Self::recorded`], or when there is none.
    pub fn record_of(&self, uid: &str) -> Result<Cpus> {
        let path = self.cdi_dir().join(format!("dra.k8s.io-cpu_claim-{uid}.json"));
        let spec = Spec::read(&path, self.config.runtime.newest_cdi())?;
        ensure!(spec.kind == "dra.k8s.io/cpu", "kind {}", spec.kind);
        let [device] = spec.devices.as_slice() else { bail!("not one device") };
        ensure!(device.name == format!("claim-{uid}"), "device {}", device.name);
        let key = format!("DRA_CPUSET_{uid}=");
        let value = device.container_edits.env.iter().find_map(|entry| entry.strip_prefix(&key));
        parse(value.with_context(|| format!("no {key}…"))?)
    }

    /// Asserts, from outside, that the driver's books are these: claims with their CPUs (disjoint), the
    /// metrics that count them, and that each container runs where it should. Returns the shared pool.
    ///
    /// # Errors
    /// With the first thing that is not so.
    pub async fn ledger_is(&self, claims: &[(&ClaimRef, &Cpus)]) -> Result<Cpus> {
        let recorded = self.recorded()?;
        let wanted: BTreeMap<_, _> =
            claims.iter().map(|(claim, cpus)| (claim.uid.clone(), (*cpus).clone())).collect();
        ensure!(recorded == wanted, "recorded claims are {recorded:?}, not {wanted:?}");
        let all: Vec<u32> = recorded.values().flatten().copied().collect();
        let distinct: Cpus = all.iter().copied().collect();
        ensure!(all.len() == distinct.len(), "claims overlap: {recorded:?}");
        let reserved = parse(self.config.config["reservedCPUs"].as_str().unwrap_or(""))?;
        ensure!(distinct.is_disjoint(&reserved), "claims hold reserved CPUs: {recorded:?}");
        let online = self.config.machine.online();
        let taken: Cpus = reserved.union(&self.config.machine.isolated).copied().collect();
        let shared: Cpus =
            online.iter().filter(|cpu| !distinct.contains(cpu) && !taken.contains(cpu)).copied().collect();
        #[expect(clippy::cast_precision_loss, reason = "counts of CPUs and claims are small")]
        for (series, count) in [
            ("dra_cpu_allocated_cpus", distinct.len() as f64),
            ("dra_cpu_resource_claims_active", recorded.len() as f64),
        ] {
            let is = self.metric(series).await?;
            ensure!((is - count).abs() < 0.5, "{series} is {is}, not {count}");
        }
        // Masks that no hook brings come a moment later.
        poll("masks as recorded", SOON, || async { self.masks_are(&recorded, &shared) }).await?;
        Ok(shared)
    }

    fn masks_are(&self, recorded: &BTreeMap<String, Cpus>, shared: &Cpus) -> Result<()> {
        for (id, container) in self.runtime.containers() {
            if container.state == ContainerState::Exited {
                continue;
            }
            let uids =
                container.cdi_devices.iter().filter_map(|name| name.strip_prefix("dra.k8s.io/cpu=claim-"));
            let own: Cpus = uids.flat_map(|uid| recorded.get(uid).cloned().unwrap_or_default()).collect();
            let mask = self.runtime.effective_cpus(&id);
            let wanted = if own.is_empty() { shared } else { &own };
            ensure!(
                mask == *wanted,
                "container {} runs on {}, not {}",
                container.name,
                list(&mask),
                list(wanted)
            );
        }
        Ok(())
    }
}
