//! Which PCIe roots the other devices of a claim are on, where the claim says that CPUs and devices must match on
//! it: CPUs local to that root are then preferred. A preference, so nothing of it ever fails a claim.

use super::claim::{AllocationResult, Claim};
use super::core::Driver;
use super::opaque::main_request;
use crate::device::PCIE_ROOT;
use futures::future::join_all;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// For all questions about one claim.
const TIMEOUT: Duration = Duration::from_secs(5);

/// By request of this driver: the roots that it was matched on, or why they are not known.
pub(super) type MatchedRoots = BTreeMap<String, Roots>;

type Roots = Result<BTreeSet<String>, String>;

impl Driver {
    /// Asks the API server for the roots of the devices of other drivers that this claim matches CPUs with.
    pub(super) async fn matched_roots(&self, claim: &Claim) -> MatchedRoots {
        let results = claim.results.as_deref().unwrap_or_default();
        let (ours, others): (Vec<_>, Vec<_>) =
            results.iter().partition(|result| result.driver == crate::DRIVER_NAME);
        let mut roots = MatchedRoots::new();
        for requests in &claim.pcie_root_matches {
            let matched = |result: &&&AllocationResult| covers(requests, &result.request);
            let ours: Vec<_> = ours.iter().filter(matched).collect();
            let others: Vec<_> = others.iter().filter(matched).collect();
            if ours.is_empty() || others.is_empty() {
                continue;
            }
            let all = join_all(others.iter().map(|other| self.roots_of(other)));
            let matched_on = match tokio::time::timeout(TIMEOUT, all).await {
                Ok(all) => common(all.into_iter()),
                Err(_) => Err(format!("the API server gave no answer within {} s", TIMEOUT.as_secs())),
            };
            for result in ours {
                let known = roots.remove(&result.request).into_iter();
                roots.insert(result.request.clone(), common(known.chain([matched_on.clone()])));
            }
        }
        roots
    }

    async fn roots_of(&self, device: &AllocationResult) -> Roots {
        let AllocationResult { driver, pool, device, .. } = device;
        match self.api().pcie_roots(&self.config.node_name, driver, pool, device).await {
            Ok(roots) if !roots.is_empty() => Ok(roots),
            Ok(_) => {
                Err(format!("no slice of this node gives device {driver}/{pool}/{device} a {PCIE_ROOT}"))
            }
            Err(error) => Err(error.to_string()),
        }
    }
}

/// Whether a constraint with these requests is for this one; a constraint without requests is for all.
fn covers(requests: &[String], request: &str) -> bool {
    requests.is_empty() || requests.iter().any(|name| name == request || name == main_request(request))
}

/// The roots that all have.
fn common(mut all: impl Iterator<Item = Roots>) -> Roots {
    let first = all.next().unwrap_or_else(|| Ok(BTreeSet::new()))?;
    all.try_fold(first, |common, roots| Ok(&common & &roots?))
}
