//! The answer to an event: whether it could be, and what follows.

use super::Judge;
use crate::event::{Event, NewClaim, NewContainer, Prepare, Request, Synced, What};
use crate::rules::{Rule, Verdict, Violation};
use crate::seen::{Answer, Seen};
use crate::truth::{Container, DRIVER, Held, Hold, Known, Truth, file_name, union};
use dracpu_cpuset::CpuSet;
use serde_json::Value;
use std::collections::BTreeSet;

/// Seconds within which a daemon looks at the files of claims.
const LOOKED_AFTER: u64 = 300;

impl Judge {
    /// An event that was refused.
    pub(super) fn refused(&mut self, event: &Event, seen: &Seen) -> Verdict {
        let why = seen.answer.refused.clone().unwrap_or_default();
        let needless = |holds: bool| Rule::Needless.unless(holds, || format!("{event:?}: {why}"));
        match event {
            Event::Prepare(prepare) => {
                for claim in prepare.all() {
                    self.not_prepared(claim, &why, seen)?;
                }
            }
            Event::Unprepare { claim } | Event::Release { claim } => {
                let must = matches!(event, Event::Unprepare { .. });
                needless(!must || self.truth.remove_fails)?;
                let tried = self.truth.remove_fails;
                if let Some(held) = self.truth.held_by(claim) {
                    held.incomplete |= tried;
                }
            }
            Event::Create(new) => {
                if let Some(made) = self.truth.made(new, &self.before.files) {
                    let named = self.truth.named(&made);
                    self.truth.devices_told |= !named.is_empty();
                    needless(self.truth.may_make(&new.container, &made).is_err())?;
                }
            }
            Event::Update { container, .. }
            | Event::Start { container }
            | Event::Stop { container }
            | Event::Remove { container } => needless(!self.truth.containers.contains_key(container))?,
            Event::Sync { .. }
            | Event::Fail { .. }
            | Event::State {}
            | Event::Runtime { .. }
            | Event::Kubelet {}
            | Event::Clock { .. } => needless(false)?,
            Event::Crash {} | Event::Reboot { .. } => needless(self.truth.nothing_shared())?,
            Event::Delete { .. } | Event::Spec { .. } => {}
            Event::Config { .. } | Event::Reload { .. } => {}
            Event::Offline { .. } | Event::Online { .. } => {}
        }
        // A claim that was booked and could be neither recorded nor taken back is noted above.
        if let (Some(before), Some(books)) = (&self.before.books, &seen.books) {
            let stuck = matches!(event, Event::Prepare(_)) && self.truth.remove_fails;
            Rule::Unchanged
                .unless(stuck || (before.claims == books.claims && before.shared == books.shared), || {
                    format!("{event:?} was refused ({why}), but {before:?} became {books:?}")
                })?;
        }
        Rule::Unchanged
            .unless(seen.answer.updates.is_empty(), || format!("{event:?} was refused with updates"))?;
        let may_clean = matches!(event, Event::Prepare(_));
        Rule::Unchanged.unless(may_clean || self.before.files == seen.files, || {
            format!("{event:?} was refused ({why}), but files have changed")
        })
    }

    /// An event that was done.
    pub(super) fn answered(&mut self, event: &Event, seen: &Seen) -> Verdict {
        let answer = &seen.answer;
        match event {
            Event::Prepare(prepare) => self.calls(prepare, answer, seen)?,
            Event::Unprepare { claim } => {
                self.truth.free(claim);
                self.truth.settled = self.truth.bears_pushes();
            }
            Event::Delete { claim } => {
                for claims in self.truth.pods.values_mut() {
                    claims.remove(claim);
                }
                if let Some(claim) = self.truth.claims.get_mut(claim) {
                    claim.object = None;
                }
            }
            Event::Release { claim } => {
                self.released(claim)?;
                self.truth.free(claim);
                self.truth.settled = self.truth.bears_pushes();
            }
            Event::Create(new) => self.created(new, answer)?,
            Event::Update { container, .. } => {
                let stopped = self.truth.containers.get(container).is_some_and(|c| c.known.is_none());
                if stopped {
                    self.truth.admit(container, true);
                }
                if let Some(container) = self.truth.containers.get_mut(container) {
                    container.mask.clone_from(&answer.cpus);
                }
                self.truth.settled = true;
            }
            Event::Start { container } => self.truth.starts(container),
            Event::Stop { container } => {
                self.truth.starts(container);
                if let Some(container) = self.truth.containers.get_mut(container) {
                    container.ended = true;
                }
                if let Some(known) = self.truth.known(container) {
                    known.stopped = true;
                }
                self.truth.settled = true;
            }
            Event::Remove { container } => self.truth.removed(container),
            Event::Sync { containers } => self.synchronized(containers),
            Event::Offline { cpus } => self.switched(cpus, CpuSet::union),
            Event::Online { cpus } => self.switched(cpus, CpuSet::difference),
            Event::Crash {} => self.truth.restarted(&self.before.files),
            Event::Reboot { records } => {
                self.truth.restarted(&self.before.files);
                self.truth.containers.clear();
                match records {
                    true => self.truth.records_of_another_boot(&self.before.files),
                    false => self.truth.claims.values_mut().for_each(|claim| claim.hold = Hold::Nothing),
                }
            }
            Event::Config { set } => {
                self.truth.config.extend(set.clone());
                self.truth.restarted(&self.before.files);
                self.truth.offered_anew();
            }
            Event::Reload { set } => {
                self.truth.config.extend(set.clone());
                self.truth.offered_anew();
            }
            Event::Clock { forward, .. } => {
                if self.truth.looks_after_files && *forward > LOOKED_AFTER && !self.truth.write_fails {
                    let described = self.truth.all_held().filter(|held| !held.plain);
                    described.for_each(|held| held.damage = None);
                }
            }
            Event::State {} | Event::Kubelet {} => {}
            Event::Fail { what, on } => match what {
                What::CdiWrite => self.truth.write_fails = *on,
                What::CdiRemove => self.truth.remove_fails = *on,
                What::Api => self.truth.api_down = *on,
            },
            Event::Spec { claim, how } => {
                if let Some(held) = self.truth.held_by(claim) {
                    held.damage = Some(*how);
                }
            }
            Event::Runtime { nri } => {
                let mut numbers = nri.split('.').map(|number| number.parse().unwrap_or(0));
                let mut next = || numbers.next().unwrap_or(0);
                self.truth.nri = (next(), next(), next());
                self.truth.devices_told &= self.truth.names_devices();
            }
        }
        Ok(())
    }

    // ---- claims

    fn calls(&mut self, prepare: &Prepare, answer: &Answer, seen: &Seen) -> Verdict {
        let mut answers = Vec::new();
        for claim in prepare.all() {
            let answer = answer.results.as_ref().map_or(Some(answer), |results| results.get(&claim.claim));
            let answer = answer
                .ok_or_else(|| Rule::Needless.broken(format!("claim {} has no answer", claim.claim)))?;
            answers.push((claim, answer));
        }
        if prepare.parallel {
            // In which order they came nobody knows: what was refused may have come last.
            answers.sort_by_key(|(_, answer)| !answer.ok());
        }
        for (claim, answer) in answers {
            match &answer.refused {
                Some(why) => self.not_prepared(claim, why, seen)?,
                None => self.prepared(claim, answer, seen)?,
            }
        }
        Ok(())
    }

    /// The claim's object, as this call has it.
    fn put(&mut self, new: &NewClaim) -> NewClaim {
        let claim = self.truth.claims.entry(new.claim.clone()).or_default();
        if claim.object.is_none() || new.requests.is_some() || new.config.is_some() {
            claim.object = Some(new.clone());
            claim.last = new.clone();
        }
        claim.last.clone()
    }

    fn prepared(&mut self, new: &NewClaim, answer: &Answer, seen: &Seen) -> Verdict {
        let uid = &new.claim;
        let wish = self.put(new);
        let cpus = answer.cpus.clone().unwrap_or_default();
        let claim = &self.truth.claims[uid];
        match claim.hold.clone() {
            Hold::Held(mut held) => {
                let same = held.cpus == cpus && (held.plain || held.blocked == answer.blocked);
                Rule::SameAnswer.unless(same, || {
                    format!(
                        "claim {uid} was given {} and blocks {}, and is given {cpus} blocking {}",
                        held.cpus, held.blocked, answer.blocked
                    )
                })?;
                if held.plain {
                    held.counts = self.truth.counts(&wish);
                }
                (held.plain, held.damage, held.incomplete) = (false, None, false);
                held.blocked.clone_from(&answer.blocked);
                self.truth.claims.get_mut(uid).unwrap().hold = Hold::Held(held);
            }
            Hold::Stuck(stuck) => {
                Rule::SameAnswer
                    .unless(stuck == cpus, || format!("claim {uid} kept {stuck}, and is given {cpus}"))?;
                self.hold(uid, &wish, cpus, answer.blocked.clone(), seen);
            }
            Hold::Nothing | Hold::Unreadable => {
                self.is_as_asked(&wish, &cpus, &answer.blocked)?;
                if !cpus.is_empty() {
                    self.hold(uid, &wish, cpus, answer.blocked.clone(), seen);
                    self.truth.settled = false;
                }
            }
        }
        Ok(())
    }

    fn hold(&mut self, uid: &str, wish: &NewClaim, cpus: CpuSet, blocked: CpuSet, seen: &Seen) {
        let mixed = wish.options(&self.truth).iter().any(|options| options["mixed"] == true);
        let mixed = mixed && !self.truth.is_individual();
        let unscheduled = !self.is_on_offer(wish, seen);
        let counts = self.truth.counts(wish);
        let held = Held { cpus, blocked, counts, mixed, unscheduled, ..Held::default() };
        self.truth.claims.get_mut(uid).unwrap().hold = Hold::Held(held);
    }

    /// Whether a scheduler would have allocated it: what is consumed of each device fits what it offers.
    fn is_on_offer(&self, wish: &NewClaim, seen: &Seen) -> bool {
        let capacity = if self.capacity.is_empty() { &seen.capacity } else { &self.capacity };
        wish.ours().all(|request| {
            let consumed = |claim: &NewClaim| -> u64 {
                let same = claim.ours().filter(|other| other.device == request.device);
                same.filter_map(|request| self.truth.count(request)).sum()
            };
            let others = self.truth.claims.values().filter(|claim| matches!(claim.hold, Hold::Held(_)));
            let others: u64 = others
                .filter(|claim| claim.last.claim != wish.claim)
                .map(|claim| consumed(&claim.last))
                .sum();
            consumed(wish) + others <= capacity.get(&request.device).copied().unwrap_or(0)
        })
    }

    fn is_as_asked(&self, wish: &NewClaim, cpus: &CpuSet, blocked: &CpuSet) -> Verdict {
        let uid = &wish.claim;
        if let Err(why) = self.truth.can_be_served(wish) {
            return Err(Rule::WrongClaim.broken(format!("claim {uid} is given {cpus}, though {why}")));
        }
        let count: u64 = wish.ours().filter_map(|request| self.truth.count(request)).sum();
        let asked = u64::try_from(cpus.len()).ok() == Some(count);
        Rule::AsAsked.unless(asked, || format!("claim {uid} asks for {count} CPUs and is given {cpus}"))?;
        let devices = self.truth.devices();
        let of = union(wish.ours().filter_map(|request| devices.get(&request.device)));
        Rule::AsAsked.unless(cpus.is_subset(&of), || {
            format!("claim {uid} is given {cpus}, but its devices have {of}")
        })?;
        let blocked_ok = blocked.is_subset(&self.truth.allocatable()) && blocked.is_disjoint(cpus);
        Rule::AsAsked.unless(blocked_ok, || format!("claim {uid} has {cpus} and blocks {blocked}"))?;
        let named = wish.ours().filter_map(|request| request.cpuset.as_ref()?.parse::<CpuSet>().ok());
        let named: Vec<CpuSet> = named.collect();
        let named_ok = named.len() < wish.ours().count() || union(&named) == *cpus;
        Rule::AsAsked.unless(named_ok, || format!("claim {uid} names {named:?} and is given {cpus}"))?;
        let shared = self.truth.shared();
        let takes = cpus.union(blocked);
        let left = shared.difference(&takes).difference(&self.truth.unproven()).len();
        let floor_ok = shared.is_disjoint(&takes) || left >= self.truth.floor();
        Rule::Floor.unless(floor_ok, || {
            format!(
                "claim {uid} takes {takes} of the shared {shared}, which leaves {left}, not {}",
                self.truth.floor()
            )
        })
    }

    fn not_prepared(&mut self, new: &NewClaim, why: &str, seen: &Seen) -> Verdict {
        let uid = &new.claim;
        let wish = self.put(new);
        let claim = &self.truth.claims[uid];
        let (write_fails, remove_fails) = (self.truth.write_fails, self.truth.remove_fails);
        match &claim.hold {
            Hold::Held(held) => {
                let whole = held.damage.is_none() && !held.incomplete;
                let may = held.plain || (write_fails && !whole);
                Rule::Forgotten
                    .unless(may, || format!("claim {uid} has {}, and is refused: {why}", held.cpus))?;
            }
            Hold::Stuck(_) => {
                Rule::Needless
                    .unless(write_fails, || format!("claim {uid} is booked, and is refused: {why}"))?;
            }
            Hold::Nothing | Hold::Unreadable => {
                let may = self.truth.api_down || write_fails || !self.truth.must_serve(&wish);
                Rule::Needless.unless(may, || format!("claim {uid} can be served, and is refused: {why}"))?;
                let stuck = seen.books.as_ref().and_then(|books| books.claims.get(uid));
                let hold = match stuck.filter(|_| write_fails && remove_fails) {
                    Some(cpus) => Hold::Stuck(cpus.clone()),
                    // What is left of an unreadable file goes when the new one cannot be written.
                    None if !seen.files.contains_key(&file_name(uid)) => Hold::Nothing,
                    None => claim.hold.clone(),
                };
                // Its CPUs have left the shared pool, and no hook has told anybody.
                self.truth.settled &= !matches!(hold, Hold::Stuck(_));
                self.truth.claims.get_mut(uid).unwrap().hold = hold;
            }
        }
        Ok(())
    }

    fn released(&self, uid: &str) -> Verdict {
        let claim = self.truth.claims.get(uid);
        let user = self.truth.containers.iter().find(|(_, container)| {
            container.known.as_ref().is_some_and(|known| !known.stopped && known.claims.contains(uid))
        });
        let idle =
            claim.is_some_and(|claim| claim.cpus().is_some() && claim.object.is_none() && !claim.is_plain());
        Rule::Forgotten
            .unless(idle && user.is_none(), || format!("claim {uid} is released: {claim:?}, of {user:?}"))
    }

    // ---- containers

    fn created(&mut self, new: &NewContainer, answer: &Answer) -> Verdict {
        let name = &new.container;
        let Some(made) = self.truth.made(new, &self.before.files) else {
            return Err(
                Rule::Forged.broken(format!("container {name} is made with devices that are not there"))
            );
        };
        let named = self.truth.named(&made);
        self.truth.devices_told |= !named.is_empty();
        let claims = self.truth.may_make(name, &made)?;
        self.truth.own(name, &made, &claims);
        let known = Known { claims, ..Known::default() };
        self.truth.add(name, Container { mask: answer.cpus.clone(), known: Some(known), ..made });
        self.truth.settled = true;
        Ok(())
    }

    fn synchronized(&mut self, containers: &[Synced]) {
        let mut names = Vec::new();
        for container in containers {
            match container {
                Synced::Named(name) => names.push(name.clone()),
                Synced::Described(described) => {
                    if let Some(made) = self.truth.made(&described.container, &self.before.files) {
                        let mask = described.cpuset.as_ref().and_then(|list| list.parse().ok());
                        let name = described.container.container.clone();
                        self.truth.add(&name, Container { mask, ..made });
                        names.push(name);
                    }
                }
            }
        }
        self.truth.synchronize(&names);
        self.truth.settled = true;
    }

    fn switched(&mut self, cpus: &str, how: impl Fn(&CpuSet, &CpuSet) -> CpuSet) {
        self.truth.offline = how(&self.truth.offline, &cpus.parse().unwrap_or_default());
        self.truth.number_new();
        // A core of which a thread is offline may not be offered at all, whoever has the rest of it; and a floor that is
        // taken off what is offered stays as it is.
        if self.truth.has_options() || self.truth.config.contains_key("minSharedCPUs") {
            self.truth.offered_anew();
        }
        self.truth.settled = self.truth.bears_pushes();
    }
}

/// What the claim's file says that it has.
pub(super) fn recorded(seen: &Seen, uid: &str) -> Option<CpuSet> {
    let text = seen.files.get(&file_name(uid))?;
    let spec: Value = serde_json::from_str(text).ok()?;
    let env = spec.pointer("/devices/0/containerEdits/env")?.as_array()?;
    let key = format!("DRA_CPUSET_{uid}=");
    env.iter().filter_map(Value::as_str).find_map(|variable| variable.strip_prefix(&key))?.parse().ok()
}

impl NewClaim {
    /// Results that count.
    pub fn ours(&self) -> impl Iterator<Item = &Request> {
        let all = self.requests.iter().flatten();
        all.filter(|request| request.driver.as_deref().is_none_or(|driver| driver == DRIVER))
    }

    /// Options that apply to it.
    fn options<'a>(&'a self, truth: &'a Truth) -> Vec<&'a Value> {
        let own = self.config.iter().flatten().filter_map(|entry| entry.cpu_config.get("options"));
        own.chain(truth.config.get("strategyOptions")).collect()
    }
}

impl Request {
    /// How many CPUs it asks for, if it is a number that can be asked for.
    #[must_use]
    pub fn count(&self) -> Option<u64> {
        let text = self.cpus.as_ref()?;
        let thousandths = text.strip_suffix('m').and_then(|number| number.parse::<u64>().ok());
        let count = match thousandths {
            Some(number) => (number % 1000 == 0).then_some(number / 1000)?,
            None => text.parse().ok()?,
        };
        (count > 0).then_some(count)
    }
}

impl Truth {
    /// How many CPUs a result has; of a device that is a CPU it is one, whatever else the result says.
    pub(super) fn count(&self, request: &Request) -> Option<u64> {
        if self.is_individual() { Some(1) } else { request.count() }
    }

    /// How many CPUs each result of a claim has.
    pub(super) fn counts(&self, wish: &NewClaim) -> Vec<(String, u64)> {
        wish.ours().map(|request| (request.name.clone(), self.count(request).unwrap_or(0))).collect()
    }

    /// Whether anybody can serve the claim, whatever is free.
    fn can_be_served(&self, wish: &NewClaim) -> Result<(), String> {
        let devices = self.devices();
        for request in wish.ours() {
            if !devices.contains_key(&request.device) {
                return Err(format!("there is no device {}", request.device));
            }
            if self.count(request).is_none() {
                return Err(format!("{:?} is no number of CPUs", request.cpus));
            }
            if request.pool.is_some() {
                return Err("it is of another pool".to_owned());
            }
        }
        let named = wish.ours().any(|request| request.cpuset.is_some());
        if self.is_individual() && wish.ours().next().is_some() && (named || wish.config.is_some()) {
            return Err("its device is a CPU, which leaves nothing to be said".to_owned());
        }
        if named && self.text("allocator") != "external" {
            return Err("it names CPUs, which only `external` may follow".to_owned());
        }
        if wish
            .config
            .iter()
            .flatten()
            .any(|entry| entry.source == "FromClass" && entry.cpu_config.get("cpuset").is_some())
        {
            return Err("its class names CPUs".to_owned());
        }
        Ok(())
    }

    /// Whether there is no reason to refuse a claim that nothing is held for. Judged where the choice is plain: one
    /// request of the packed strategy without options, or CPUs that the scheduler has chosen.
    fn must_serve(&self, wish: &NewClaim) -> bool {
        let ours: Vec<&Request> = wish.ours().collect();
        let plain = wish.config.is_none() && ours.iter().all(|request| request.cpuset.is_none());
        let judged = match ours.as_slice() {
            [] => false,
            [_] => self.is_individual() || self.is_plain_packed(),
            _ => self.is_individual(),
        };
        if !plain || !judged || self.can_be_served(wish).is_err() || self.said(&wish.claim).is_some() {
            return false;
        }
        let devices = self.devices();
        let free = union(ours.iter().map(|request| &devices[&request.device]))
            .difference(&self.machine.isolated)
            .difference(&self.booked())
            .difference(&self.unproven());
        let count: u64 = ours.iter().filter_map(|request| self.count(request)).sum();
        let count = usize::try_from(count).unwrap();
        let shared = self.shared().difference(&self.unproven()).len();
        count <= free.len() && count + self.floor() <= shared
    }

    /// What a container says of this claim that has no record.
    fn said(&self, uid: &str) -> Option<CpuSet> {
        let known = self.containers.values().filter_map(|container| container.known.as_ref());
        known.filter_map(|known| known.unproven.get(uid)).next().cloned()
    }

    /// Not even an empty node has what must be left to containers without a claim.
    pub fn nothing_shared(&self) -> bool {
        self.allocatable().difference(&self.machine.isolated).len() < self.floor()
    }

    /// Whether a container can be made, with its claims.
    ///
    /// # Errors
    /// The rule that it would break.
    pub fn may_make(&self, name: &str, made: &Container) -> Result<BTreeSet<String>, Violation> {
        let forged = |uid: &str| {
            Rule::Forged.broken(format!("container {name} is made, with {uid} in {:?}", made.env))
        };
        let mut says = self.says(made).ok_or_else(|| forged("a variable that cannot be true"))?;
        for uid in self.named(made) {
            if !says.iter().any(|(said, _)| *said == uid) {
                let held = self.claims.get(&uid).and_then(|claim| claim.cpus());
                says.push((uid.clone(), held.cloned().ok_or_else(|| forged(&uid))?));
            }
        }
        let mut claims = BTreeSet::new();
        for (uid, cpus) in says {
            let claim = self
                .claims
                .get(&uid)
                .filter(|claim| claim.cpus() == Some(&cpus))
                .ok_or_else(|| forged(&uid))?;
            if !self.may_have(claim, &made.pod, name) {
                return Err(Rule::OneContainer
                    .broken(format!("container {name} is made with claim {uid} of {:?}", claim.owner)));
            }
            claims.insert(uid);
        }
        if self.mask_with(&claims).is_empty() {
            return Err(Rule::Mask.broken(format!("container {name} is made, and has no CPU left")));
        }
        Ok(claims)
    }

    /// What claims hold was asked of devices that are offered otherwise by now.
    fn offered_anew(&mut self) {
        self.all_held().for_each(|held| held.unscheduled = true);
    }

    /// What a claim was answered.
    fn held_by(&mut self, uid: &str) -> Option<&mut Held> {
        match &mut self.claims.get_mut(uid)?.hold {
            Hold::Held(held) => Some(held),
            _ => None,
        }
    }

    fn all_held(&mut self) -> impl Iterator<Item = &mut Held> {
        self.claims.values_mut().filter_map(|claim| match &mut claim.hold {
            Hold::Held(held) => Some(held),
            _ => None,
        })
    }

    fn known(&mut self, name: &str) -> Option<&mut Known> {
        self.containers.get_mut(name)?.known.as_mut()
    }

    fn starts(&mut self, name: &str) {
        if let Some(known) = self.known(name) {
            known.started = true;
        }
    }

    fn removed(&mut self, name: &str) {
        let Some(container) = self.containers.remove(name) else { return };
        let never_ran = container.known.is_some_and(|known| !known.started);
        for claim in self.claims.values_mut().filter(|_| never_ran) {
            claim.owner.take_if(|owner| owner.instance == container.instance);
        }
    }
}

impl crate::truth::Claim {
    fn is_plain(&self) -> bool {
        matches!(&self.hold, Hold::Held(held) if held.plain)
    }
}
