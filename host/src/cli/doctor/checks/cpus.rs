use super::super::facts::Facts;
use super::super::verdict::Verdict;
use super::{of_daemon, some};
use crate::driver::ClaimState;
use crate::live::NodeReport;

fn in_state(node: &NodeReport, state: ClaimState) -> String {
    let claims = node.claims.iter().filter(|claim| claim.state == state);
    some(claims.map(|claim| match claim.name.as_str() {
        "" => claim.uid.clone(),
        name => format!("{}/{name} ({})", claim.namespace, claim.uid),
    }))
}

/// Every CPU has one owner.
pub(super) fn overlap(facts: &Facts) -> Verdict {
    of_daemon(facts, |node| {
        let cpus = &node.cpus.conflicted;
        if cpus.is_empty() {
            return Verdict::ok("no CPU is in the records of two claims");
        }
        Verdict::failed(
            format!(
                "CPUs {cpus} are in the records of several claims: {}",
                in_state(node, ClaimState::Conflicted)
            ),
            "delete the pods of all of them but one; until then the CPUs are in no pool",
        )
    })
}

/// Claims keep what has become reserved.
pub(super) fn stranded(facts: &Facts) -> Verdict {
    of_daemon(facts, |node| {
        let cpus = &node.cpus.stranded;
        if cpus.is_empty() {
            return Verdict::ok("no claim holds reserved CPUs");
        }
        Verdict::warning(
            format!(
                "CPUs {cpus} are reserved, and claims hold them: {}",
                in_state(node, ClaimState::Stranded)
            ),
            "delete the pods of those claims when it suits: new ones get other CPUs",
        )
    })
}

/// Claims that nobody will unprepare.
pub(super) fn orphans(facts: &Facts) -> Verdict {
    of_daemon(facts, |node| {
        let orphans = in_state(node, ClaimState::Orphan);
        if orphans.is_empty() {
            if let Some(why) = &node.slices.error {
                return Verdict::unknown(
                    format!("whether the objects of claims are still there may not be known: {why}"),
                    "see slices",
                );
            }
            return Verdict::ok("every claim has its object or a container");
        }
        Verdict::warning(
            format!(
                "the objects of these claims are gone and so are their containers, and they hold CPUs: {orphans}"
            ),
            "dracpu claims release UID frees them",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::fixtures;
    use super::super::super::verdict::Outcome;
    use super::*;

    #[test]
    fn orphans_are_not_known_while_the_api_server_is_away() {
        let mut facts = fixtures::well();
        facts.daemon.as_mut().unwrap().slices.error = Some("the API server does not answer".to_owned());
        let verdict = orphans(&facts);
        assert_eq!(verdict.outcome(), Outcome::Unknown);
        assert!(verdict.message().ends_with("the API server does not answer"), "{verdict:?}");
    }

    #[test]
    fn claims_that_need_somebody_are_named() {
        for (check, state, expected) in [
            (overlap as super::super::Check, ClaimState::Conflicted, Outcome::Failed),
            (stranded, ClaimState::Stranded, Outcome::Warning),
            (orphans, ClaimState::Orphan, Outcome::Warning),
        ] {
            let mut facts = fixtures::well();
            let node = facts.daemon.as_mut().unwrap();
            node.claims[0].state = state;
            let cpus = node.claims[0].cpus.clone();
            match state {
                ClaimState::Conflicted => node.cpus.conflicted = cpus,
                ClaimState::Stranded => node.cpus.stranded = cpus,
                _ => {}
            }
            let verdict = check(&facts);
            assert_eq!(verdict.outcome(), expected, "{state}");
            assert!(verdict.message().contains("default/web (u-1)"), "{verdict:?}");
        }
    }
}
