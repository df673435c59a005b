use super::super::facts::Facts;
use super::super::verdict::Verdict;
use super::{ON_THE_HOST, of_daemon};
use crate::dra::CpuManager;
use dracpu_cpuset::CpuSet;

/// Its socket is there, and nobody listens.
const START_IT: &str = "the kubelet does not run or is restarting: start it";

/// Two managers give the same CPUs away.
pub(super) fn cpu_manager(facts: &Facts) -> Verdict {
    match &facts.cpu_manager {
        Ok(CpuManager::Idle) => Verdict::ok("the kubelet's own CPU manager is off"),
        Ok(CpuManager::Manages(cpus)) => {
            let cpus = cpus.as_ref().map(|cpus| format!(", CPUs {cpus}")).unwrap_or_default();
            Verdict::failed(
                format!(
                    "the kubelet's own CPU manager is on (policy static{cpus}) and gives the same CPUs away"
                ),
                CpuManager::remedy(&facts.kubelet_root_dir),
            )
        }
        Err(why) if facts.kubelet_refuses => Verdict::unknown(why, START_IT),
        Err(why) => {
            let directory = facts.kubelet_root_dir.join("pod-resources");
            let remedy = format!("mount {} into the driver's pod, or {ON_THE_HOST}", directory.display());
            Verdict::unknown(why, remedy)
        }
    }
}

/// The kubelet sends claims to registered drivers only.
pub(super) fn registration(facts: &Facts) -> Verdict {
    of_daemon(facts, |node| match &node.kubelet.reason {
        None if node.kubelet.registered && facts.kubelet_refuses => Verdict::warning(
            "registered with a kubelet that answers no more: nobody serves its pod-resources socket",
            START_IT,
        ),
        None if node.kubelet.registered => Verdict::ok("registered with the kubelet"),
        reason => {
            let root = facts.kubelet_root_dir.display();
            let remedy = format!(
                "is the kubelet up, and {root} its directory (--kubelet-root-dir)? Its log says why it refuses"
            );
            Verdict::failed(reason.as_deref().unwrap_or("not registered with the kubelet"), remedy)
        }
    })
}

/// What the kubelet keeps for the system must not go to claims.
pub(super) fn reserved_match(facts: &Facts) -> Verdict {
    of_daemon(facts, |node| {
        let kubelet = match &facts.kubelet {
            Ok(kubelet) => kubelet,
            Err(why) => return Verdict::unknown(why, ON_THE_HOST),
        };
        let reserved = &node.cpus.reserved;
        let none = CpuSet::new();
        let theirs = kubelet.reserved_cpus.as_ref().unwrap_or(&none);
        let given_away = theirs.difference(reserved);
        if given_away.is_empty() {
            return Verdict::ok(match (theirs.is_empty(), reserved.is_empty()) {
                (true, true) => "neither the kubelet nor the driver reserves CPUs".to_owned(),
                (true, false) => format!("the driver reserves CPUs {reserved}, the kubelet none of its own"),
                _ => format!("CPUs {theirs}, which the kubelet reserves, are reserved here too"),
            });
        }
        Verdict::warning(
            format!(
                "the kubelet keeps CPUs {theirs} for the system, and claims may get {given_away} of them"
            ),
            format!("set reservedCPUs: \"{}\" in the driver's configuration", theirs.union(reserved)),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{Kubelet, fixtures};
    use super::super::super::verdict::Outcome;
    use super::*;

    #[test]
    fn the_static_policy_fails_with_what_to_change() {
        let mut facts = fixtures::well();
        facts.cpu_manager = Ok(CpuManager::Manages(Some("1-7".parse().unwrap())));
        let verdict = cpu_manager(&facts);
        assert_eq!(verdict.outcome(), Outcome::Failed);
        assert!(verdict.message().contains("policy static, CPUs 1-7"), "{verdict:?}");
        assert!(verdict.remedy().unwrap().contains("cpuManagerPolicy: none"), "{verdict:?}");
        facts.cpu_manager = Err("no answer".to_owned());
        assert_eq!(cpu_manager(&facts).outcome(), Outcome::Unknown);
    }

    #[test]
    fn a_kubelet_that_does_not_run_is_to_be_started_and_no_registration_with_it_is_ok() {
        let mut facts = fixtures::well();
        facts.cpu_manager = Err("the kubelet does not answer".to_owned());
        facts.kubelet_refuses = true;
        for (check, expected) in
            [(cpu_manager as super::super::Check, Outcome::Unknown), (registration, Outcome::Warning)]
        {
            let verdict = check(&facts);
            assert_eq!((verdict.outcome(), verdict.remedy()), (expected, Some(START_IT)), "{verdict:?}");
        }
    }

    #[test]
    fn a_driver_that_is_not_registered_fails_with_the_kubelets_reason() {
        let mut facts = fixtures::well();
        let node = facts.daemon.as_mut().unwrap();
        node.kubelet.registered = false;
        node.kubelet.reason = Some("the kubelet refused the registration: name is taken".to_owned());
        let verdict = registration(&facts);
        assert_eq!(verdict.outcome(), Outcome::Failed);
        assert!(verdict.message().contains("name is taken"), "{verdict:?}");
    }

    #[test]
    fn cpus_that_the_kubelet_reserves_alone_are_a_warning() {
        let mut facts = fixtures::well();
        for (theirs, ours, expected) in [
            (Some("0-1"), "0-1", Outcome::Ok),
            (Some("0-1"), "0-3", Outcome::Ok),
            (None, "0", Outcome::Ok),
            (None, "", Outcome::Ok),
            (Some("0-1"), "0", Outcome::Warning),
            (Some("0"), "", Outcome::Warning),
        ] {
            let reserved_cpus = theirs.map(|cpus| cpus.parse().unwrap());
            facts.kubelet = Ok(Kubelet { reserved_cpus, ..Kubelet::default() });
            facts.daemon.as_mut().unwrap().cpus.reserved = ours.parse().unwrap();
            assert_eq!(reserved_match(&facts).outcome(), expected, "{theirs:?} {ours}");
        }
        facts.kubelet = Ok(Kubelet { reserved_cpus: Some("0-1".parse().unwrap()), ..Kubelet::default() });
        facts.daemon.as_mut().unwrap().cpus.reserved = "0,4".parse().unwrap();
        assert_eq!(
            reserved_match(&facts).remedy(),
            Some("set reservedCPUs: \"0-1,4\" in the driver's configuration")
        );
    }
}
