//! All that the node holds, one by one, for people: what `status` counts.

use super::core::Driver;
use super::decide::StrategyInfo;
use super::locks::lock;
use super::status::Status;
use dracpu_cpuset::CpuSet;
use dracpu_ledger::{Booking, ClaimUid, Known, Ledger, Who};
use dracpu_topology::Warning;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// What the node holds, at one moment.
#[derive(Debug, Clone)]
pub struct Inventory {
    /// The sets and numbers.
    pub status: Status,
    /// By UID; claims without a record, of which only a container speaks, behind the others.
    pub claims: Vec<HeldClaim>,
    /// Those that the runtime has told of, by id.
    pub containers: Vec<KnownContainer>,
    /// The strategies that claims may name, or why one cannot be used; by name.
    pub strategies: BTreeMap<String, Result<StrategyInfo, String>>,
    /// What is odd about the machine, and what could not be published of it.
    pub warnings: Vec<Warning>,
    /// CPUs that the machine has and that are offline.
    pub offline: CpuSet,
}

/// A claim that holds CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldClaim {
    /// Its UID.
    pub uid: String,
    /// What it holds.
    pub booking: Booking,
    /// How it is.
    pub state: ClaimState,
    /// The container that it belongs to, alive or not; none before the first.
    pub owner: Option<Who>,
    /// Those of its CPUs that are offline.
    pub offline: CpuSet,
    /// False when there is no record of it: a container says that it has these CPUs, and the API server has not been
    /// asked yet.
    pub recorded: bool,
}

/// How a claim is. The first that is true of it, in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ClaimState {
    /// Its record and that of another claim name the same CPUs, which are in no pool until both claims are gone.
    Conflicted,
    /// It holds CPUs that have become reserved since. It keeps them until it is unprepared.
    Stranded,
    /// Its object is gone at the API server, as of the last time that was asked, and no container that has it is alive:
    /// nobody will unprepare it.
    Orphan,
    /// A container that has it has been made and has not ended.
    Bound,
    /// Its last container has ended; or a container says that it has it, and there is no record: its CPUs are kept until
    /// the API server has been asked.
    Held,
    /// Prepared; no container that has it is known yet.
    Waiting,
}

impl fmt::Display for ClaimState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Conflicted => "conflicted",
            Self::Stranded => "stranded",
            Self::Orphan => "orphan",
            Self::Bound => "bound",
            Self::Held => "held",
            Self::Waiting => "waiting",
        })
    }
}

/// A container that the runtime has told of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownContainer {
    /// Which one.
    pub who: Who,
    /// UIDs of the claims that it has.
    pub claims: Vec<String>,
    /// UIDs of claims that it says it has, without a record. While there are any, it is left alone.
    pub unproven: Vec<String>,
    /// The mask that it should have; none when it has ended or is left alone.
    pub wanted: Option<CpuSet>,
    /// The mask that it has as far as this driver knows.
    pub believed: Option<CpuSet>,
    /// Whether its process has been started.
    pub started: bool,
    /// Whether it has ended.
    pub stopped: bool,
}

impl Driver {
    /// What the node holds, one by one.
    #[must_use]
    pub fn inventory(&self) -> Inventory {
        let orphans = lock(&self.orphans).clone();
        let told = lock(&self.told).clone();
        let ledger = self.ledger();
        let recorded = ledger.bookings().map(|(uid, booking)| held(&ledger, &orphans, uid, booking));
        let unproven = ledger.unproven_claims().filter(|(_, uid, _)| ledger.booking(uid).is_none());
        let unproven = unproven.map(|(who, uid, cpus)| HeldClaim {
            uid: uid.to_string(),
            booking: Booking::plain(cpus.clone()),
            state: ClaimState::Held,
            owner: Some(who.clone()),
            offline: cpus.difference(&ledger.node().online),
            recorded: false,
        });
        Inventory {
            claims: recorded.chain(unproven).collect(),
            containers: ledger.containers().map(KnownContainer::from).collect(),
            status: self.summary(&ledger, &orphans),
            strategies: told.strategies,
            warnings: told.warnings,
            offline: told.offline,
        }
    }
}

fn held(ledger: &Ledger, orphans: &BTreeSet<ClaimUid>, uid: &ClaimUid, booking: &Booking) -> HeldClaim {
    let owner = ledger.owner(uid);
    let cpus = booking.cpus();
    let all = cpus.union(&booking.blocked());
    // A look at each claim, with as many others as there are: some hundred at most.
    let conflicted = || ledger.holders(&all).iter().any(|(other, _)| other != uid);
    let state = if conflicted() {
        ClaimState::Conflicted
    } else if !cpus.is_disjoint(&ledger.node().reserved) {
        ClaimState::Stranded
    } else if ledger.in_use(uid).is_some() {
        ClaimState::Bound
    } else if orphans.contains(uid) {
        ClaimState::Orphan
    } else if owner.is_some() {
        ClaimState::Held
    } else {
        ClaimState::Waiting
    };
    HeldClaim {
        uid: uid.to_string(),
        state,
        owner: owner.cloned(),
        offline: cpus.difference(&ledger.node().online),
        recorded: true,
        booking: booking.clone(),
    }
}

impl From<Known<'_>> for KnownContainer {
    fn from(known: Known<'_>) -> Self {
        let Known { who, claims, unproven, wanted, believed, started, stopped } = known;
        Self {
            who: who.clone(),
            claims: claims.iter().map(ToString::to_string).collect(),
            unproven: unproven.keys().map(ToString::to_string).collect(),
            wanted,
            believed: believed.cloned(),
            started,
            stopped,
        }
    }
}
