use super::super::facts::{Facts, Lock};
use super::super::verdict::Verdict;
use super::{AS_ROOT, of_daemon, some};
use crate::live::NodeReport;
use crate::readiness::Part;

fn problem(node: &NodeReport, part: Part) -> Option<&str> {
    let part = part.to_string();
    node.problems.iter().find(|problem| problem.part == part).map(|problem| problem.message.as_str())
}

/// Slices belong to a node that exists.
pub(super) fn node_name(facts: &Facts) -> Verdict {
    of_daemon(facts, |node| match problem(node, Part::NodeName) {
        Some(why) => Verdict::failed(why, "kubectl get nodes shows the names that are known"),
        None if node.slices.published.is_some() => match &node.slices.error {
            None => Verdict::ok(format!("the API server knows this node, {}", node.node)),
            Some(why) => Verdict::unknown(
                format!("the API server knew this node, {}, and now: {why}", node.node),
                "see slices",
            ),
        },
        None => Verdict::unknown(
            format!("the API server has not been asked yet whether it knows node {}", node.node),
            "see slices",
        ),
    })
}

/// What is not published is not allocated.
pub(super) fn slices(facts: &Facts) -> Verdict {
    of_daemon(facts, |node| match (&node.slices.error, &node.slices.published) {
        (Some(why), _) => Verdict::failed(
            format!("the slices cannot be kept as they should be: {why}"),
            "does the driver reach the API server, with the role of the chart? It tries again by itself",
        ),
        (None, None) => Verdict::unknown("nothing has been published yet", "run it again in a moment"),
        (None, Some(published)) => {
            let (devices, slices, generation) = (published.devices, published.slices, published.generation);
            Verdict::ok(format!(
                "published as wanted (devices {devices}, slices {slices}, generation {generation})"
            ))
        }
    })
}

/// The gate without which claims of single CPUs of a group fail.
const CONSUMABLE: &str = "DRAConsumableCapacity";

/// Fields of a disabled feature vanish without an error.
pub(super) fn feature_gates(facts: &Facts) -> Verdict {
    of_daemon(facts, |node| {
        let left_out = &node.slices.fields_left_out;
        let counts = |field: &str| matches!(field, "allowMultipleAllocations" | "requestPolicy");
        if let Some(field) = left_out.iter().find(|field| counts(&field.field)).or(left_out.first()) {
            let remedy = "turn the gate on in API server, scheduler and kubelet, or update Kubernetes: from 1.36 on \
                          DRAConsumableCapacity is on by default; then restart the driver";
            return match counts(&field.field) {
                true => Verdict::failed(&field.consequence, remedy),
                false => Verdict::warning(&field.consequence, "turn the gate on, or the driver's option off"),
            };
        }
        let off =
            facts.kubelet.as_ref().is_ok_and(|kubelet| kubelet.feature_gates.get(CONSUMABLE) == Some(&false));
        let grouped = node.config.get("cpuDeviceMode").is_none_or(|mode| mode == "grouped");
        if off && grouped {
            return Verdict::failed(
                format!("the kubelet is configured with {CONSUMABLE}=false"),
                format!("turn {CONSUMABLE} on in the kubelet's featureGates and restart it"),
            );
        }
        match node.slices.published {
            Some(_) => Verdict::ok(match &facts.kubelet {
                Ok(_) => "the API server keeps every field of the slices".to_owned(),
                Err(why) => {
                    format!(
                        "the API server keeps every field of the slices; the kubelet's gates are not known here: {why}"
                    )
                }
            }),
            None => Verdict::unknown("nothing has been published yet that could show it", "see slices"),
        }
    })
}

/// Attributes that the API cannot carry.
pub(super) fn attribute_limits(facts: &Facts) -> Verdict {
    of_daemon(facts, |node| {
        let warnings = node.warnings.iter().filter(|warning| warning.code.starts_with("attribute-"));
        let left_out: Vec<String> = warnings.map(|warning| warning.message.clone()).collect();
        if left_out.is_empty() {
            return Verdict::ok("every attribute fits the API");
        }
        Verdict::warning(
            some(left_out),
            "devices are published without them: select by other attributes (dracpu slices prints all); groupBy: numanode or llc \
             makes smaller groups",
        )
    })
}

/// Who decides.
pub(super) fn strategy(facts: &Facts) -> Verdict {
    of_daemon(facts, |node| {
        let remedy = "mend allocator and strategies in the driver's configuration; dracpu strategy inspect FILE says what is wrong \
                      with a component";
        if let Some(why) = &node.strategy.problem {
            return Verdict::failed(format!("new claims are refused: {why}"), remedy);
        }
        let unusable =
            node.strategy.unusable.iter().map(|unusable| format!("{}: {}", unusable.name, unusable.reason));
        let part = Part::Strategy.to_string();
        let notes = node.notes.iter().filter(|note| note.part == part).map(|note| note.message.clone());
        let odd: Vec<String> = unusable.chain(notes).collect();
        if !odd.is_empty() {
            return Verdict::warning(some(odd), remedy);
        }
        Verdict::ok(match &node.strategy.active {
            Some(active) => {
                let version = active.version.as_deref().unwrap_or_default();
                format!(
                    "{} {version} decides ({})",
                    active.name,
                    crate::cli::text::short_digest(&active.digest)
                )
            }
            None => "the scheduler chooses the CPUs (individual mode)".to_owned(),
        })
    })
}

/// One driver on the node, and it is the one that answers.
pub(super) fn lock(facts: &Facts) -> Verdict {
    let root = facts.kubelet_root_dir.display();
    match (&facts.lock, &facts.daemon) {
        (Err(why), _) => Verdict::unknown(why, AS_ROOT),
        (Ok(Lock::Held(holder)), Err(why)) if facts.root_only => {
            Verdict::unknown(format!("{holder} holds this node; {why}"), AS_ROOT)
        }
        (Ok(Lock::Free), Err(_)) => Verdict::failed(
            format!("no driver runs on this node: nobody holds the lock below {root}"),
            "start it (the DaemonSet's pod of this node says why it does not run); --kubelet-root-dir says where the kubelet's \
             directory is",
        ),
        (Ok(Lock::Held(holder)), Err(why)) => Verdict::failed(
            format!("{holder} holds this node and does not answer: {why}"),
            "look at its log; it may be starting, or be the driver of another version",
        ),
        (Ok(Lock::Free), Ok(_)) => Verdict::failed(
            format!("the driver that answers does not hold the lock below {root}: a second one could start"),
            "restart the driver; somebody deleted its lock file",
        ),
        (Ok(Lock::Held(holder)), Ok(node)) => {
            let pid = node.driver.pid;
            let is_it = holder.strip_prefix("pid ").is_none_or(|rest| {
                rest.split(',').next().and_then(|number| number.trim().parse().ok()) == Some(pid)
            });
            match is_it {
                true => Verdict::ok(format!("one driver runs here: {holder}")),
                false => Verdict::failed(
                    format!("{holder} holds this node, and another driver (pid {pid}) answers"),
                    "end both, and start one",
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{Kubelet, fixtures};
    use super::super::super::verdict::Outcome;
    use super::*;
    use crate::live::{FieldReport, PartReport, UnusableReport, WarningReport};

    fn part(part: Part, message: &str) -> PartReport {
        PartReport { part: part.to_string(), message: message.to_owned() }
    }

    #[test]
    fn a_name_that_no_node_has_fails_and_one_that_nobody_asked_for_is_unknown() {
        let mut facts = fixtures::well();
        facts.daemon.as_mut().unwrap().slices.published = None;
        assert_eq!(node_name(&facts).outcome(), Outcome::Unknown);
        let node = facts.daemon.as_mut().unwrap();
        node.slices.published = fixtures::well().daemon.unwrap().slices.published;
        node.slices.error = Some("the API server does not answer".to_owned());
        let verdict = node_name(&facts);
        assert_eq!(verdict.outcome(), Outcome::Unknown, "what it knew once may have changed");
        assert!(verdict.message().ends_with("the API server does not answer"), "{verdict:?}");
        facts
            .daemon
            .as_mut()
            .unwrap()
            .problems
            .push(part(Part::NodeName, "the API server knows no node `x`"));
        let verdict = node_name(&facts);
        assert_eq!(
            (verdict.outcome(), verdict.message()),
            (Outcome::Failed, "the API server knows no node `x`")
        );
    }

    #[test]
    fn slices_that_cannot_be_written_fail_with_the_reason() {
        let mut facts = fixtures::well();
        facts.daemon.as_mut().unwrap().slices.error = Some("not allowed to create".to_owned());
        let verdict = slices(&facts);
        assert_eq!(verdict.outcome(), Outcome::Failed);
        assert!(verdict.message().contains("not allowed to create"), "{verdict:?}");
        let slices_of = &mut facts.daemon.as_mut().unwrap().slices;
        (slices_of.error, slices_of.published) = (None, None);
        assert_eq!(slices(&facts).outcome(), Outcome::Unknown);
    }

    #[test]
    fn fields_that_the_server_leaves_out_fail_where_claims_need_them() {
        for (field, expected) in [
            ("allowMultipleAllocations", Outcome::Failed),
            ("requestPolicy", Outcome::Failed),
            ("nodeAllocatableResources", Outcome::Warning),
        ] {
            let mut facts = fixtures::well();
            let consequence = format!("the API server leaves {field} out");
            let left_out = FieldReport { field: field.to_owned(), consequence };
            facts.daemon.as_mut().unwrap().slices.fields_left_out.push(left_out);
            let verdict = feature_gates(&facts);
            assert_eq!(verdict.outcome(), expected, "{field}");
            assert!(verdict.message().contains(field), "{verdict:?}");
        }
    }

    #[test]
    fn a_kubelet_without_the_gate_fails_in_grouped_mode_only() {
        let mut facts = fixtures::well();
        let feature_gates_of = [(CONSUMABLE.to_owned(), false)].into();
        facts.kubelet = Ok(Kubelet { feature_gates: feature_gates_of, ..Kubelet::default() });
        assert_eq!(feature_gates(&facts).outcome(), Outcome::Failed);
        facts.daemon.as_mut().unwrap().config = serde_json::json!({"cpuDeviceMode": "individual"});
        assert_eq!(feature_gates(&facts).outcome(), Outcome::Ok);
        facts.daemon.as_mut().unwrap().slices.published = None;
        assert_eq!(feature_gates(&facts).outcome(), Outcome::Unknown);
    }

    #[test]
    fn gates_of_a_kubelet_that_is_not_seen_are_not_vouched_for() {
        let mut facts = fixtures::well();
        facts.kubelet = Err("no process named kubelet can be seen".to_owned());
        let verdict = feature_gates(&facts);
        assert_eq!(verdict.outcome(), Outcome::Ok);
        assert!(
            verdict.message().ends_with("gates are not known here: no process named kubelet can be seen"),
            "{verdict:?}"
        );
    }

    #[test]
    fn attributes_that_do_not_fit_are_a_warning() {
        let mut facts = fixtures::well();
        let warning = |code: &str| WarningReport {
            code: code.to_owned(),
            message: "cpuIDs of cpudevnuma000".to_owned(),
        };
        facts.daemon.as_mut().unwrap().warnings = vec![warning("no-caches")];
        assert_eq!(attribute_limits(&facts).outcome(), Outcome::Ok);
        facts.daemon.as_mut().unwrap().warnings.push(warning("attribute-too-long"));
        let verdict = attribute_limits(&facts);
        assert_eq!((verdict.outcome(), verdict.message()), (Outcome::Warning, "cpuIDs of cpudevnuma000"));
    }

    #[test]
    fn a_strategy_that_cannot_be_used_fails_and_one_that_claims_may_name_is_a_warning() {
        let mut facts = fixtures::well();
        let node = facts.daemon.as_mut().unwrap();
        node.strategy
            .unusable
            .push(UnusableReport { name: "mine".to_owned(), reason: "no such file".to_owned() });
        assert_eq!(strategy(&facts).message(), "mine: no such file");
        assert_eq!(strategy(&facts).outcome(), Outcome::Warning);
        let node = facts.daemon.as_mut().unwrap();
        node.strategy.unusable.clear();
        node.notes.push(part(Part::Strategy, "not reloaded: damaged"));
        assert_eq!(strategy(&facts).outcome(), Outcome::Warning);
        facts.daemon.as_mut().unwrap().strategy.problem = Some("packed: trapped".to_owned());
        assert_eq!(strategy(&facts).outcome(), Outcome::Failed);
    }

    #[test]
    fn the_lock_is_held_by_the_driver_that_answers_or_it_fails() {
        let held = |by: &str| Ok(Lock::Held(by.to_owned()));
        let mut facts = fixtures::well();
        for (lock_of, expected) in [
            (held("pid 7"), Outcome::Ok),
            (held("pid 7, pod kube-system/dracpu-x"), Outcome::Ok),
            (held("a process that did not say who it is"), Outcome::Ok),
            (held("pid 77"), Outcome::Failed),
            (Ok(Lock::Free), Outcome::Failed),
            (Err("not allowed".to_owned()), Outcome::Unknown),
        ] {
            facts.lock = lock_of;
            assert_eq!(lock(&facts).outcome(), expected, "{:?}", facts.lock);
        }
        facts.daemon = Err("no dracpu answers".to_owned());
        facts.lock = Ok(Lock::Free);
        assert!(lock(&facts).message().starts_with("no driver runs on this node"));
        facts.lock = held("pid 9");
        let verdict = lock(&facts);
        assert!(
            verdict.message().contains("pid 9 holds this node and does not answer: no dracpu answers"),
            "{verdict:?}"
        );
        assert_eq!(verdict.outcome(), Outcome::Failed);
    }
}
