//! The checks: facts → verdict, each by itself, in the order in which they are shown. Pure.
//!
//! Reading order: `kubelet`, `runtime`, `cdi` (files), `cpus` (whose they are), `containers` (what processes really have),
//! `driver` (slices, strategy, lock).

mod cdi;
mod containers;
mod cpus;
mod driver;
mod kubelet;
mod runtime;

use super::facts::Facts;
use super::verdict::Verdict;
use crate::live::{NodeReport, RuntimeReport};

/// A check.
pub(super) type Check = fn(&Facts) -> Verdict;

/// All checks by id. Ids are stable; new ones come at the end.
pub(super) const CHECKS: [(&str, Check); 19] = [
    ("kubelet-cpu-manager", kubelet::cpu_manager),
    ("registration", kubelet::registration),
    ("node-name", driver::node_name),
    ("nri-version", runtime::nri_version),
    ("nri-connected", runtime::nri_connected),
    ("cdi-dir", cdi::directory),
    ("cdi-version", cdi::version),
    ("records", cdi::records),
    ("overlap", cpus::overlap),
    ("stranded", cpus::stranded),
    ("orphans", cpus::orphans),
    ("masks", containers::masks),
    ("slices", driver::slices),
    ("feature-gates", driver::feature_gates),
    ("attribute-limits", driver::attribute_limits),
    ("cfs-quota", containers::cfs_quota),
    ("reserved-match", kubelet::reserved_match),
    ("strategy", driver::strategy),
    ("lock", driver::lock),
];

/// A check of what the daemon says; unknown when it says nothing.
fn of_daemon(facts: &Facts, check: impl FnOnce(&NodeReport) -> Verdict) -> Verdict {
    match &facts.daemon {
        Ok(report) => check(report),
        Err(why) if facts.root_only => Verdict::unknown(why, AS_ROOT),
        Err(_) => Verdict::unknown("the driver does not answer", "see lock"),
    }
}

/// A check of the runtime that is connected or was last; unknown when none has been.
fn of_runtime(facts: &Facts, check: impl FnOnce(&RuntimeReport) -> Verdict) -> Verdict {
    of_daemon(facts, |node| match &node.nri.runtime {
        Some(runtime) => check(runtime),
        None => Verdict::unknown(
            "no container runtime has been connected since the driver's start",
            "see nri-connected",
        ),
    })
}

/// What not every user sees.
const AS_ROOT: &str = "run as root, where the driver runs";

/// What needs the host's processes and files.
const ON_THE_HOST: &str = "run on the host, as root";

/// A few of many, and how many more there are.
fn some(of: impl IntoIterator<Item = String>) -> String {
    const MOST: usize = 5;
    let all: Vec<String> = of.into_iter().collect();
    let shown = all.get(..MOST).unwrap_or(&all).join(", ");
    match all.len().saturating_sub(MOST) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::facts::fixtures;
    use super::super::verdict::Outcome;
    use super::*;

    #[test]
    fn a_node_that_is_well_passes_every_check() {
        let facts = fixtures::well();
        for (id, check) in CHECKS {
            let verdict = check(&facts);
            assert_eq!(verdict.outcome(), Outcome::Ok, "{id}: {verdict:?}");
        }
    }

    #[test]
    fn without_any_facts_nothing_is_ok_and_only_the_missing_driver_has_failed() {
        let facts = fixtures::nothing();
        for (id, check) in CHECKS {
            let verdict = check(&facts);
            let expected = if id == "lock" { Outcome::Failed } else { Outcome::Unknown };
            assert_eq!(verdict.outcome(), expected, "{id}: {verdict:?}");
        }
    }

    #[test]
    fn a_user_whom_the_driver_does_not_answer_hears_why_and_nothing_is_failed() {
        let mut facts = fixtures::nothing();
        facts.daemon = Err("/x.sock may be asked by root only".to_owned());
        facts.root_only = true;
        facts.lock = Ok(super::super::facts::Lock::Held("pid 7".to_owned()));
        for (id, check) in CHECKS {
            let verdict = check(&facts);
            assert_eq!(verdict.outcome(), Outcome::Unknown, "{id}: {verdict:?}");
            let told = verdict.message().contains("/x.sock may be asked by root only");
            assert!(told || ["kubelet-cpu-manager", "cdi-dir"].contains(&id), "{id}: {verdict:?}");
        }
        assert_eq!(cdi::directory(&facts).remedy(), Some(AS_ROOT));
    }

    #[test]
    fn of_many_a_few_are_named() {
        let names = |count: u32| (0..count).map(|n| n.to_string());
        assert_eq!(some(names(2)), "0, 1");
        assert_eq!(some(names(7)), "0, 1, 2, 3, 4 and 2 more");
    }
}
