//! What must hold whatever has just happened.

use super::Judge;
use crate::event::Damage;
use crate::rules::{Rule, Verdict};
use crate::seen::{Books, Seen};
use crate::truth::{Held, Hold, Truth, all_cpus_of, cpus_of, file_name, record_of, union};
use dracpu_cpuset::CpuSet;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

impl Judge {
    pub(super) fn everything(&self, seen: &Seen) -> Verdict {
        let truth = &self.truth;
        truth.one_owner()?;
        truth.records(&seen.files)?;
        if let Some(books) = &seen.books {
            truth.books(books)?;
        }
        truth.masks()?;
        truth.capacity(&seen.capacity)
    }
}

impl Truth {
    /// Files that are whole again, though nobody has asked for their claims.
    pub(super) fn notice_mended(&mut self, files: &BTreeMap<String, String>) {
        for (uid, claim) in &mut self.claims {
            let Hold::Held(held) = &mut claim.hold else { continue };
            let text = files.get(&file_name(uid)).filter(|_| held.damage.is_some() && !held.plain);
            if text.is_some_and(|text| record_is(uid, held, text).is_ok()) {
                held.damage = None;
            }
        }
    }

    fn one_owner(&self) -> Verdict {
        let mut owned = CpuSet::new();
        for (uid, cpus) in self.booked_by() {
            Rule::OneOwner.unless(owned.is_disjoint(&cpus), || {
                let twice = owned.intersection(&cpus);
                format!("claim {uid} and another have CPUs {twice}: {:?}", self.booked_by())
            })?;
            owned.extend_from(&cpus);
        }
        Ok(())
    }

    fn records(&self, files: &BTreeMap<String, String>) -> Verdict {
        let mut left: BTreeSet<&String> = files.keys().collect();
        for (uid, claim) in &self.claims {
            let name = file_name(uid);
            match &claim.hold {
                Hold::Held(held) if held.damage == Some(Damage::Remove) => {
                    left.remove(&name);
                }
                Hold::Held(held) => {
                    let text = files.get(&name);
                    let text =
                        text.ok_or_else(|| Rule::Recorded.broken(format!("claim {uid} has no spec")))?;
                    if held.damage.is_none() {
                        record_is(uid, held, text)?;
                    }
                    left.remove(&name);
                }
                Hold::Unreadable => {
                    left.remove(&name);
                }
                Hold::Nothing | Hold::Stuck(_) => {}
            }
        }
        Rule::RecordLeft.unless(left.is_empty(), || format!("nobody holds what {left:?} say"))
    }

    fn books(&self, books: &Books) -> Verdict {
        let held = self.held();
        for (uid, cpus) in &held {
            let said = books.claims.get(uid);
            Rule::Forgotten
                .unless(said == Some(cpus), || format!("claim {uid} has {cpus}, the driver says {said:?}"))?;
        }
        let extra: Vec<_> = books.claims.iter().filter(|(uid, _)| !held.contains_key(*uid)).collect();
        Rule::Leaked.unless(extra.is_empty(), || format!("the driver holds {extra:?} for nobody"))?;
        let shared = self.shared();
        Rule::SharedPool.unless(books.shared == shared, || {
            format!("the shared pool must be {shared}, the driver says {}", books.shared)
        })?;
        let told = |what: &str, said: &BTreeSet<String>, of: &dyn Fn(&CpuSet) -> bool| {
            let wanted: BTreeSet<String> =
                held.iter().filter(|(_, cpus)| of(cpus)).map(|(uid, _)| uid.clone()).collect();
            Rule::Told
                .unless(*said == wanted, || format!("{what} claims are {wanted:?}, the driver says {said:?}"))
        };
        told("unhealthy", &books.unhealthy, &|cpus| !cpus.is_subset(&self.online()))?;
        told("stranded", &books.stranded, &|cpus| !cpus.is_disjoint(&self.reserved()))?;
        Rule::Told
            .unless(books.conflicted.is_empty(), || format!("{:?} are said to overlap", books.conflicted))?;
        self.orphans(&books.orphans)
    }

    /// Whether objects are gone is only known while the API server answers.
    fn orphans(&self, said: &BTreeSet<String>) -> Verdict {
        if self.api_down {
            return Ok(());
        }
        for (uid, claim) in &self.claims {
            let Hold::Held(held) = &claim.hold else { continue };
            if held.plain || !self.ghosts.is_empty() {
                continue;
            }
            let live = self.containers.values().filter_map(|container| container.known.as_ref());
            let used = live.filter(|known| !known.stopped).any(|known| known.claims.contains(uid));
            let orphan = !used && claim.object.is_none();
            Rule::Told.unless(said.contains(uid) == orphan, || {
                format!("claim {uid} is an orphan: {orphan}, but the driver says {said:?}")
            })?;
        }
        let strangers: Vec<_> = said.iter().filter(|uid| !self.held().contains_key(*uid)).collect();
        Rule::Told.unless(strangers.is_empty(), || format!("orphans that hold nothing: {strangers:?}"))
    }

    fn masks(&self) -> Verdict {
        for (name, container) in &self.containers {
            let Some(known) = container.known.as_ref().filter(|known| !known.stopped) else { continue };
            let Some(mask) = container.mask.as_ref().filter(|_| self.settled) else { continue };
            let Some(wanted) = self.mask_of(known) else { continue };
            let others = self.claims.keys().filter(|uid| !known.claims.contains(*uid));
            let booked = self.booked_by();
            let others = union(others.filter_map(|uid| booked.get(uid.as_str())));
            let wrong = mask.difference(&wanted);
            Rule::Mask.unless(wrong.is_empty(), || {
                format!(
                    "container {name} runs on {mask}; not for it are {wrong} (others hold {others}, online are {}, reserved {})",
                    self.online(),
                    self.reserved()
                )
            })?;
            Rule::MaskWhole
                .unless(*mask == wanted, || format!("container {name} runs on {mask}, not on {wanted}"))?;
        }
        self.one_container_each()
    }

    /// Of the containers that the driver knows: no two on one claim's CPUs.
    fn one_container_each(&self) -> Verdict {
        for (uid, claim) in &self.claims {
            let Some(cpus) = claim.cpus() else { continue };
            let on = |name: &&String| {
                let container = &self.containers[*name];
                let known = container
                    .known
                    .as_ref()
                    .is_some_and(|known| !known.stopped && known.claims.contains(uid));
                known && container.mask.as_ref().is_some_and(|mask| !mask.is_disjoint(cpus))
            };
            let users: Vec<&String> = self.containers.keys().filter(on).collect();
            Rule::OneContainer.unless(users.len() < 2, || format!("claim {uid} has containers {users:?}"))?;
        }
        Ok(())
    }

    /// Of each device at least what the claims hold of it that its scheduler has allocated, as far as that is
    /// there: offline and reserved CPUs are offered to nobody.
    fn capacity(&self, capacity: &BTreeMap<String, u64>) -> Verdict {
        // Nothing is published where no API server answers.
        if capacity.is_empty() || self.api_down {
            return Ok(());
        }
        for (device, cpus) in self.devices() {
            let held: Vec<&Held> = self
                .claims
                .values()
                .filter_map(|claim| match &claim.hold {
                    Hold::Held(held) if !held.cpus.is_disjoint(&cpus) => Some(held),
                    _ => None,
                })
                .collect();
            if held.iter().any(|held| held.unscheduled) {
                continue;
            }
            let held = union(held.iter().map(|held| &held.cpus)).intersection(&cpus);
            let offers = capacity.get(&device).copied().unwrap_or(0);
            let enough = u64::try_from(held.len()).is_ok_and(|held| held <= offers);
            Rule::Capacity.unless(enough, || {
                format!("device {device} offers {offers} CPUs, of which {held} are held")
            })?;
        }
        Ok(())
    }
}

/// The spec of a claim says what was answered.
fn record_is(uid: &str, held: &Held, text: &str) -> Verdict {
    let wrong =
        |what: &str| Rule::Recorded.broken(format!("claim {uid} has {}: {what} in {text}", held.cpus));
    let spec: Value = serde_json::from_str(text).map_err(|_| wrong("no JSON"))?;
    let says = |pointer: &str, value: &str| spec.pointer(pointer).and_then(Value::as_str) == Some(value);
    if !says("/kind", "dra.k8s.io/cpu") || !says("/devices/0/name", &format!("claim-{uid}")) {
        return Err(wrong("another kind or name"));
    }
    let variable = format!("DRA_CPUSET_{uid}={}", held.cpus);
    let env = spec.pointer("/devices/0/containerEdits/env").and_then(Value::as_array);
    if env.is_none_or(|env| env.len() != 1 || env[0] != variable) {
        return Err(wrong("other variables"));
    }
    let record = record_of(text).ok_or_else(|| wrong("no record"))?;
    let results = record["results"].as_array().cloned().unwrap_or_default();
    if all_cpus_of(&record, "cpus") != held.cpus || all_cpus_of(&record, "blocked") != held.blocked {
        return Err(wrong("other CPUs"));
    }
    let found: Vec<(String, u64)> = results
        .iter()
        .map(|result| {
            let count = u64::try_from(cpus_of(result, "cpus").len()).unwrap_or(0);
            (result["request"].as_str().unwrap_or_default().to_owned(), count)
        })
        .collect();
    if found != held.counts {
        return Err(wrong("other counts"));
    }
    if record["v"] != 1 {
        return Err(wrong("another version"));
    }
    if record["joinSharedPool"] != held.mixed {
        return Err(wrong("another share in the pool"));
    }
    Ok(())
}
