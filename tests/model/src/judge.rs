//! Holds what is seen against the truth: first the answer to the event, then everything.

mod answers;
mod everything;

use crate::event::Event;
use crate::rules::{Rule, Verdict};
use crate::seen::{Books, Seen};
use crate::truth::{Hold, Truth};
use dracpu_cpuset::CpuSet;
use std::collections::BTreeMap;

/// Looks on, event by event.
#[derive(Debug, Clone)]
pub struct Judge {
    /// The node as it must be.
    pub truth: Truth,
    before: Before,
    capacity: BTreeMap<String, u64>,
}

/// What was there before the event.
#[derive(Debug, Clone, Default)]
struct Before {
    books: Option<Books>,
    files: BTreeMap<String, String>,
}

impl Judge {
    /// A judge of a node on which nothing has happened.
    #[must_use]
    pub fn new(truth: Truth) -> Self {
        Self { truth, before: Before::default(), capacity: BTreeMap::new() }
    }

    /// Files of the CDI directory as they were last seen.
    #[must_use]
    pub fn files(&self) -> &BTreeMap<String, String> {
        &self.before.files
    }

    /// What came of an event.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn judge(&mut self, event: &Event, seen: &Seen) -> Verdict {
        if self.truth.looks_after_files {
            self.truth.notice_mended(&self.before.files);
        }
        if seen.answer.ok() {
            self.answered(event, seen)?;
        } else {
            self.refused(event, seen)?;
        }
        self.masks_given(&seen.answer.updates)?;
        self.settle(seen)?;
        self.masks_given(&seen.later)?;
        if let Some(masks) = &seen.masks {
            self.masks_given(masks)?;
        }
        self.everything(seen)?;
        self.capacity.clone_from(&seen.capacity);
        self.before = Before { books: seen.books.clone(), files: seen.files.clone() };
        Ok(())
    }

    fn masks_given(&mut self, masks: &BTreeMap<String, CpuSet>) -> Verdict {
        for (name, mask) in masks {
            Rule::Mask.unless(!mask.is_empty(), || format!("container {name} is given an empty mask"))?;
            if let Some(container) = self.truth.containers.get_mut(name) {
                container.mask = Some(mask.clone());
            }
        }
        Ok(())
    }

    /// Claims without a record, that containers say they have: the API server is asked after each event, pod by pod.
    /// Proven they are held from then on; what is not proven is nothing.
    fn settle(&mut self, seen: &Seen) -> Verdict {
        let mut open: Vec<(String, String, CpuSet)> = Vec::new();
        for container in self.truth.containers.values() {
            let unproven = container.known.iter().flat_map(|known| &known.unproven);
            open.extend(unproven.map(|(uid, cpus)| (container.pod.clone(), uid.clone(), cpus.clone())));
        }
        if open.is_empty() || self.truth.api_down {
            return Ok(());
        }
        open.sort_by(|one, other| one.0.cmp(&other.0));
        let held = |uid: &str| match &seen.books {
            Some(books) => books.claims.get(uid).cloned(),
            None => answers::recorded(seen, uid),
        };
        let mut settled = false;
        for (pod, uid, cpus) in open {
            let has = self.truth.pods.get(&pod).is_some_and(|claims| claims.contains(&uid));
            let claim = self.truth.claims.get(&uid).filter(|claim| has && claim.object.is_some());
            let nothing = claim.is_some_and(|claim| claim.cpus().is_none());
            if nothing && held(&uid).as_ref() == Some(&cpus) {
                self.truth.hold_again(&uid, cpus);
            } else if nothing && self.truth.write_fails {
                continue; // whether it is asked again depends on what it holds
            }
            self.truth.believe(&uid, &pod);
            settled = true;
        }
        if settled {
            self.truth.settled = self.truth.bears_pushes();
        }
        Ok(())
    }
}

impl Truth {
    /// A claim that had lost its record has it again.
    fn hold_again(&mut self, uid: &str, cpus: CpuSet) {
        let last = self.claims.get(uid).map(|claim| claim.last.clone()).unwrap_or_default();
        let counts = self.counts(&last);
        let claim = self.claims.entry(uid.to_owned()).or_default();
        claim.hold = Hold::Held(crate::truth::Held { cpus, counts, unscheduled: true, ..Default::default() });
    }

    /// It is known what is true of a claim that a pod's containers say they have.
    fn believe(&mut self, uid: &str, pod: &str) {
        let of_pod = self.containers.iter().filter(|(_, container)| container.pod == pod);
        let names: Vec<String> = of_pod.map(|(name, _)| name.clone()).collect();
        for name in names {
            let container = self.containers[&name].clone();
            let Some(mut known) = container.known.clone() else { continue };
            let Some(said) = known.unproven.remove(uid) else { continue };
            let claim = self.claims.get(uid);
            let fits = claim.is_some_and(|claim| {
                claim.cpus() == Some(&said) && self.may_have(claim, &container.pod, &name)
            });
            if fits {
                known.claims.insert(uid.to_owned());
                self.own(&name, &container, &[uid.to_owned()].into());
            }
            self.containers.get_mut(&name).unwrap().known = Some(known);
        }
    }
}
