//! Sets that follow from the claims and the node. Nothing here is stored, so nothing can disagree.

use crate::booking::{ClaimUid, Node, union};
use crate::ledger::Ledger;
use dracpu_cpuset::CpuSet;

impl Ledger {
    /// The node's CPUs.
    #[must_use]
    pub fn node(&self) -> &Node {
        &self.node
    }

    /// CPUs that claims could have: online, not reserved.
    #[must_use]
    pub fn allocatable(&self) -> CpuSet {
        self.node.online.difference(&self.node.reserved)
    }

    /// CPUs that claims hold or block.
    #[must_use]
    pub fn booked(&self) -> CpuSet {
        union(self.claims.values().flat_map(|held| [&held.cpus, &held.blocked]))
    }

    /// CPUs that containers may be running on for a claim without a record: given to no new claim, but not
    /// taken from the shared pool, since a variable that anybody can set must not empty it.
    #[must_use]
    pub fn unproven(&self) -> CpuSet {
        let said = union(self.containers.values().flat_map(|entry| entry.unproven.values()));
        said.difference(&self.booked())
    }

    /// What a new claim can choose from.
    #[must_use]
    pub fn free(&self) -> CpuSet {
        let mut free = self.allocatable();
        free.subtract(&self.booked());
        free.subtract(&self.unproven());
        free
    }

    /// The CPUs of all containers without a claim.
    #[must_use]
    pub fn shared_pool(&self) -> CpuSet {
        let mut shared = self.allocatable();
        shared.subtract(&self.node.isolated);
        shared.subtract(&self.booked());
        shared
    }

    /// The CPUs of all containers without a claim, as far as no claim may be running there; and how many of them new
    /// claims must leave.
    #[must_use]
    pub fn pool_and_floor(&self) -> (CpuSet, usize) {
        (self.shared_pool().difference(&self.unproven()), self.floor)
    }

    /// The claims that hold or block some of these CPUs, each with those.
    #[must_use]
    pub fn holders(&self, cpus: &CpuSet) -> Vec<(ClaimUid, CpuSet)> {
        let overlap = self.claims.iter().map(|(uid, held)| {
            let mut has = held.cpus.intersection(cpus);
            has.extend_from(&held.blocked.intersection(cpus));
            (uid.clone(), has)
        });
        overlap.filter(|(_, has)| !has.is_empty()).collect()
    }

    /// Claims that hold CPUs which have become reserved since.
    #[must_use]
    pub fn stranded(&self) -> Vec<ClaimUid> {
        self.claims_where(|cpus| !cpus.is_disjoint(&self.node.reserved))
    }

    /// Claims that hold offline CPUs.
    #[must_use]
    pub fn unhealthy(&self) -> Vec<ClaimUid> {
        self.claims_where(|cpus| !cpus.is_subset(&self.node.online))
    }

    /// CPUs that more than one record claims, and those claims. Only records that came from outside can
    /// overlap.
    #[must_use]
    pub fn conflicted(&self) -> (CpuSet, Vec<ClaimUid>) {
        let (mut once, mut twice) = (CpuSet::new(), CpuSet::new());
        for held in self.claims.values() {
            let all = held.cpus.union(&held.blocked);
            twice.extend_from(&once.intersection(&all));
            once.extend_from(&all);
        }
        let claims = self.holders(&twice).into_iter().map(|(uid, _)| uid).collect();
        (twice, claims)
    }

    fn claims_where(&self, matches: impl Fn(&CpuSet) -> bool) -> Vec<ClaimUid> {
        self.claims.iter().filter(|(_, held)| matches(&held.cpus)).map(|(uid, _)| uid.clone()).collect()
    }
}
