use super::super::facts::{Container, Facts, Limit, Process};
use super::super::verdict::Verdict;
use super::{ON_THE_HOST, of_daemon, some};
use crate::live::{ContainerReport, NodeReport};
use dracpu_cpuset::CpuSet;
use std::collections::BTreeMap;

/// Whether containers other than the one that this process is in can be seen, where there are any.
fn visible(facts: &Facts, running: &[&ContainerReport]) -> bool {
    let own = facts.containers.own.as_deref();
    let is_other = |id: &str| Some(id) != own;
    !running.iter().any(|container| is_other(&container.id))
        || facts.containers.seen.keys().any(|id| is_other(id))
}

fn unseen() -> Verdict {
    Verdict::unknown("the processes of containers cannot be seen from here", ON_THE_HOST)
}

/// Of containers that should run, those that have no process that can be seen.
fn unseen_of(facts: &Facts, running: &[&ContainerReport]) -> Option<Verdict> {
    let unseen = running.iter().filter(|container| !facts.containers.seen.contains_key(&container.id));
    let unseen: Vec<String> = unseen.map(|container| shown(container)).collect();
    (!unseen.is_empty()).then(|| {
        Verdict::unknown(
            format!("no process of these containers can be seen from here: {}", some(unseen)),
            "run on the host, as root; where this was, they have just started or ended: run it again",
        )
    })
}

/// Claims whose containers run on fewer CPUs than they were given, because the kernel has some offline.
fn offline(node: &NodeReport) -> Option<Verdict> {
    let claims = node.claims.iter().filter(|claim| !claim.offline.is_empty());
    let claims: Vec<String> = claims
        .map(|claim| match claim.name.as_str() {
            "" => format!("claim {}: CPUs {}", claim.uid, claim.offline),
            name => format!("claim {}/{name} ({}): CPUs {}", claim.namespace, claim.uid, claim.offline),
        })
        .collect();
    (!claims.is_empty()).then(|| {
        Verdict::warning(
            format!("CPUs of claims are offline: {}", some(claims)),
            "bring them online (echo 1 > /sys/devices/system/cpu/cpuN/online), or delete the claims' pods: new ones get other CPUs",
        )
    })
}

fn running(node: &NodeReport) -> impl Iterator<Item = &ContainerReport> {
    node.containers.iter().filter(|container| container.started && !container.stopped)
}

fn shown(container: &ContainerReport) -> String {
    format!("{} of pod {}/{}", container.name, container.pod.namespace, container.pod.name)
}

/// The masks that the driver wants, against those that processes have. The kernel intersects an affinity that a process set
/// itself with its cgroup's CPUs: it may be smaller, never larger.
pub(super) fn masks(facts: &Facts) -> Verdict {
    of_daemon(facts, |node| {
        let running: Vec<&ContainerReport> =
            running(node).filter(|container| container.wanted.is_some()).collect();
        if !visible(facts, &running) {
            return offline(node).unwrap_or_else(unseen);
        }
        let (mut outside, mut narrow) = (Vec::new(), Vec::new());
        let mut compared = 0;
        for &container in &running {
            let Some((Container { processes, .. }, wanted)) =
                facts.containers.seen.get(&container.id).zip(container.wanted.as_ref())
            else {
                continue;
            };
            compared += 1;
            let runs = wanted.intersection(&node.cpus.online);
            let said = |process: &Process, cpus: &CpuSet| {
                let (pid, name) = (process.pid, &process.name);
                format!(
                    "{}: process {pid} ({name}) may run on CPUs {cpus}, the container has {wanted}",
                    shown(container)
                )
            };
            outside.extend(
                processes
                    .iter()
                    .filter(|process| !process.threads.is_subset(wanted))
                    .map(|process| said(process, &process.threads)),
            );
            narrow.extend(
                processes
                    .iter()
                    .filter(|process| process.allowed != *wanted && process.allowed != runs)
                    .map(|process| said(process, &process.allowed)),
            );
        }
        if !outside.is_empty() {
            return Verdict::failed(
                some(outside),
                "somebody else writes cpusets here (the kubelet's CPU manager, a tuning service): end that, and restart the driver, \
                 which sets all masks anew",
            );
        }
        if let Some(offline) = offline(node) {
            return offline;
        }
        if !narrow.is_empty() {
            return Verdict::warning(
                some(narrow),
                "a program that pinned itself is well; one that did not keeps an affinity from before: restart its container. \
                 While dra_cpu_shared_pool_pending is above 0, wider masks follow with the next container",
            );
        }
        unseen_of(facts, &running).unwrap_or_else(|| {
            Verdict::ok(format!("processes run where they should (containers {compared})"))
        })
    })
}

/// A quota below the CPUs of a claim throttles its container.
pub(super) fn cfs_quota(facts: &Facts) -> Verdict {
    of_daemon(facts, |node| {
        let running: Vec<&ContainerReport> =
            running(node).filter(|container| !container.claims.is_empty()).collect();
        if !visible(facts, &running) {
            return unseen();
        }
        // A pod's quota is for all its containers.
        let mut limits: BTreeMap<&Limit, (usize, Vec<String>)> = BTreeMap::new();
        let mut looked_at = 0;
        for &container in &running {
            let Some(seen) = facts.containers.seen.get(&container.id) else { continue };
            let found = match &seen.limits {
                Ok(found) => found,
                Err(why) => return Verdict::unknown(format!("{}: {why}", shown(container)), ON_THE_HOST),
            };
            looked_at += 1;
            let mut cpus = CpuSet::new();
            for claim in node.claims.iter().filter(|claim| container.claims.contains(&claim.uid)) {
                cpus.extend_from(&claim.cpus);
            }
            for limit in found {
                let (needed, containers) = limits.entry(limit).or_default();
                *needed += cpus.len();
                containers.push(shown(container));
            }
        }
        let throttles = |(limit, (needed, _)): &(&Limit, (usize, Vec<String>))| {
            let needed = u64::try_from(*needed).unwrap_or(u64::MAX);
            limit.quota_us < limit.period_us.saturating_mul(needed)
        };
        let throttled: Vec<String> = limits
            .into_iter()
            .filter(throttles)
            .map(|(Limit { cgroup, quota_us, period_us }, (needed, containers))| {
                let containers = some(containers);
                format!("{containers}: {needed} CPUs by claims, and {cgroup} allows {quota_us} of each {period_us} µs")
            })
            .collect();
        if throttled.is_empty() {
            return unseen_of(facts, &running).unwrap_or_else(|| {
                Verdict::ok(format!("no claim is throttled below its CPUs (containers {looked_at})"))
            });
        }
        Verdict::warning(
            some(throttled),
            "set no CPU limit on any container of such a pod; cfsQuota: remove lifts only the container's own quota, not the pod's",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::fixtures;
    use super::super::super::verdict::Outcome;
    use super::*;

    fn process(allowed: &str, threads: &str) -> Process {
        let (allowed, threads) = (allowed.parse().unwrap(), threads.parse().unwrap());
        Process { pid: 42, name: "app".to_owned(), allowed, threads }
    }

    fn with(facts: &mut Facts, processes: Vec<Process>) {
        facts.containers.seen.get_mut("c-1").unwrap().processes = processes;
    }

    #[test]
    fn a_process_on_cpus_that_its_container_has_not_fails_even_with_one_thread() {
        // The container has CPUs 0-1.
        for (processes, expected) in [
            (vec![process("0-1", "0-1")], Outcome::Ok),
            (vec![process("0-1", "0-1"), process("0-7", "0-7")], Outcome::Failed),
            (vec![process("0-1", "0-1,5")], Outcome::Failed),
            (vec![process("2", "2")], Outcome::Failed),
            (vec![process("1", "1")], Outcome::Warning),
        ] {
            let mut facts = fixtures::well();
            with(&mut facts, processes.clone());
            let verdict = masks(&facts);
            assert_eq!(verdict.outcome(), expected, "{processes:?} {verdict:?}");
            if expected != Outcome::Ok {
                let message = verdict.message();
                assert!(
                    message.contains("app of pod default/of-web: process 42 (app) may run on CPUs"),
                    "{message}"
                );
                assert!(message.contains("the container has 0-1"), "{message}");
            }
        }
    }

    #[test]
    fn from_inside_a_container_masks_and_quotas_are_unknown() {
        let mut facts = fixtures::well();
        // Of another container than the one whose processes are seen, which is this one.
        let mut other = facts.daemon.as_ref().unwrap().containers[0].clone();
        other.id = "c-2".to_owned();
        facts.daemon.as_mut().unwrap().containers.push(other);
        facts.containers.own = Some("c-1".to_owned());
        assert_eq!(masks(&facts).outcome(), Outcome::Unknown);
        assert_eq!(masks(&facts).remedy(), Some("run on the host, as root"));
        assert_eq!(cfs_quota(&facts).outcome(), Outcome::Unknown);
        facts.containers.seen.clear();
        assert_eq!(masks(&facts).outcome(), Outcome::Unknown);
    }

    #[test]
    fn a_container_of_which_no_process_is_seen_is_unknown_and_named() {
        let mut facts = fixtures::well();
        let node = facts.daemon.as_mut().unwrap();
        let mut other = node.containers[0].clone();
        (other.id, other.pod.name) = ("c-2".to_owned(), "unseen".to_owned());
        node.containers.push(other);
        for check in [masks, cfs_quota] {
            let verdict = check(&facts);
            assert_eq!(verdict.outcome(), Outcome::Unknown, "{verdict:?}");
            assert!(verdict.message().ends_with("from here: app of pod default/unseen"), "{verdict:?}");
        }
        // What is seen to be wrong comes first.
        with(&mut facts, vec![process("0-7", "0-7")]);
        assert_eq!(masks(&facts).outcome(), Outcome::Failed);
    }

    #[test]
    fn a_claim_with_an_offline_cpu_is_a_warning_with_its_name() {
        let mut facts = fixtures::well();
        let node = facts.daemon.as_mut().unwrap();
        node.claims[0].offline = "1".parse().unwrap();
        node.cpus.online = "0,2-7".parse().unwrap();
        // The kernel takes it from the mask of its processes.
        with(&mut facts, vec![process("0", "0")]);
        let verdict = masks(&facts);
        assert_eq!(verdict.outcome(), Outcome::Warning);
        assert_eq!(verdict.message(), "CPUs of claims are offline: claim default/web (u-1): CPUs 1");
        facts.containers.seen.clear();
        assert_eq!(masks(&facts), verdict, "nothing of it depends on processes");
    }

    #[test]
    fn containers_that_are_left_alone_or_have_ended_are_not_compared() {
        let mut facts = fixtures::well();
        with(&mut facts, vec![process("0-7", "0-7")]);
        let container = &mut facts.daemon.as_mut().unwrap().containers[0];
        container.wanted = None;
        assert_eq!(masks(&facts).outcome(), Outcome::Ok);
        let container = &mut facts.daemon.as_mut().unwrap().containers[0];
        (container.wanted, container.stopped) = (Some("0-1".parse().unwrap()), true);
        assert_eq!(masks(&facts).outcome(), Outcome::Ok);
    }

    #[test]
    fn a_quota_below_the_cpus_of_a_claim_is_a_warning_on_the_container_or_its_pod() {
        let limit =
            |cgroup: &str, quota_us| Limit { cgroup: cgroup.to_owned(), quota_us, period_us: 100_000 };
        // The claim has two CPUs.
        for (limits, expected) in [
            (vec![limit("/pod/c", 200_000), limit("/pod", 250_000)], Outcome::Ok),
            (vec![limit("/pod/c", 199_999)], Outcome::Warning),
            (vec![limit("/pod", 150_000)], Outcome::Warning),
        ] {
            let mut facts = fixtures::well();
            facts.containers.seen.get_mut("c-1").unwrap().limits = Ok(limits.clone());
            let verdict = cfs_quota(&facts);
            assert_eq!(verdict.outcome(), expected, "{limits:?}");
            if expected != Outcome::Ok {
                assert!(
                    verdict.message().contains("app of pod default/of-web: 2 CPUs by claims, and /pod"),
                    "{verdict:?}"
                );
            }
        }
        let mut facts = fixtures::well();
        facts.containers.seen.get_mut("c-1").unwrap().limits = Err("not seen".to_owned());
        assert_eq!(cfs_quota(&facts).outcome(), Outcome::Unknown);
    }

    #[test]
    fn a_pods_quota_is_for_all_its_containers() {
        let mut facts = fixtures::well();
        let seen = facts.containers.seen.get_mut("c-1").unwrap();
        seen.limits = Ok(vec![Limit { cgroup: "/pod".to_owned(), quota_us: 300_000, period_us: 100_000 }]);
        let seen = seen.clone();
        assert_eq!(cfs_quota(&facts).outcome(), Outcome::Ok);
        let node = facts.daemon.as_mut().unwrap();
        let (mut claim, mut container) = (node.claims[0].clone(), node.containers[0].clone());
        (claim.uid, claim.cpus) = ("u-2".to_owned(), "2-3".parse().unwrap());
        (container.id, container.claims) = ("c-2".to_owned(), vec!["u-2".to_owned()]);
        node.claims.push(claim);
        node.containers.push(container);
        facts.containers.seen.insert("c-2".to_owned(), seen);
        let verdict = cfs_quota(&facts);
        assert_eq!(verdict.outcome(), Outcome::Warning);
        assert!(verdict.message().contains("4 CPUs by claims"), "{verdict:?}");
    }
}
