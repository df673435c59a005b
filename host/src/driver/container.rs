//! A container's life as the runtime tells it: the hooks. A hook takes the ledger lock and
//! nothing else, so that it answers in time whatever a strategy, a file or the API server does.

use super::core::Driver;
use super::env::{self, EnvFault};
use super::error::ContainerError;
use crate::cdi::Step;
pub use dracpu_codec::container::{Container, Created, Pod, Quota, Update, Updated};
use dracpu_cpuset::CpuSet;
use dracpu_ledger::{ClaimUid, ContainerId, EntryError, Ledger, Refusal, Seen};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

impl Driver {
    /// A container is about to be made: its CPUs, and new masks for others. Its variables must all be true,
    /// or it is refused and nothing has changed.
    ///
    /// # Errors
    /// [`ContainerError`]; the kubelet tries again.
    pub fn create_container(&self, container: &Container) -> Result<Created, ContainerError> {
        let created = self.place(container).inspect_err(|error| self.tell_not_created(container, error))?;
        if created.exclusive {
            self.tell_throttled(container, &created.cpus);
        }
        self.probe.reached(Step::ContainerPlaced);
        Ok(created)
    }

    fn place(&self, container: &Container) -> Result<Created, ContainerError> {
        let mut said = self.said(container)?;
        let mut ledger = self.ledger();
        // The runtime's word for a claim whose variable somebody has taken out.
        for uid in env::given(container) {
            if !said.iter().any(|(said, _)| *said == uid) {
                let booking = ledger.booking(&uid);
                let cpus = booking
                    .ok_or_else(|| ContainerError::Create(EntryError::Unknown(uid.clone()).into()))?
                    .cpus();
                said.push((uid, cpus));
            }
        }
        let placement = ledger.create(container.who(), &said)?;
        Ok(Created {
            cpus: placement.cpus,
            mems: placement.mems,
            exclusive: placement.exclusive,
            remove_cfs_quota: placement.exclusive && self.config.remove_cfs_quota,
            updates: updates(&mut ledger),
        })
    }

    /// Somebody, mostly the kubelet, is about to change a container's resources; `wanted` is the mask asked
    /// for, if any. The container's own mask is put in its place.
    pub fn update_container(&self, container: &Container, wanted: Option<&CpuSet>) -> Updated {
        let id = ContainerId::from(container.id.as_str());
        let seen = (!self.ledger().knows(&id)).then(|| self.seen(container));
        let mut ledger = self.ledger();
        if let Some(seen) = seen {
            self.warn_about(ledger.adopt_container(seen));
            self.tell_unproven(&ledger);
        }
        let mask = ledger.mask(&id);
        let as_asked = wanted.or_else(|| ledger.believed(&id)).cloned();
        let cpus = mask.filter(|mask| as_asked.as_ref() != Some(mask));
        ledger.note_mask(&id, cpus.clone().or(as_asked));
        Updated { cpus, updates: updates(&mut ledger) }
    }

    /// The final mask of a container that is being made, after all others had their say; none = not set, or
    /// not understood.
    ///
    /// # Errors
    /// When it is not the one that this driver gave; the container is not made.
    pub fn validate_container(
        &self,
        container: &Container,
        cpus: Option<&CpuSet>,
    ) -> Result<(), ContainerError> {
        let ledger = self.ledger();
        let id = ContainerId::from(container.id.as_str());
        // Not the one that it should have by now: claims come and go while a container is made, and other updates see to that.
        let given = ledger.given(&id).cloned().ok_or(ContainerError::Unseen)?;
        if cpus == Some(&given) {
            return Ok(());
        }
        Err(ContainerError::OtherCpus { wanted: given, found: cpus.cloned().unwrap_or_default() })
    }

    /// A container's process runs. Tells a container that was never started, whose removal leaves its claims
    /// to others, from one that has ended.
    pub fn start_container(&self, container: &Container) {
        let mut ledger = self.ledger();
        ledger.start(&container.id.as_str().into(), container.cpus.clone());
        self.tell_due(&ledger);
    }

    /// A container has ended. Its claims stay as they are. Late, double and unknown stops are normal. New
    /// masks for others.
    pub fn stop_container(&self, id: &str) -> Vec<Update> {
        let updates = {
            let mut ledger = self.ledger();
            ledger.stop(&id.into());
            updates(&mut ledger)
        };
        self.probe.reached(Step::ContainerStopped);
        updates
    }

    /// A container is gone.
    pub fn remove_container(&self, id: &str) {
        self.ledger().remove(&id.into());
    }

    /// A runtime has connected, perhaps another one than before; `may_name_devices`: it is not known as one that never
    /// names the CDI devices of containers.
    pub fn connected(&self, may_name_devices: bool) {
        if !may_name_devices {
            self.devices_are_told.store(false, Ordering::Relaxed);
        }
    }

    /// A runtime that names a device of ours names them always.
    pub(super) fn learn(&self, containers: &[Container]) {
        if containers.iter().any(|container| env::given(container).next().is_some()) {
            self.devices_are_told.store(true, Ordering::Relaxed);
        }
    }

    fn said(&self, container: &Container) -> Result<Vec<(ClaimUid, CpuSet)>, EnvFault> {
        self.learn(std::slice::from_ref(container));
        let told = !container.cdi_devices.is_empty() || self.devices_are_told.load(Ordering::Relaxed);
        env::said(container, told)
    }

    /// A container that runs already. One with a variable that cannot be right has no claim.
    pub(super) fn seen(&self, container: &Container) -> Seen {
        let who = container.who();
        let entries = self.said(container).unwrap_or_else(|fault| {
            let text = format!("{who} is treated as one without a claim: {fault}");
            tracing::warn!("{text}");
            self.tell_not_believed(&who, &text);
            Vec::new()
        });
        Seen { who, entries, mask: container.cpus.clone() }
    }

    pub(super) fn warn_about(&self, refused: Vec<Refusal>) {
        for Refusal { who, error } in refused {
            let text = format!("{who} is not believed: {error}");
            tracing::warn!("{text}");
            self.tell_not_believed(&who, &text);
        }
    }

    /// Wakes whoever asks the API server about claims without a record.
    pub(super) fn tell_unproven(&self, ledger: &Ledger) {
        if ledger.unproven_claims().next().is_some() {
            self.unproven.notify_one();
        }
    }
}

/// Masks that are due though no hook asks, for runtimes that bear such updates.
impl Driver {
    /// Waits until masks may be due that no hook may bring soon: a claim was unprepared, say.
    pub async fn masks_due(&self) {
        self.masks_due.notified().await;
    }

    /// Masks that should be in place and are not, counted as sent: for a push where the runtime is known to
    /// bear it. Without a push they are in the next hook's answer.
    #[must_use]
    pub fn take_pending_updates(&self) -> Vec<Update> {
        let updates = updates(&mut self.ledger());
        if !updates.is_empty() {
            self.probe.reached(Step::MasksTaken);
        }
        updates
    }

    /// A push has ended. What failed is due in the next hook's answer. A mask that a hook's answer has
    /// replaced meanwhile is due again at once: which of the two came last is not known.
    pub fn pushed(&self, sent: &[Update], failed: &BTreeSet<String>) {
        let mut ledger = self.ledger();
        let mut overtaken = false;
        for Update { container_id, cpus } in sent {
            let id = ContainerId::from(container_id.as_str());
            let fails = failed.contains(container_id);
            let replaced = ledger.believed(&id).is_some_and(|believed| believed != cpus);
            if fails || replaced {
                ledger.note_mask(&id, None);
            }
            overtaken |= replaced && !fails;
        }
        if overtaken {
            self.tell_due(&ledger);
        }
    }

    /// Wakes whoever pushes.
    pub(super) fn tell_due(&self, ledger: &Ledger) {
        if ledger.pending_updates() > 0 {
            self.masks_due.notify_one();
        }
    }
}

pub(super) fn updates(ledger: &mut Ledger) -> Vec<Update> {
    let updates = ledger.updates().into_iter();
    updates.map(|(id, cpus)| Update { container_id: id.to_string(), cpus }).collect()
}
