//! The stage: the embedded node.

use crate::surroundings::Surroundings;
use anyhow::{Context as _, Result};
use dracpu_cpuset::CpuSet;
use dracpu_model::event::{Event, NewClaim, NewContainer, Synced};
use dracpu_model::run::Stage;
use dracpu_model::seen::{Answer, Seen};
use dracpu_model::truth::{Truth, all_cpus_of, file_name, record_of};
use dracpu_tests::support::api_server::Resource;
use dracpu_tests::support::kubelet::ClaimRef;
use dracpu_tests::support::machine::Machine;
use dracpu_tests::support::node::NODE;
use dracpu_tests::support::runtime::{ContainerSpec, ContainerState, CpuChange, PodSpec};
use dracpu_tests::support::scheduler::{self, CAPACITY, DRIVER};
use futures::future::join_all;
use serde_json::json;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// For what the driver does on its own: masks that it pushes, claims that it asks about.
const A_MOMENT: Duration = Duration::from_secs(20);

pub(crate) struct Sockets {
    tokio: Runtime,
    surroundings: Surroundings,
    sandboxes: BTreeMap<String, String>,
    containers: BTreeMap<String, String>,
    cdi_devices: BTreeMap<String, Vec<String>>,
    asked: Instant,
}

fn claim_ref(uid: &str) -> ClaimRef {
    ClaimRef { namespace: "default".to_owned(), name: uid.to_lowercase(), uid: uid.to_owned() }
}

fn refused(why: &anyhow::Error) -> Answer {
    Answer { refused: Some(format!("{why:#}")), ..Answer::default() }
}

impl Sockets {
    pub(crate) fn start(machine: &Machine, own_mounts: bool, truth: &Truth) -> Result<Self> {
        let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let surroundings = tokio.block_on(Surroundings::start(machine, own_mounts, truth))?;
        Ok(Self {
            tokio,
            surroundings,
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
            cdi_devices: BTreeMap::new(),
            asked: Instant::now(),
        })
    }

    /// The claim object, as the event has it.
    fn put(&self, claim: &NewClaim) -> ClaimRef {
        let id = claim_ref(&claim.claim);
        if claim.requests.is_none()
            && self.surroundings.node.api.get(Resource::ResourceClaims, "default", &id.name).is_some()
        {
            return id;
        }
        let (mut results, mut config) = (Vec::new(), Vec::new());
        for request in claim.requests.iter().flatten() {
            let mut result = json!({
                "request": request.name, "driver": request.driver.as_deref().unwrap_or(DRIVER),
                "pool": request.pool.as_deref().unwrap_or(NODE), "device": request.device,
            });
            if let Some(cpus) = &request.cpus {
                result["consumedCapacity"] = json!({CAPACITY: cpus});
            }
            results.push(result);
            if let Some(cpuset) = &request.cpuset {
                config.push(scheduler::cpu_config("FromClaim", &[&request.name], &json!({"cpuset": cpuset})));
            }
        }
        for entry in claim.config.iter().flatten() {
            let requests: Vec<&str> = entry.requests.iter().map(String::as_str).collect();
            config.push(scheduler::cpu_config(&entry.source, &requests, &entry.cpu_config));
        }
        scheduler::write_claim(&self.surroundings.node.api, &id.name, Some(&id.uid), &results, &config)
    }

    fn prepare(&mut self, calls: Vec<Vec<ClaimRef>>) -> Result<BTreeMap<String, Answer>> {
        let node = &self.surroundings.node;
        let calls = calls.iter().map(|call| node.kubelet.prepare(DRIVER, call));
        let mut answers = BTreeMap::new();
        for call in self.tokio.block_on(join_all(calls)) {
            for (uid, answer) in call? {
                let answer = match answer {
                    Err(why) => Answer { refused: Some(why.to_string()), ..Answer::default() },
                    Ok(devices) => {
                        let ids = devices.iter().flat_map(|device| device.cdi_device_ids.clone()).collect();
                        self.cdi_devices.insert(uid.clone(), ids);
                        recorded(&self.files()?, &uid)
                    }
                };
                answers.insert(uid, answer);
            }
        }
        Ok(answers)
    }

    fn create(&mut self, new: &NewContainer) -> Result<Answer> {
        let id = self.create_on_node(new);
        match id {
            Err(why) => Ok(refused(&why)),
            Ok(id) => {
                let cpus = self.surroundings.node.runtime.container(&id).cpus.parse()?;
                self.containers.insert(new.container.clone(), id);
                Ok(Answer { cpus: Some(cpus), ..Answer::default() })
            }
        }
    }

    fn create_on_node(&mut self, new: &NewContainer) -> Result<String> {
        let node = &self.surroundings.node;
        let sandbox = match self.sandboxes.get(&new.pod) {
            Some(sandbox) => sandbox.clone(),
            None => {
                let pod = PodSpec {
                    name: new.pod.clone(),
                    namespace: "default".to_owned(),
                    uid: new.pod.clone(),
                    ..PodSpec::default()
                };
                let sandbox = self.tokio.block_on(node.runtime.run_pod_sandbox(pod))?;
                self.sandboxes.insert(new.pod.clone(), sandbox.clone());
                sandbox
            }
        };
        // A claim that is not prepared, or without devices, is asked for by the name that its device would have.
        let named = |uid: &String| {
            let prepared = self.cdi_devices.get(uid).filter(|devices| !devices.is_empty()).cloned();
            prepared.unwrap_or_else(|| vec![format!("dra.k8s.io/cpu=claim-{uid}")])
        };
        let devices = new.claims.iter().flat_map(named);
        let spec = ContainerSpec {
            name: new.container.clone(),
            env: new.env.clone(),
            cdi_devices: devices.collect(),
            ..ContainerSpec::default()
        };
        self.tokio.block_on(node.runtime.create_container(&sandbox, &spec))
    }

    /// A container whose claim was unprepared since it was created does not start: what it mounts is gone.
    fn start_container(&self, id: &str) -> Result<()> {
        match self.tokio.block_on(self.surroundings.node.runtime.start_container(id)) {
            Err(why) if why.to_string().starts_with("error mounting") => Ok(()),
            started => started,
        }
    }

    fn files(&self) -> Result<BTreeMap<String, String>> {
        let entries = std::fs::read_dir(self.surroundings.node.cdi_dir())?;
        entries
            .map(|entry| {
                let path = entry?.path();
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                Ok((name, std::fs::read_to_string(&path)?))
            })
            .filter(|file| file.as_ref().map_or(true, |(name, _)| name.starts_with("dra.k8s.io-cpu_claim-")))
            .collect()
    }

    /// The capacity of each device, as the API server has it.
    fn published(&self) -> BTreeMap<String, u64> {
        let slices = self.surroundings.node.api.list(Resource::ResourceSlices);
        let devices = slices.iter().filter_map(|slice| slice["spec"]["devices"].as_array()).flatten();
        let capacity = devices.filter_map(|device| {
            let cpus = device["capacity"][CAPACITY]["value"].as_str()?.parse().ok()?;
            Some((device["name"].as_str()?.to_owned(), cpus))
        });
        capacity.collect()
    }

    fn looks(&self, answer: Answer) -> Result<Seen> {
        let masks = self.containers.iter().map(|(name, id)| {
            let cpus: CpuSet = self.surroundings.node.runtime.container(id).cpus.parse()?;
            Ok((name.clone(), cpus))
        });
        Ok(Seen {
            answer,
            masks: Some(masks.collect::<Result<_>>()?),
            files: self.files()?,
            capacity: self.published(),
            ..Seen::default()
        })
    }

    fn answer(&mut self, event: &Event) -> Result<Answer> {
        let done = Answer::default();
        let id = |name: &String, of: &Self| {
            of.containers.get(name).cloned().with_context(|| format!("no container {name}"))
        };
        match event {
            Event::Prepare(prepare) => {
                let claims: Vec<ClaimRef> = prepare.all().map(|claim| self.put(claim)).collect();
                let single = prepare.claims.is_none();
                let calls = if prepare.parallel || single {
                    claims.into_iter().map(|claim| vec![claim]).collect()
                } else {
                    vec![claims]
                };
                let mut answers = self.prepare(calls)?;
                if single {
                    return Ok(answers.pop_first().context("an answer")?.1);
                }
                return Ok(Answer { results: Some(answers), ..done });
            }
            Event::Unprepare { claim } => {
                let claims = [claim_ref(claim)];
                let mut answers =
                    self.tokio.block_on(self.surroundings.node.kubelet.unprepare(DRIVER, &claims))?;
                if let Err(why) = answers.remove(claim).context("an answer")? {
                    return Ok(Answer { refused: Some(why.to_string()), ..done });
                }
            }
            Event::Delete { claim } => {
                self.surroundings.node.api.delete(
                    Resource::ResourceClaims,
                    "default",
                    &claim_ref(claim).name,
                );
            }
            Event::Release { claim } => {
                let verb = ["claims", "release", claim];
                let answer = self.tokio.block_on(self.surroundings.node.dracpu(&verb))?;
                let refused = (answer.code != 0).then_some(answer.stderr);
                return Ok(Answer { refused, ..done });
            }
            Event::Create(new) => return self.create(new),
            Event::Update { container, cpuset } => {
                let id = id(container, self)?;
                let asked = CpuChange { cpus: cpuset.clone().unwrap_or_default(), ..CpuChange::default() };
                if let Err(why) =
                    self.tokio.block_on(self.surroundings.node.runtime.update_container(&id, asked))
                {
                    return Ok(refused(&why));
                }
                return Ok(Answer {
                    cpus: Some(self.surroundings.node.runtime.container(&id).cpus.parse()?),
                    ..done
                });
            }
            Event::Start { container } => {
                let id = id(container, self)?;
                if self.surroundings.node.runtime.container(&id).state == ContainerState::Created {
                    self.start_container(&id)?;
                }
            }
            Event::Stop { container } => {
                let id = id(container, self)?;
                if self.surroundings.node.runtime.container(&id).state == ContainerState::Created {
                    self.start_container(&id)?;
                }
                self.tokio.block_on(self.surroundings.node.runtime.stop_container(&id))?;
            }
            Event::Remove { container } => {
                let id = id(container, self)?;
                self.tokio.block_on(self.surroundings.node.runtime.remove_container(&id))?;
                self.containers.remove(container);
            }
            Event::Reboot { records } => {
                self.tokio.block_on(self.surroundings.reboot(*records))?;
                self.sandboxes.clear();
                self.containers.clear();
                self.cdi_devices.clear();
            }
            other => {
                let refused = self.tokio.block_on(self.surroundings.play(other))?;
                return Ok(Answer { refused, ..done });
            }
        }
        Ok(done)
    }
}

fn recorded(files: &BTreeMap<String, String>, uid: &str) -> Answer {
    let record = files.get(&file_name(uid)).and_then(|text| record_of(text)).unwrap_or_default();
    let all = |key: &str| all_cpus_of(&record, key);
    Answer { cpus: Some(all("cpus")), blocked: all("blocked"), ..Answer::default() }
}

impl Stage for Sockets {
    fn play(&mut self, event: &Event) -> Result<Seen> {
        let answer = self.answer(event).with_context(|| format!("{event:?}"))?;
        self.asked = Instant::now();
        self.looks(answer)
    }

    fn look_again(&mut self, seen: &Seen) -> Result<Option<Seen>> {
        if self.asked.elapsed() > A_MOMENT {
            return Ok(None);
        }
        let changes = self.surroundings.node.runtime.changes();
        let mut changes = changes;
        self.tokio.block_on(async {
            // Whatever comes first: files and the daemon's own state announce no change.
            let _none = tokio::time::timeout(Duration::from_millis(20), changes.changed()).await;
        });
        self.looks(seen.answer.clone()).map(Some)
    }

    fn events(&self, event: Event, truth: &Truth) -> Vec<Event> {
        let runs = |name: &str| truth.containers.get(name).is_some_and(|c| !c.ended);
        let all = || {
            let live = truth.containers.iter().filter(|(_, container)| !container.ended);
            Event::Sync { containers: live.map(|(name, _)| Synced::Named(name.clone())).collect() }
        };
        match event {
            // A container must end before another one of its name is made.
            Event::Create(new) if truth.containers.contains_key(&new.container) => {
                let container = || new.container.clone();
                let stop = runs(&new.container).then(|| Event::Stop { container: container() });
                stop.into_iter()
                    .chain([Event::Remove { container: container() }, Event::Create(new.clone())])
                    .collect()
            }
            Event::Stop { ref container }
            | Event::Update { ref container, .. }
            | Event::Start { ref container } => {
                if runs(container) {
                    vec![event]
                } else {
                    vec![]
                }
            }
            Event::Remove { container } if runs(&container) => {
                vec![Event::Stop { container: container.clone() }, Event::Remove { container }]
            }
            Event::Sync { .. } => vec![all()],
            event if starts_driver(&event) => {
                let mut after = truth.clone();
                if let Event::Config { set } = &event {
                    after.config.extend(set.clone());
                }
                // A driver that would not start is another story.
                if after.nothing_shared() {
                    return vec![];
                }
                let Event::Reboot { records } = event else { return vec![event, all()] };
                let mut events = self.surroundings.well_again();
                let records = records && self.surroundings.can_change_boot_id();
                events.extend([Event::Reboot { records }, Event::Sync { containers: vec![] }]);
                events
            }
            Event::State {} => vec![],
            event => self.surroundings.events(event),
        }
    }
}

/// Whether the driver ends with it, and another one must be started.
fn starts_driver(event: &Event) -> bool {
    matches!(event, Event::Crash {} | Event::Config { .. } | Event::Reboot { .. })
}
