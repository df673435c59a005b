use super::subject::name_of;
use crate::driver::ClaimState;
use crate::live::{ClaimReport, NodeReport};
use crate::words::plain;

/// Whose a CPU is.
pub(super) struct Whose {
    /// `claim`, `blocked`, `unproven`, `offline`, `reserved`, `isolated` or `shared`.
    pub(super) what: &'static str,
    /// UIDs of the claims that hold or block it.
    pub(super) claims: Vec<String>,
    /// For a person.
    pub(super) sentence: String,
}

/// None when the machine has no such CPU.
pub(super) fn whose(node: &NodeReport, cpu: u32) -> Option<Whose> {
    let holds = |claim: &&ClaimReport| claim.recorded && claim.cpus.contains(cpu);
    let blocks = |claim: &&ClaimReport| claim.recorded && claim.blocked.contains(cpu);
    let (holders, blockers): (Vec<_>, Vec<_>) =
        (node.claims.iter().filter(holds).collect(), node.claims.iter().filter(blocks).collect());
    let cpus = &node.cpus;
    let is_online = cpus.online.contains(cpu);
    let unless_online = if is_online { "" } else { "; it is offline" };
    let uids = |claims: &[&ClaimReport]| claims.iter().map(|claim| claim.uid.clone()).collect();
    let (what, claims, text) = match (holders.as_slice(), blockers.as_slice()) {
        (all @ [_, ..], also) => {
            let sentences: Vec<String> = all.iter().map(|claim| has(claim)).collect();
            let conflict = if all.len() + also.len() > 1 { "; their records disagree" } else { "" };
            ("claim", uids(all), format!("{}{conflict}{unless_online}", sentences.join(", and ")))
        }
        ([], [blocker, ..]) => {
            let name = name_of(blocker);
            let text = format!(
                "nobody runs on it: claim {name} keeps it idle beside its own CPUs {}{unless_online}",
                blocker.cpus
            );
            ("blocked", uids(&blockers), text)
        }
        ([], []) if !is_online && !cpus.offline.contains(cpu) => return None,
        ([], []) if !is_online => ("offline", Vec::new(), "nobody has it: it is offline".to_owned()),
        ([], []) if cpus.reserved.contains(cpu) => {
            ("reserved", Vec::new(), "nobody has it: it is reserved by configuration".to_owned())
        }
        ([], []) if cpus.unproven.contains(cpu) => {
            let said = node.claims.iter().filter(|claim| !claim.recorded && claim.cpus.contains(cpu));
            let claims: Vec<String> = said.clone().map(|claim| claim.uid.clone()).collect();
            let who = said.map(|claim| claim.uid.as_str()).collect::<Vec<_>>().join(", ");
            let text = format!(
                "it goes to no new claim: a container says that it has it of claim {who}, which has no record, and the API \
                 server is asked whether that is so"
            );
            ("unproven", claims, text)
        }
        ([], []) if cpus.isolated.contains(cpu) => {
            let text = "nobody has it: the kernel isolates it, so it is never shared; a claim may have it where the \
                        strategy's option `isolated` says so";
            ("isolated", Vec::new(), text.to_owned())
        }
        ([], []) => {
            let runs = |wanted: &dracpu_cpuset::CpuSet| wanted.contains(cpu);
            let containers = node
                .containers
                .iter()
                .filter(|container| container.wanted.as_ref().is_some_and(runs))
                .count();
            let text = format!(
                "it is in the shared pool of {} CPUs ({} there now); a claim may have it",
                cpus.shared.len(),
                match containers {
                    0 => "no container is".to_owned(),
                    1 => "1 container is".to_owned(),
                    more => format!("{more} containers are"),
                }
            );
            ("shared", Vec::new(), text)
        }
    };
    Some(Whose { what, claims, sentence: plain(&format!("CPU {cpu}: {text}")) })
}

fn has(claim: &ClaimReport) -> String {
    let name = name_of(claim);
    match (claim.state, &claim.pod, &claim.container) {
        (ClaimState::Orphan, ..) => {
            format!("claim {name} has it, an orphan: `dracpu claims release {}` frees it", claim.uid)
        }
        (state, Some(pod), Some(container)) => {
            format!(
                "claim {name} has it ({state}), for container {container} of pod {}/{}",
                pod.namespace, pod.name
            )
        }
        (state, ..) => format!("claim {name} has it ({state})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::fixtures;
    use dracpu_cpuset::CpuSet;

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn of_every_cpu_it_is_said_who_has_it_or_why_nobody_does() {
        let mut said = fixtures::claim("u-6", "", ClaimState::Held, "6", "");
        said.recorded = false;
        let mut node = fixtures::node(vec![
            fixtures::claim("u-0", "web", ClaimState::Bound, "0,9", "1"),
            fixtures::claim("u-2", "old", ClaimState::Orphan, "2", ""),
            fixtures::claim("u-3", "a", ClaimState::Conflicted, "3", ""),
            fixtures::claim("u-4", "b", ClaimState::Conflicted, "3", ""),
            said,
        ]);
        node.cpus.reserved = cpus("4");
        node.cpus.isolated = cpus("5");
        node.cpus.unproven = cpus("6");
        node.cpus.offline = cpus("8");
        for (cpu, what, words) in [
            (0, "claim", "claim default/web has it (bound), for container app of pod default/of-web"),
            (1, "blocked", "claim default/web keeps it idle beside its own CPUs 0,9"),
            (2, "claim", "`dracpu claims release u-2` frees it"),
            (3, "claim", "claim default/a has it (conflicted), and claim default/b has it"),
            (4, "reserved", "reserved by configuration"),
            (5, "isolated", "the kernel isolates it"),
            (6, "unproven", "says that it has it of claim u-6, which has no record"),
            (7, "shared", "in the shared pool"),
            (9, "claim", "it is offline"),
            (8, "offline", "nobody has it: it is offline"),
        ] {
            let whose = whose(&node, cpu).unwrap();
            assert_eq!(whose.what, what, "{cpu}: {}", whose.sentence);
            assert!(whose.sentence.starts_with(&format!("CPU {cpu}: ")), "{}", whose.sentence);
            assert!(whose.sentence.contains(words), "{words} in {}", whose.sentence);
        }
        assert_eq!(whose(&node, 3).unwrap().claims, ["u-3", "u-4"]);
        for none in [10, u32::MAX] {
            assert!(whose(&node, none).is_none(), "{none}");
        }
    }
}
