//! Claims and containers that come and go on a node, several at a time, as its driver may die at any moment. What the
//! kubelet is told goes into the [`books`](super::books).

use super::api_server::Resource;
use super::books::{Books, Entry, Known};
use super::node::{ContainerAsk, Node, Pod};
use super::random::Random;
use anyhow::{Context, Result, anyhow, ensure};
use futures::future::{LocalBoxFuture, join_all};
use std::collections::BTreeMap;

/// Claims of each device: with three CPUs each, CPUs are left for all others.
const MOST_CLAIMS: usize = 4;
const MOST_CPUS: usize = 3;
/// Pods without a claim.
const MOST_PLAIN: usize = 3;

/// What went wrong with a call.
#[derive(Debug)]
pub enum Trouble {
    /// The driver did not answer: it is dead, or at fault.
    NoAnswer(anyhow::Error),
    /// The driver answered what it must not.
    Fault(anyhow::Error),
}

/// What is done most in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mostly {
    /// Claims are prepared.
    Prepare,
    /// Claims are unprepared.
    Unprepare,
    /// Containers are created.
    Create,
    /// Containers are ended.
    Stop,
    /// Any of these.
    Anything,
}

/// The claims and pods of a node.
pub struct Load {
    /// The claims.
    pub books: Books,
    plain: Vec<Pod>,
    /// Claims of each device.
    devices: BTreeMap<&'static str, usize>,
    made: u64,
    random: Random,
}

/// What came of one operation on things that were taken out of the load.
#[derive(Default)]
struct Done {
    entries: Vec<Entry>,
    /// The devices of claims that are no more.
    left: Vec<&'static str>,
    plain: Vec<Pod>,
    trouble: Vec<Trouble>,
}

type Operation<'a> = LocalBoxFuture<'a, Done>;

impl Load {
    /// None yet, on these devices.
    #[must_use]
    pub fn new(devices: &[&'static str], random: Random) -> Self {
        let devices = devices.iter().map(|device| (*device, 0)).collect();
        Self { books: Books::default(), plain: Vec::new(), devices, made: 0, random }
    }

    /// A few operations at once. What is in doubt since the driver's last death is settled first.
    pub async fn batch(&mut self, node: &Node, mostly: Mostly) -> Vec<Trouble> {
        let mut operations: Vec<Operation<'_>> = Vec::new();
        for _ in 0..2 + self.random.below(3) {
            let operation = match self.random.below(6) {
                // others may have nothing to do
                0 | 1 if mostly == Mostly::Prepare => self.prepare_new(node),
                0..3 => self.directed(node, mostly),
                3 => self.claim_operation(node),
                4 => self.plain_operation(node),
                _ => self.prepare_new(node),
            };
            operations.extend(operation);
        }
        let mut trouble = Vec::new();
        for done in join_all(operations).await {
            self.books.0.extend(done.entries.into_iter().map(|entry| (entry.claim.uid.clone(), entry)));
            self.plain.extend(done.plain);
            for device in done.left {
                *self.devices.entry(device).or_default() -= 1;
            }
            trouble.extend(done.trouble);
        }
        trouble
    }

    /// Takes the record of a claim away whose container runs. False: there is none.
    ///
    /// # Errors
    /// When it cannot be taken away.
    pub fn wipe_one(&mut self, node: &Node) -> Result<bool> {
        let alive = node.runtime.containers();
        for entry in self.books.0.values_mut() {
            let runs = entry
                .pod
                .iter()
                .flat_map(|pod| pod.containers.values().flatten())
                .any(|id| alive.contains_key(id));
            if let (Known::Prepared(cpus), true) = (&entry.known, runs) {
                let name = format!("dra.k8s.io-cpu_claim-{}.json", entry.claim.uid);
                std::fs::remove_file(node.cdi_dir().join(name)).context("no record to take away")?;
                entry.known = Known::Wiped(cpus.clone());
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Ends every pod and unprepares every claim.
    ///
    /// # Errors
    /// The first that cannot be ended.
    pub async fn end_all(&mut self, node: &Node) -> Result<()> {
        let all = std::mem::take(&mut self.books.0).into_values().map(|entry| unprepare(node, entry));
        for done in join_all(all).await {
            if let Some(Trouble::NoAnswer(error) | Trouble::Fault(error)) = done.trouble.into_iter().next() {
                return Err(error);
            }
        }
        for pod in self.plain.drain(..) {
            node.terminate_pod(&pod).await?;
        }
        Ok(())
    }

    fn directed<'a>(&mut self, node: &'a Node, mostly: Mostly) -> Option<Operation<'a>> {
        match mostly {
            Mostly::Prepare => self.prepare_new(node),
            Mostly::Unprepare => self.take(|_| true).map(|entry| unprepare(node, entry)),
            Mostly::Create => {
                let bare =
                    |entry: &Entry| matches!(entry.known, Known::Prepared(_)) && !entry.has_container();
                match self.take(bare) {
                    Some(entry) => Some(self.contain(node, entry)),
                    None => self.start_plain(node),
                }
            }
            Mostly::Stop => match self.take(Entry::has_container) {
                Some(entry) if self.random.one_in(2) => Some(unprepare(node, entry)),
                Some(entry) => Some(restart(node, entry)),
                None => self.end_plain(node),
            },
            Mostly::Anything => self.claim_operation(node),
        }
    }

    /// The next thing in the life of some claim.
    fn claim_operation<'a>(&mut self, node: &'a Node) -> Option<Operation<'a>> {
        let entry = self.take(Entry::is_in_doubt).or_else(|| self.take(|_| true))?;
        Some(match entry.known {
            Known::Asked => prepare(node, vec![entry]),
            Known::Leaving(_) => unprepare(node, entry),
            Known::Prepared(_) | Known::Wiped(_) if self.random.one_in(4) => prepare(node, vec![entry]),
            Known::Prepared(_) | Known::Wiped(_) if entry.has_container() => match self.random.below(3) {
                0 => restart(node, entry),
                _ => unprepare(node, entry),
            },
            Known::Prepared(_) | Known::Wiped(_) => match self.random.below(3) {
                0 => unprepare(node, entry),
                _ => self.contain(node, entry),
            },
        })
    }

    fn plain_operation<'a>(&mut self, node: &'a Node) -> Option<Operation<'a>> {
        if self.plain.len() < MOST_PLAIN { self.start_plain(node) } else { self.end_plain(node) }
    }

    fn start_plain<'a>(&mut self, node: &'a Node) -> Option<Operation<'a>> {
        if self.plain.len() > 2 * MOST_PLAIN {
            return self.end_plain(node);
        }
        let name = self.name("plain");
        Some(Box::pin(async move {
            let mut done = Done::default();
            match node.run_pod(&name, &[], &[ContainerAsk::new("app", &[])]).await {
                Ok(pod) => {
                    done.trouble.extend(refused(&pod));
                    done.plain.push(pod);
                }
                Err(error) => done.trouble.push(Trouble::Fault(error)),
            }
            done
        }))
    }

    fn end_plain<'a>(&mut self, node: &'a Node) -> Option<Operation<'a>> {
        if self.plain.is_empty() {
            return None;
        }
        let pod = self.plain.swap_remove(self.random.below(self.plain.len()));
        Some(Box::pin(async move {
            let ended = node.terminate_pod(&pod).await.map_err(Trouble::Fault);
            Done { trouble: ended.err().into_iter().collect(), ..Done::default() }
        }))
    }

    /// One claim or two in one call; none when the devices have enough.
    fn prepare_new<'a>(&mut self, node: &'a Node) -> Option<Operation<'a>> {
        let mut entries = Vec::new();
        for _ in 0..1 + self.random.below(2) {
            let room: Vec<&'static str> = self
                .devices
                .iter()
                .filter(|(_, claims)| **claims < MOST_CLAIMS)
                .map(|(device, _)| *device)
                .collect();
            if room.is_empty() {
                break;
            }
            let device = *self.random.pick(&room);
            *self.devices.entry(device).or_default() += 1;
            let count = 1 + self.random.below(MOST_CPUS);
            let claim = node.write_claim(&self.name("c"), device, &count.to_string(), &[]);
            entries.push(Entry { claim, device, count, known: Known::Asked, pod: None });
        }
        if entries.is_empty() { None } else { Some(prepare(node, entries)) }
    }

    /// A container for a claim: in a new pod, or in the one that has none any more.
    fn contain<'a>(&mut self, node: &'a Node, mut entry: Entry) -> Operation<'a> {
        let name = self.name("p");
        Box::pin(async move {
            let mut done = Done::default();
            let outcome = match entry.pod.take() {
                Some(mut pod) => node.begin_container(&mut pod, "app").await.map(|()| pod),
                None => {
                    node.run_pod(&name, &[&entry.claim], &[ContainerAsk::new("app", &[&entry.claim])]).await
                }
            };
            match outcome {
                Ok(pod) => {
                    done.trouble.extend(refused(&pod));
                    entry.pod = Some(pod);
                }
                Err(error) => done.trouble.push(Trouble::Fault(error)),
            }
            done.entries.push(entry);
            done
        })
    }

    fn take(&mut self, which: impl Fn(&Entry) -> bool) -> Option<Entry> {
        let fit: Vec<&String> =
            self.books.0.iter().filter(|(_, entry)| which(entry)).map(|(uid, _)| uid).collect();
        if fit.is_empty() {
            return None;
        }
        let uid = (*self.random.pick(&fit)).clone();
        self.books.0.remove(&uid)
    }

    fn name(&mut self, kind: &str) -> String {
        self.made += 1;
        format!("{kind}{}", self.made)
    }
}

/// Why a pod's container does not exist. Where the plugin's connection ended in the hook, the runtime says so.
fn refused(pod: &Pod) -> Vec<Trouble> {
    let refusals = pod.containers.values().filter_map(|outcome| outcome.as_ref().err());
    refusals
        .map(|why| match why.contains("ttrpc: closed") {
            true => Trouble::NoAnswer(anyhow!("{why}")),
            false => Trouble::Fault(anyhow!("a container was refused: {why}")),
        })
        .collect()
}

fn prepare(node: &Node, mut entries: Vec<Entry>) -> Operation<'_> {
    Box::pin(async move {
        let mut done = Done::default();
        let claims: Vec<_> = entries.iter().map(|entry| entry.claim.clone()).collect();
        match node.prepare_all(&claims).await {
            Ok(answers) => {
                for entry in &mut entries {
                    let answer = answers[&entry.claim.uid].as_ref().map_err(|why| anyhow!("{why}"));
                    let settled = answer.and_then(|_| answered(node, entry));
                    done.trouble.extend(settled.err().map(|error| {
                        Trouble::Fault(error.context(format!("prepare of claim {}", entry.claim.uid)))
                    }));
                }
            }
            Err(error) => done.trouble.push(Trouble::NoAnswer(error)),
        }
        done.entries = entries;
        done
    })
}

/// The claim is recorded by the time of the answer, with the CPUs that it had if it was known before.
fn answered(node: &Node, entry: &mut Entry) -> Result<()> {
    let cpus = node.record_of(&entry.claim.uid)?;
    match &entry.known {
        Known::Asked => ensure!(cpus.len() == entry.count, "{} CPUs, not {}", cpus.len(), entry.count),
        Known::Prepared(before) | Known::Leaving(before) | Known::Wiped(before) => {
            ensure!(cpus == *before, "CPUs {cpus:?}, which were {before:?} before")
        }
    }
    entry.known = Known::Prepared(cpus);
    Ok(())
}

/// Ends the claim's pod, then unprepares it, as a kubelet does.
fn unprepare(node: &Node, mut entry: Entry) -> Operation<'_> {
    Box::pin(async move {
        let mut done = Done::default();
        if let Some(pod) = entry.pod.take() {
            if let Err(error) = node.runtime.remove_pod_sandbox(&pod.sandbox).await {
                done.trouble.push(Trouble::Fault(error.context("end of a pod")));
            }
            node.api.delete(Resource::Pods, "default", &pod.name);
        }
        entry.known = match entry.known {
            Known::Prepared(cpus) | Known::Wiped(cpus) => Known::Leaving(cpus),
            // what it has is not known: it is settled by the next prepare
            known => known,
        };
        let uid = entry.claim.uid.clone();
        match node.unprepare_all(std::slice::from_ref(&entry.claim)).await {
            Ok(mut answers) => {
                let answer = answers.remove(&uid).unwrap_or_else(|| Err("no answer for it".to_owned()));
                let left = answer.map_err(|why| anyhow!("{why}")).and_then(|()| {
                    ensure!(node.record_of(&uid).is_err(), "it is recorded still");
                    Ok(())
                });
                match left {
                    Ok(()) => {
                        node.api.delete(Resource::ResourceClaims, &entry.claim.namespace, &entry.claim.name);
                        done.left.push(entry.device);
                        return done;
                    }
                    Err(error) => {
                        done.trouble.push(Trouble::Fault(error.context(format!("unprepare of claim {uid}"))))
                    }
                }
            }
            Err(error) => done.trouble.push(Trouble::NoAnswer(error)),
        }
        done.entries.push(entry);
        done
    })
}

fn restart(node: &Node, mut entry: Entry) -> Operation<'_> {
    Box::pin(async move {
        let mut done = Done::default();
        if let Some(pod) = &mut entry.pod {
            match node.restart_container(pod, "app").await {
                Ok(()) => done.trouble.extend(refused(pod)),
                Err(error) => done.trouble.push(Trouble::Fault(error.context("restart of a container"))),
            }
        }
        done.entries.push(entry);
        done
    })
}
