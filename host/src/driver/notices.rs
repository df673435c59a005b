//! What a person should hear of where they look: on the claim, or on the pod. Told as it happens, also by hooks, so
//! telling waits for nobody; passed on by whoever takes it.

use super::claim::ClaimRef;
use super::container::{Container, Quota};
use super::core::Driver;
use super::error::{ContainerError, PrepareError};
use super::locks::lock;
use crate::strategy::is_dns_label;
use crate::words::{chain, sentence};
use dracpu_cpuset::CpuSet;
use dracpu_ledger::{Booking, ClaimUid, CreateError, Ledger, Who};
use std::collections::BTreeMap;
use std::sync::Mutex;
use tokio::sync::Notify;

/// So many different notices wait to be taken; a node has some hundreds of claims at most.
const MOST_WAITING: usize = 256;

/// Something that a person should hear of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Notice {
    /// Where they look.
    pub about: Subject,
    /// What it is about.
    pub matter: Matter,
    /// What happened and what to do, in the latest words.
    pub text: String,
    /// How often it has happened since it was last taken.
    pub times: u32,
}

/// An object of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Subject {
    /// Which kind of object.
    pub kind: Kind,
    /// Its UID.
    pub uid: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// A kind of object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A ResourceClaim.
    Claim,
    /// A pod.
    Pod,
}

/// What a notice is about. For each object one of each waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Matter {
    /// A claim was not prepared.
    NotPrepared,
    /// A claim holds CPUs that are reserved by now.
    Stranded,
    /// CPUs of a claim are recorded for another claim too.
    Conflicted,
    /// A claim's object is gone, and nobody will unprepare it.
    Orphaned,
    /// A container of the pod is not believed in a claim.
    NotBelieved,
    /// A CPU limit of the pod stops a container on CPUs that are its own.
    Throttled,
}

/// The notices that wait to be taken.
#[derive(Debug, Default)]
pub(super) struct Notices {
    waiting: Mutex<Waiting>,
    told: Notify,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Text, and how often.
    notices: BTreeMap<(Subject, Matter), (String, u32)>,
    lost: u64,
}

impl Notices {
    /// Never waits. What waits already is there once, in the latest words. Where too much waits, what is new is
    /// lost, and counted.
    fn tell(&self, about: Subject, matter: Matter, text: &str) {
        // Nobody can look there: of another driver's claims only the CPUs are known.
        if !is_dns_label(&about.namespace) || about.name.is_empty() {
            return;
        }
        let mut waiting = lock(&self.waiting);
        let key = (about, matter);
        if waiting.notices.len() < MOST_WAITING || waiting.notices.contains_key(&key) {
            let (latest, times) = waiting.notices.entry(key).or_default();
            *latest = sentence(text).into_owned();
            *times = times.saturating_add(1);
        } else {
            waiting.lost += 1;
        }
        self.told.notify_one();
    }

    fn take(&self) -> (Vec<Notice>, u64) {
        let Waiting { notices, lost } = std::mem::take(&mut *lock(&self.waiting));
        let notice = |((about, matter), (text, times))| Notice { about, matter, text, times };
        (notices.into_iter().map(notice).collect(), lost)
    }
}

impl Driver {
    /// Waits for notices. All that wait, and how many were lost since the last call because too many did. Nothing
    /// is lost when this is dropped.
    pub async fn next_notices(&self) -> (Vec<Notice>, u64) {
        loop {
            match self.notices.take() {
                (notices, 0) if notices.is_empty() => self.notices.told.notified().await,
                told => return told,
            }
        }
    }

    /// A claim was refused. Says nothing where there is no such claim to look at, the API server is away, or the
    /// claim is in other hands.
    pub(super) fn tell_refused(&self, claim: &ClaimRef, error: &PrepareError) {
        let silent =
            matches!(error, PrepareError::Api(_) | PrepareError::Replaced(_) | PrepareError::Overtaken);
        if !silent {
            let ClaimRef { uid, namespace, name } = claim.clone();
            let about = Subject { kind: Kind::Claim, uid, namespace, name };
            self.notices.tell(about, Matter::NotPrepared, &chain(error));
        }
    }

    /// The claims that hold CPUs which they should not hold, or not alone.
    pub(super) fn tell_doubts(&self, ledger: &Ledger) {
        for uid in ledger.stranded() {
            let Some(booking) = ledger.booking(&uid) else { continue };
            let reserved = booking.cpus().intersection(&ledger.node().reserved);
            let text = format!(
                "the claim holds CPUs {reserved}, which the node has reserved since; it keeps them until its pod is \
                 deleted"
            );
            self.tell_of(&uid, booking, Matter::Stranded, &text);
        }
        let (twice, claims) = ledger.conflicted();
        for uid in &claims {
            let Some(booking) = ledger.booking(uid) else { continue };
            let cpus = booking.cpus().union(&booking.blocked()).intersection(&twice);
            let others: Vec<String> =
                ledger.holders(&cpus).into_iter().map(|(uid, _)| uid.to_string()).collect();
            let text = format!(
                "CPUs {cpus} are recorded for claims {}: delete the pods of all but one; until then the claims share \
                 them, and nobody else gets them",
                others.join(" and ")
            );
            self.tell_of(uid, booking, Matter::Conflicted, &text);
        }
    }

    /// A claim's object is gone, and so are its containers.
    pub(super) fn tell_orphaned(&self, uid: &ClaimUid, booking: &Booking) {
        let cpus = booking.cpus();
        let text = format!(
            "the claim is gone, and so are its containers, but it was not unprepared: CPUs {cpus} stay its own until \
             `dracpu claims release {uid}` frees them"
        );
        self.tell_of(uid, booking, Matter::Orphaned, &text);
    }

    fn tell_of(&self, uid: &ClaimUid, booking: &Booking, matter: Matter, text: &str) {
        let (uid, namespace, name) = (uid.to_string(), booking.namespace.clone(), booking.name.clone());
        self.notices.tell(Subject { kind: Kind::Claim, uid, namespace, name }, matter, text);
    }

    /// A container is not made, for what it says of claims.
    pub(super) fn tell_not_created(&self, container: &Container, error: &ContainerError) {
        if matches!(error, ContainerError::Env(_) | ContainerError::Create(CreateError::Entry(_))) {
            let name = &container.name;
            self.tell_not_believed(
                &container.who(),
                &format!("container {name} is not created: {}", chain(error)),
            );
        }
    }

    /// A container is not believed in what it says of claims.
    pub(super) fn tell_not_believed(&self, who: &Who, text: &str) {
        self.notices.tell(pod_of(who), Matter::NotBelieved, text);
    }

    /// A container runs on CPUs of its own, these: do limits stop it there?
    pub(super) fn tell_throttled(&self, container: &Container, cpus: &CpuSet) {
        let throttles = |quota: &Quota| quota.throttles(cpus.len());
        let own = container.quota.filter(|_| !self.config.remove_cfs_quota).filter(throttles);
        let (limit, remedy) = match (own, container.pod.quota.filter(throttles)) {
            (Some(quota), _) => (
                format!("its CPU limit is {quota}"),
                "take the CPU limit out of the pod, or set `cfsQuota: remove` in the driver's configuration",
            ),
            (None, Some(quota)) => (
                format!("the CPU limits of its pod add up to {quota}"),
                "take the CPU limit of one of its containers out, which lifts the pod's",
            ),
            (None, None) => return,
        };
        let Container { name, .. } = container;
        let text = format!(
            "container {name} can be throttled on the CPUs of its claims ({cpus}, {} in all): {limit}; {remedy}",
            cpus.len()
        );
        self.notices.tell(pod_of(&container.who()), Matter::Throttled, &text);
    }
}

fn pod_of(who: &Who) -> Subject {
    let Who { pod_uid, pod_namespace, pod_name, .. } = who.clone();
    Subject { kind: Kind::Pod, uid: pod_uid, namespace: pod_namespace, name: pod_name }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(name: &str) -> Subject {
        Subject { kind: Kind::Pod, uid: name.into(), namespace: "ns".into(), name: name.into() }
    }

    #[test]
    fn what_happens_again_waits_once_in_the_latest_words() {
        let notices = Notices::default();
        notices.tell(pod("p"), Matter::Throttled, "one");
        notices.tell(pod("p"), Matter::NotBelieved, "other");
        notices.tell(pod("p"), Matter::Throttled, "two");
        let notice = |matter, text: &str, times| Notice { about: pod("p"), matter, text: text.into(), times };
        let expected = vec![notice(Matter::NotBelieved, "other", 1), notice(Matter::Throttled, "two", 2)];
        assert_eq!(notices.take(), (expected, 0));
        assert_eq!(notices.take(), (vec![], 0));
    }

    #[test]
    fn where_too_much_waits_what_is_new_is_counted_and_what_waits_goes_on() {
        let notices = Notices::default();
        for n in 0..MOST_WAITING + 3 {
            notices.tell(pod(&n.to_string()), Matter::Throttled, "one");
        }
        notices.tell(pod("0"), Matter::Throttled, &"x".repeat(1 << 20));
        let (told, lost) = notices.take();
        assert_eq!((told.len(), lost), (MOST_WAITING, 3));
        assert!(told.iter().all(|notice| notice.text.len() < 2000));
        assert_eq!(told[0].times, 2);
    }
}
