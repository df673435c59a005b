//! The node of a story: the driver among stand-ins for everything around it.

use super::api::MemoryApi;
use super::event::{Damage, Described, Event, NewClaim, NewContainer, Synced, What};
use super::runtime::Runtime;
use super::without::without;
use crate::cdi::{Access, Probe, SpecDir};
use crate::cli::Failure;
use crate::cli::strategy::catalogue_of;
use crate::clock::SystemClock;
use crate::config::{Config, ConfigFlags, StrategyConfig};
use crate::driver::{Claim, ClaimRef, Driver, DriverParts, LoadedOnce, Prepared, Strategies};
use crate::metadata::MetadataFiles;
use crate::reload::{self, Watched};
use crate::words::quoted;
use anyhow::{Context as _, anyhow, bail};
use dracpu_cpuset::CpuSet;
use dracpu_topology::Topology;
use futures::future::join_all;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) struct Node {
    flags: ConfigFlags,
    /// What `config` events have set so far.
    changes: Map<String, Value>,
    topology: Topology,
    /// CPUs that the machine's description reserves.
    reserved: CpuSet,
    offline: CpuSet,
    boots: u32,
    cdi_dir: PathBuf,
    api: Arc<MemoryApi>,
    faults: Arc<Faults>,
    runtime: Runtime,
    strategies: Loaded,
    driver: Arc<Driver>,
    /// That the driver has started with.
    config: Config,
}

/// Strategies are read and compiled once for a configuration of them and what their files hold: a story restarts the
/// driver often.
#[derive(Default)]
struct Loaded(Option<(Vec<StrategyConfig>, Watched, Arc<LoadedOnce>)>);

impl Loaded {
    fn of(&mut self, config: &Config) -> anyhow::Result<Arc<LoadedOnce>> {
        let configured = &config.selection.strategies;
        let files = Watched::components(&config.selection);
        let is_known = |(known, read, _): &&(Vec<_>, Watched, _)| known == configured && *read == files;
        if let Some((.., loaded)) = self.0.as_ref().filter(is_known) {
            return Ok(loaded.clone());
        }
        let loaded = Arc::new(LoadedOnce::new(catalogue_of(config).map_err(Failure::into_reason)?));
        self.0 = Some((configured.clone(), files, loaded.clone()));
        Ok(loaded)
    }
}

#[derive(Default)]
struct Faults {
    write: AtomicBool,
    remove: AtomicBool,
}

impl Probe for Faults {
    fn before(&self, access: Access) -> io::Result<()> {
        let fails = match access {
            Access::Write => &self.write,
            Access::Remove => &self.remove,
            _ => return Ok(()),
        };
        if fails.load(Ordering::Relaxed) {
            return Err(io::Error::other("the story makes it fail"));
        }
        Ok(())
    }
}

/// What a story is played on.
pub(super) struct Stage {
    pub(super) flags: ConfigFlags,
    pub(super) config: Config,
    pub(super) topology: Topology,
    pub(super) reserved: CpuSet,
    /// A directory of its own, for CDI specs.
    pub(super) cdi_dir: PathBuf,
}

impl Node {
    /// # Errors
    /// When the configuration does not work.
    pub(super) fn start(stage: Stage) -> anyhow::Result<Self> {
        let Stage { flags, config, topology, reserved, cdi_dir } = stage;
        let (api, faults) = (Arc::default(), Arc::default());
        let mut strategies = Loaded::default();
        let parts = Parts { topology: topology.clone(), reserved: &reserved, cdi_dir: &cdi_dir, boots: 0 };
        let driver = parts.start(config.clone(), &api, &faults, &mut strategies)?;
        Ok(Self {
            flags,
            changes: Map::new(),
            topology,
            reserved,
            offline: CpuSet::new(),
            boots: 0,
            cdi_dir,
            api,
            faults,
            runtime: Runtime::default(),
            strategies,
            driver,
            config,
        })
    }

    /// Plays one event: the fields of the answer that are the event's own.
    pub(super) async fn play(&mut self, event: Event) -> anyhow::Result<Map<String, Value>> {
        let mut answer = Answer::default();
        let mut push = false;
        match event {
            Event::Prepare { claim: Some(claim), name, requests, config, claims: None, parallel: _ } => {
                let claim = self.put(NewClaim { claim, name, requests, config });
                for (claim, result) in self.driver.prepare(vec![claim]).await {
                    let prepared = result.with_context(|| about(&claim.uid))?;
                    answer.prepared(&self.driver, &claim.uid, &prepared);
                }
            }
            Event::Prepare {
                claim: None,
                name: None,
                requests: None,
                config: None,
                claims: Some(claims),
                parallel,
            } => {
                let claims: Vec<ClaimRef> = claims.into_iter().map(|claim| self.put(claim)).collect();
                let calls: Vec<Vec<ClaimRef>> = if parallel {
                    claims.into_iter().map(|claim| vec![claim]).collect()
                } else {
                    vec![claims]
                };
                let answers = join_all(calls.into_iter().map(|call| self.driver.prepare(call))).await;
                let mut results = Map::new();
                for (claim, result) in answers.into_iter().flatten() {
                    let result = result.with_context(|| about(&claim.uid));
                    let result = result.map(|prepared| {
                        let mut answer = Answer::default();
                        answer.prepared(&self.driver, &claim.uid, &prepared);
                        answer.0
                    });
                    results.insert(claim.uid, outcome(result));
                }
                answer.set("results", results);
            }
            Event::Prepare { .. } => {
                bail!("prepare takes either `claim` with `name`, `requests` and `config`, or a list `claims`")
            }
            Event::Unprepare { claim } => {
                let claim = self.reference(claim, None);
                for (claim, result) in self.driver.unprepare(vec![claim]).await {
                    result.with_context(|| about(&claim.uid))?;
                }
                push = true;
            }
            Event::Delete { claim } => {
                if !self.api.delete(&claim) {
                    bail!("there is no claim object {claim}");
                }
            }
            Event::Release { claim } => {
                self.driver.release(&claim).await.with_context(|| about(&claim))?;
                push = true;
            }
            Event::Create(new) => self.create(new, &mut answer)?,
            Event::Update { container, cpuset } => {
                let wanted = cpuset.as_deref().map(cpus).transpose()?;
                let shown = self.runtime.shown(&self.runtime.get(&container)?.container);
                let updated = self.driver.update_container(&shown, wanted.as_ref());
                let known = self.runtime.get_mut(&container)?;
                if let Some(cpus) = updated.cpus.or(wanted) {
                    known.container.cpus = Some(cpus);
                }
                answer.mask(known.container.cpus.as_ref());
                answer.updates(self.runtime.apply(updated.updates));
            }
            Event::Start { container } => {
                let known = self.runtime.get_mut(&container)?;
                known.started = true;
                self.driver.start_container(&known.container);
            }
            Event::Stop { container } => {
                let known = self.runtime.get_mut(&container)?;
                // What is stopped was started; stories need not say so.
                if !std::mem::replace(&mut known.started, true) {
                    self.driver.start_container(&known.container);
                }
                let updates = self.driver.stop_container(&known.container.id);
                answer.updates(self.runtime.apply(updates));
            }
            Event::Remove { container } => {
                self.driver.remove_container(&self.runtime.get(&container)?.container.id);
                self.runtime.remove(&container);
            }
            Event::Sync { containers } => {
                let mut seen = Vec::new();
                for container in containers {
                    seen.push(self.synced(container)?);
                }
                let updates = self.driver.synchronize(seen);
                answer.updates(self.runtime.apply(updates));
            }
            Event::Offline { cpus } => {
                self.switch(&cpus, true)?;
                push = true;
            }
            Event::Online { cpus } => {
                self.switch(&cpus, false)?;
                push = true;
            }
            Event::Crash {} => self.restart(&self.changes.clone())?,
            Event::Reboot {} => {
                std::fs::remove_dir_all(&self.cdi_dir).or_else(ignore_missing)?;
                self.boots += 1;
                self.runtime.reboot();
                self.restart(&self.changes.clone())?;
            }
            Event::Config { set } => {
                let mut changes = self.changes.clone();
                changes.extend(set);
                self.restart(&changes)?;
                self.changes = changes;
            }
            Event::Reload { set } => self.reload(set, &mut answer)?,
            Event::State {} => answer.capacity(&self.driver),
            Event::Fail { what: What::Api, on } => self.api.fail(on),
            Event::Fail { what: What::CdiWrite, on } => self.faults.write.store(on, Ordering::Relaxed),
            Event::Fail { what: What::CdiRemove, on } => self.faults.remove.store(on, Ordering::Relaxed),
            Event::Spec { claim, how } => self.damage(&claim, how)?,
            Event::Runtime { nri } => {
                self.runtime.set_nri(&nri)?;
                self.driver.connected(self.runtime.names_devices());
            }
        }
        // What the driver asks outside the hooks.
        push |= self.driver.prove_once().await.settled > 0;
        self.driver.find_orphans().await;
        if push && self.runtime.bears_pushes() {
            answer.updates(self.runtime.apply(self.driver.take_pending_updates()));
        }
        answer.state(&self.driver);
        Ok(answer.0)
    }

    /// The claim object is there, allocated. One that the event does not describe stays as it was.
    fn put(&self, new: NewClaim) -> ClaimRef {
        let NewClaim { claim, name, requests, config } = new;
        let id = self.reference(claim, name);
        let known = self.api.claim_of(&id.uid).is_some();
        if known && requests.is_none() && config.is_none() {
            return id;
        }
        let (results, short): (Vec<_>, Vec<_>) = requests
            .unwrap_or_default()
            .into_iter()
            .map(|request| request.split(&self.config.node_name))
            .unzip();
        let config = config.unwrap_or_default().into_iter().map(Into::into);
        let config = config.chain(short.into_iter().flatten()).collect();
        self.api.put(Claim {
            id: id.clone(),
            results: Some(results),
            config,
            pcie_root_matches: Vec::new(),
            pod_claim_name: None,
            reserved_for: Vec::new(),
        });
        id
    }

    /// How the kubelet names a claim: as its object is named.
    fn reference(&self, uid: String, name: Option<String>) -> ClaimRef {
        if let (None, Some(claim)) = (&name, self.api.claim_of(&uid)) {
            return claim.id;
        }
        let name = name.unwrap_or_else(|| format!("default/{uid}"));
        let (namespace, name) = name.split_once('/').unwrap_or(("default", &name));
        ClaimRef { namespace: namespace.to_owned(), name: name.to_owned(), uid }
    }

    fn create(&mut self, new: NewContainer, answer: &mut Answer) -> anyhow::Result<()> {
        let NewContainer { container, pod, claims, env } = new;
        self.api.pod_uses(&pod, &claims);
        let mut container = self.runtime.inject(&container, &pod, env, &claims, &self.cdi_dir)?;
        let shown = self.runtime.shown(&container);
        let created = self.driver.create_container(&shown)?;
        self.driver.validate_container(&shown, Some(&created.cpus))?;
        answer.mask(Some(&created.cpus));
        container.cpus = Some(created.cpus);
        self.runtime.add(container);
        answer.updates(self.runtime.apply(created.updates));
        Ok(())
    }

    fn synced(&mut self, synced: Synced) -> anyhow::Result<crate::driver::Container> {
        let Described { container, pod, claims, env, cpuset } = match synced {
            Synced::Named(name) => return Ok(self.runtime.shown(&self.runtime.get(&name)?.container)),
            Synced::Described(described) => described,
        };
        self.api.pod_uses(&pod, &claims);
        let mut container = self.runtime.inject(&container, &pod, env, &claims, &self.cdi_dir)?;
        container.cpus = cpuset.as_deref().map(cpus).transpose()?;
        let shown = self.runtime.shown(&container);
        self.runtime.add(container);
        Ok(shown)
    }

    fn switch(&mut self, list: &str, off: bool) -> anyhow::Result<()> {
        let switched = cpus(list)?;
        let unknown = switched.difference(&self.topology.online());
        if !unknown.is_empty() {
            bail!("the machine has no CPUs {unknown}");
        }
        let offline = if off { self.offline.union(&switched) } else { self.offline.difference(&switched) };
        if self.topology.online().is_subset(&offline) {
            bail!("one CPU must stay online");
        }
        self.offline = offline;
        self.driver.machine_changed(without(&self.topology, &self.offline));
        Ok(())
    }

    /// A new process on what is left of the old one: files, and what is around it.
    fn restart(&mut self, changes: &Map<String, Value>) -> anyhow::Result<()> {
        let config = self.flags.load_with(changes)?;
        let parts = Parts {
            topology: without(&self.topology, &self.offline),
            reserved: &self.reserved,
            cdi_dir: &self.cdi_dir,
            boots: self.boots,
        };
        self.driver = parts.start(config.clone(), &self.api, &self.faults, &mut self.strategies)?;
        self.config = config;
        Ok(())
    }

    fn reload(&mut self, set: Map<String, Value>, answer: &mut Answer) -> anyhow::Result<()> {
        let mut changes = self.changes.clone();
        changes.extend(set);
        let (config, selection) = self.flags.load_again(self.config.mode, &changes)?;
        let restart = reload::changed_keys(&self.config, &config);
        if !restart.is_empty() {
            answer.set("needsRestart", restart);
        }
        let strategies: Arc<dyn Strategies> = self.strategies.of(&config)?;
        self.driver.select(selection, &strategies).map_err(|faults| {
            let faults: Vec<String> = faults.into_iter().map(|fault| fault.why).collect();
            anyhow!("not reloaded: {}", faults.join("; "))
        })?;
        self.changes = changes;
        Ok(())
    }

    fn damage(&self, claim: &str, how: Damage) -> anyhow::Result<()> {
        let path = self.cdi_dir.join(crate::cdi::spec_file_name(&claim.into())?);
        let text = std::fs::read_to_string(&path).with_context(|| format!("claim {claim} has no spec"))?;
        let damaged = match how {
            Damage::Truncate => text.chars().take(text.chars().count() / 2).collect(),
            Damage::Garble => "\u{0}garbled\u{7f}".repeat(20),
            Damage::Newer => text.replacen(r#"{\"v\":1,"#, r#"{\"v\":1000,"#, 1),
            Damage::Remove => return Ok(std::fs::remove_file(path)?),
        };
        Ok(std::fs::write(&path, damaged)?)
    }
}

/// What a refusal is about.
fn about(claim: &str) -> String {
    match claim {
        "" => "the claim".to_owned(),
        uid => format!("claim {}", quoted(uid)),
    }
}

struct Parts<'a> {
    topology: Topology,
    reserved: &'a CpuSet,
    cdi_dir: &'a std::path::Path,
    boots: u32,
}

impl Parts<'_> {
    fn start(
        self,
        mut config: Config,
        api: &Arc<MemoryApi>,
        faults: &Arc<Faults>,
        strategies: &mut Loaded,
    ) -> anyhow::Result<Arc<Driver>> {
        config.settle_reserved(&self.topology, self.reserved);
        let driver = Driver::start(DriverParts {
            topology: self.topology,
            strategies: strategies.of(&config)?,
            api: api.clone(),
            specs: SpecDir::new(self.cdi_dir.to_owned(), faults.clone()),
            metadata: MetadataFiles::new(
                self.cdi_dir.with_file_name("metadata"),
                self.cdi_dir.to_owned(),
                faults.clone(),
            ),
            probe: faults.clone(),
            boot_id: format!("boot-{}", self.boots),
            clock: Arc::new(SystemClock),
            // A story need not speak of the runtime.
            containers_within: None,
            config,
        })?;
        driver.strategy().map_err(|why| anyhow!(why))?;
        Ok(driver)
    }
}

/// What an event came to, as a line of output.
pub(super) fn outcome(result: anyhow::Result<Map<String, Value>>) -> Value {
    let mut line = Map::new();
    match result {
        Ok(answer) => {
            if !answer.contains_key("results") {
                line.insert("ok".to_owned(), true.into());
            }
            line.extend(answer);
        }
        Err(error) => {
            line.insert("ok".to_owned(), false.into());
            line.insert("error".to_owned(), format!("{error:#}").into());
        }
    }
    line.into()
}

/// The fields of an answer that are not an error.
#[derive(Default)]
struct Answer(Map<String, Value>);

impl Answer {
    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.0.insert(key.to_owned(), value.into());
    }

    fn mask(&mut self, cpus: Option<&CpuSet>) {
        if let Some(cpus) = cpus {
            self.set("cpus", cpus.to_string());
        }
    }

    fn prepared(&mut self, driver: &Driver, uid: &str, prepared: &Prepared) {
        let mut cpus = CpuSet::new();
        for device in &prepared.devices {
            cpus.extend_from(&device.cpus);
        }
        self.set("cpus", cpus.to_string());
        let blocked = driver.claim(uid).map(|(booking, _)| booking.blocked()).unwrap_or_default();
        if !blocked.is_empty() {
            self.set("blocked", blocked.to_string());
        }
    }

    fn updates(&mut self, updates: BTreeMap<String, CpuSet>) {
        let all = self.0.entry("updates").or_insert_with(|| json!({}));
        if let Value::Object(all) = all {
            all.extend(updates.into_iter().map(|(name, cpus)| (name, cpus.to_string().into())));
        }
    }

    fn capacity(&mut self, driver: &Driver) {
        let devices = driver.devices();
        let devices = devices.borrow();
        let capacity =
            devices.iter().filter_map(|device| Some((device.name.clone(), device.capacity?.cpus.into())));
        self.set("capacity", capacity.collect::<Map<String, Value>>());
    }

    fn state(&mut self, driver: &Driver) {
        let status = driver.status();
        self.updates(BTreeMap::new());
        self.set("shared", status.shared.to_string());
        let claims = status.claims.into_iter().map(|(uid, cpus)| (uid, cpus.to_string().into()));
        self.set("claims", claims.collect::<Map<String, Value>>());
        self.set("unhealthy", status.unhealthy);
        self.set("stranded", status.stranded);
        self.set("orphans", status.orphaned);
        self.set("conflicted", status.conflicted);
    }
}

fn cpus(list: &str) -> anyhow::Result<CpuSet> {
    list.parse().with_context(|| format!("`{list}` is not a CPU list"))
}

fn ignore_missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}
