//! What must hold on a node, whatever happens to its driver: the claims as the kubelet knows them, and the checks of
//! records, files, metrics and masks against them.

use super::cpus::{Cpus, list, parse};
use super::kubelet::ClaimRef;
use super::node::{Node, Pod};
use super::wait::{SOON, poll};
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the kubelet knows of a claim.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// Prepare was called and has no answer: the claim is there as a whole, or not at all.
    Asked,
    /// Prepare was answered: these CPUs are the claim's until unprepare.
    Prepared(Cpus),
    /// Unprepare was called and has no answer: the claim is there as it was, or not at all.
    Leaving(Cpus),
    /// The record was taken away while a container ran on these CPUs: it comes back.
    Wiped(Cpus),
}

/// A claim on the node.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Which.
    pub claim: ClaimRef,
    /// The device that it has CPUs of.
    pub device: &'static str,
    /// How many.
    pub count: usize,
    /// What the kubelet knows.
    pub known: Known,
    /// The pod that uses it.
    pub pod: Option<Pod>,
}

impl Entry {
    /// Whether a container of it exists.
    #[must_use]
    pub fn has_container(&self) -> bool {
        self.pod.as_ref().is_some_and(|pod| pod.containers.values().any(Result::is_ok))
    }

    /// Whether a call about it has no answer yet.
    #[must_use]
    pub fn is_in_doubt(&self) -> bool {
        matches!(self.known, Known::Asked | Known::Leaving(_))
    }

    fn allows(&self, recorded: Option<&Cpus>) -> bool {
        match (&self.known, recorded) {
            (Known::Prepared(_), None) => false,
            (Known::Asked | Known::Leaving(_) | Known::Wiped(_), None) => true,
            (Known::Asked, Some(cpus)) => cpus.len() == self.count,
            (Known::Prepared(own) | Known::Leaving(own) | Known::Wiped(own), Some(cpus)) => own == cpus,
        }
    }
}

/// All claims of a node, by UID.
#[derive(Debug, Clone, Default)]
pub struct Books(pub BTreeMap<String, Entry>);

impl Books {
    /// The records: each is of a known claim and says what it must; no CPU is in two of them, none is reserved or not
    /// of this machine. Holds at any moment, also while no driver runs.
    ///
    /// # Errors
    /// What does not hold.
    pub fn check_records(&self, node: &Node) -> Result<BTreeMap<String, Cpus>> {
        let recorded = node.recorded()?;
        for uid in recorded.keys() {
            ensure!(
                self.0.contains_key(uid),
                "claim {uid} is recorded, and it was unprepared or never asked for"
            );
        }
        for (uid, entry) in &self.0 {
            let found = recorded.get(uid);
            ensure!(
                entry.allows(found),
                "claim {uid} is recorded with {found:?}, but it is {:?}",
                entry.known
            );
        }
        let mut owned = parse(node.config.config["reservedCPUs"].as_str().unwrap_or(""))?;
        let machine = node.config.machine.online();
        for (uid, cpus) in &recorded {
            let twice: Cpus = owned.intersection(cpus).copied().collect();
            ensure!(twice.is_empty(), "CPUs {} of claim {uid} are reserved or another claim's", list(&twice));
            ensure!(cpus.is_subset(&machine), "claim {uid} has CPUs {}", list(cpus));
            owned.extend(cpus);
        }
        Ok(recorded)
    }

    /// All of it, while the driver serves and nobody calls it: records, the driver's own count of them, the masks of
    /// all containers, claims that are known by their containers alone, and that no file is left over.
    ///
    /// # Errors
    /// What does not hold.
    pub async fn check(&self, node: &Node) -> Result<()> {
        self.check_records(node)?;
        let back = || async {
            let recorded = node.recorded()?;
            let wiped = self.0.iter().filter(|(_, entry)| matches!(entry.known, Known::Wiped(_)));
            for (uid, _) in wiped {
                ensure!(recorded.contains_key(uid), "claim {uid} has a running container and no record");
            }
            Ok(())
        };
        poll("records of running containers", SOON, back).await?;
        // metrics and masks follow a record that has just come back
        let recorded = self.check_records(node)?;
        let claims: Vec<(&ClaimRef, &Cpus)> =
            recorded.iter().map(|(uid, cpus)| (&self.0[uid].claim, cpus)).collect();
        poll("books as recorded", SOON, || async { node.ledger_is(&claims).await.map(|_| ()) }).await?;
        for series in ["dra_cpu_conflicted_cpus", "dra_cpu_stranded_cpus"] {
            ensure!(node.metric(series).await? == 0.0, "{series} is not 0");
        }
        for (uid, _) in self.0.iter().filter(|(_, entry)| matches!(entry.known, Known::Prepared(_))) {
            has_metadata(node, uid).with_context(|| format!("claim {uid}"))?;
        }
        no_leftovers(node)
    }
}

/// A spec that mounts a file about a claim's devices.
struct MetadataSpec {
    name: String,
    uid: String,
    file: PathBuf,
}

fn metadata_specs(node: &Node) -> Result<Vec<MetadataSpec>> {
    let mut specs = Vec::new();
    for entry in std::fs::read_dir(node.cdi_dir()).into_iter().flatten() {
        let name = entry?.file_name().to_string_lossy().into_owned();
        let device = name.strip_prefix("dra.cpu_metadata_").and_then(|rest| rest.strip_suffix(".json"));
        let Some((uid, _request)) = device.and_then(|device| device.rsplit_once('_')) else { continue };
        let spec = read_json(&node.cdi_dir().join(&name))?;
        let file = spec.pointer("/devices/0/containerEdits/mounts/0/hostPath").and_then(Value::as_str);
        let file = file.with_context(|| format!("{name} mounts nothing"))?.into();
        specs.push(MetadataSpec { uid: uid.to_owned(), name, file });
    }
    Ok(specs)
}

/// A claim has files about its devices, they are mounted, and they are about this claim.
fn has_metadata(node: &Node, uid: &str) -> Result<()> {
    let specs: Vec<MetadataSpec> = metadata_specs(node)?.into_iter().filter(|spec| spec.uid == uid).collect();
    ensure!(!specs.is_empty(), "nothing mounts the claim's device metadata");
    for spec in specs {
        let of = read_json(&spec.file)?;
        ensure!(of["metadata"]["uid"] == uid, "{} is about {of}", spec.file.display());
    }
    Ok(())
}

fn read_json(path: &Path) -> Result<Value> {
    let text = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}

/// No file but those that belong there.
///
/// # Errors
/// Which one is left over.
pub fn no_leftovers(node: &Node) -> Result<()> {
    let only = |directory: &Path, belongs: &dyn Fn(&str) -> bool| -> Result<()> {
        let entries = match std::fs::read_dir(directory) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            entries => entries.with_context(|| format!("cannot list {}", directory.display()))?,
        };
        for entry in entries {
            let name = entry?.file_name().to_string_lossy().into_owned();
            ensure!(belongs(&name), "{name} is left in {}", directory.display());
        }
        Ok(())
    };
    let recorded = node.recorded()?;
    let metadata = metadata_specs(node)?;
    only(&node.cdi_dir(), &|name| {
        let of_metadata =
            || metadata.iter().any(|spec| spec.name == name && recorded.contains_key(&spec.uid));
        name.starts_with("dra.k8s.io-cpu_claim-") && name.ends_with(".json") || of_metadata()
    })?;
    let own = ["dracpu.lock", "dracpu.sock", "dra@dra.sock", "dra-device-metadata"];
    only(&node.path("k/plugins/dra.cpu"), &|name| own.contains(&name))?;
    let files = node.path("k/plugins/dra.cpu/dra-device-metadata");
    only(&files, &|name| metadata.iter().any(|spec| spec.file.starts_with(files.join(name))))?;
    only(&node.path("k/plugins_registry"), &|name| name == "dra.cpu@reg.sock")?;
    if node.config.own_cache {
        only(&node.path("cache"), &|name| name.ends_with(".cwasm"))?;
    }
    Ok(())
}
