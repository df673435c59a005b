use crate::live::{ClaimReport, ContainerReport, DecisionReport, NodeReport, PodReport};
use crate::words::{listed, plain, quoted};
use std::collections::{BTreeMap, BTreeSet};

/// A claim that somebody asks about.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    /// What it holds, if it does.
    pub(super) claim: Option<&'a ClaimReport>,
    /// What is remembered of it.
    pub(super) decision: Option<&'a DecisionReport>,
}

/// What is meant: claims, or a pod with its claims. Never nothing at all.
#[derive(Debug)]
pub(super) struct Meant<'a> {
    /// The claims.
    pub(super) claims: Vec<Subject<'a>>,
    /// The pod's containers that have no claim here.
    pub(super) containers: Vec<&'a ContainerReport>,
}

/// Why it is not known what is meant.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotFound {
    #[error(
        "`{}` is neither a claim nor a pod that this node's driver knows{}; `dracpu claims` lists the claims, and what was \
         refused long ago is forgotten",
        quoted(.what),
        if .alike.is_empty() { String::new() } else { format!(", but there is {}", listed(.alike)) }
    )]
    Nobody {
        what: String,
        /// Claims whose names begin so, as those do that are made for a pod.
        alike: Vec<String>,
    },
    #[error("`{}` is more than one thing: {}; name the one that is meant by its UID", quoted(.what), listed(.candidates))]
    Ambiguous { what: String, candidates: Vec<String> },
}

impl<'a> Subject<'a> {
    pub(super) fn uid(&self) -> &str {
        let remembered = self.decision.map(|decision| decision.uid.as_str());
        self.claim.map(|claim| claim.uid.as_str()).or(remembered).unwrap_or_default()
    }

    /// Namespace and name; the UID where there is none.
    pub(super) fn name(&self) -> String {
        match (self.claim, self.decision) {
            (Some(claim), _) => name_of(claim),
            (None, Some(decision)) => format!("{}/{}", decision.namespace, decision.name),
            (None, None) => String::new(),
        }
    }

    /// It holds something, or was refused and may come again.
    fn lives(&self) -> bool {
        self.claim.is_some() || self.refused().is_some_and(|decision| !decision.over)
    }

    /// The pods that it was reserved for when it was decided.
    fn reserved_for(&self) -> &'a [PodReport] {
        self.decision.map(|decision| decision.pods.as_slice()).unwrap_or_default()
    }

    /// It is a claim of the pod with this UID.
    fn is_of(&self, uid: &str) -> bool {
        let owner = self.claim.and_then(|claim| claim.pod.as_ref());
        owner.into_iter().chain(self.reserved_for()).any(|pod| pod.uid == uid)
    }

    /// What is remembered of a claim that was refused.
    pub(super) fn refused(&self) -> Option<&'a DecisionReport> {
        self.decision.filter(|decision| decision.refusal.is_some())
    }
}

/// A claim's namespace and name; its UID where nothing else is known.
pub(super) fn name_of(claim: &ClaimReport) -> String {
    match claim.name.as_str() {
        "" => claim.uid.clone(),
        name => format!("{}/{name}", claim.namespace),
    }
}

/// The claim, or the pod with its claims, that is meant: by UID, name, or namespace and name.
pub(super) fn find<'a>(
    node: &'a NodeReport,
    decisions: &'a [DecisionReport],
    what: &str,
) -> Result<Meant<'a>, NotFound> {
    let mut known: BTreeMap<&str, Subject<'a>> = BTreeMap::new();
    for claim in &node.claims {
        known.insert(&claim.uid, Subject { claim: Some(claim), decision: None });
    }
    for decision in decisions {
        let nothing = Subject { claim: None, decision: None };
        known.entry(&decision.uid).or_insert(nothing).decision = Some(decision);
    }
    let only = |subject: Subject<'a>| Meant { claims: vec![subject], containers: Vec::new() };
    if let Some(subject) = known.get(what) {
        return Ok(only(*subject));
    }
    let named = |namespace: &str, name: &str| what == name || what.split_once('/') == Some((namespace, name));
    let mut claims: Vec<Subject<'a>> = known
        .values()
        .filter(|subject| match (subject.claim, subject.decision) {
            (Some(claim), _) => named(&claim.namespace, &claim.name),
            (None, Some(decision)) => named(&decision.namespace, &decision.name),
            (None, None) => false,
        })
        .copied()
        .collect();
    // Of a name that claims or pods have had one after another, what is gone does not count.
    if claims.iter().any(Subject::lives) {
        claims.retain(Subject::lives);
    }
    let of_claims = node.claims.iter().filter_map(|claim| claim.pod.as_ref());
    let of_containers = node.containers.iter().map(|container| &container.pod);
    let reserved = |living: bool| {
        let those = known.values().filter(move |subject| !living || subject.lives());
        those.flat_map(|subject| subject.reserved_for())
    };
    let meant = |pods: &mut dyn Iterator<Item = &'a PodReport>| -> BTreeSet<(&'a str, &'a str, &'a str)> {
        pods.filter(|pod| what == pod.uid || named(&pod.namespace, &pod.name))
            .map(|pod| (pod.namespace.as_str(), pod.name.as_str(), pod.uid.as_str()))
            .collect()
    };
    let mut pods = meant(&mut of_claims.chain(of_containers).chain(reserved(true)));
    if pods.is_empty() {
        pods = meant(&mut reserved(false));
    }
    let of_pod = |uid: &str| -> Vec<Subject<'a>> {
        known.values().filter(|subject| subject.is_of(uid)).copied().collect()
    };
    let with_its_claims = |uid: &str| Meant {
        claims: of_pod(uid),
        containers: node
            .containers
            .iter()
            .filter(|known| known.pod.uid == uid && known.claims.is_empty())
            .collect(),
    };
    let pod = pods.iter().next().filter(|_| pods.len() == 1).map(|(_, _, uid)| *uid);
    match (claims.as_slice(), pod) {
        ([], None) if pods.is_empty() => {
            let begins = |subject: &&Subject<'_>| {
                let name = subject.name();
                let name =
                    if what.contains('/') { &name } else { name.rsplit('/').next().unwrap_or_default() };
                !what.is_empty() && name.strip_prefix(what).is_some_and(|rest| rest.starts_with('-'))
            };
            let alike = known.values().filter(begins).map(described).collect();
            Err(NotFound::Nobody { what: plain(what), alike })
        }
        ([claim], None) if pods.is_empty() => Ok(only(*claim)),
        ([], Some(uid)) => Ok(with_its_claims(uid)),
        // A pod with one claim that has its name.
        ([claim], Some(uid)) if of_pod(uid).iter().map(Subject::uid).eq([claim.uid()]) => {
            Ok(with_its_claims(uid))
        }
        _ => {
            let of_claims = claims.iter().map(described);
            let of_pods = pods.iter().map(|(namespace, name, uid)| format!("pod {namespace}/{name} ({uid})"));
            let candidates = of_claims.chain(of_pods.map(|pod| plain(&pod))).collect();
            Err(NotFound::Ambiguous { what: plain(what), candidates })
        }
    }
}

fn described(subject: &Subject<'_>) -> String {
    let refused = if subject.claim.is_none() { ", refused" } else { "" };
    format!("claim {} ({}{refused})", plain(&subject.name()), plain(subject.uid()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::ClaimState;
    use crate::live::fixtures;

    fn decision(uid: &str, name: &str, refusal: Option<&str>) -> DecisionReport {
        DecisionReport { refusal: refusal.map(str::to_owned), ..fixtures::decision(uid, name) }
    }

    /// The UIDs that are meant, or what is said instead.
    fn found(node: &NodeReport, decisions: &[DecisionReport], what: &str) -> Result<Vec<String>, String> {
        let Meant { claims, containers } = find(node, decisions, what).map_err(|error| error.to_string())?;
        let claims = claims.iter().map(|subject| subject.uid().to_owned());
        Ok(claims.chain(containers.iter().map(|known| known.id.clone())).collect())
    }

    #[test]
    fn a_claim_is_meant_by_uid_by_name_and_by_namespace_and_name_and_a_pod_stands_for_its_claims() {
        let mut second = fixtures::claim("u-2", "more", ClaimState::Bound, "2", "");
        second.pod = fixtures::claim("u-1", "web", ClaimState::Bound, "1", "").pod;
        let node = fixtures::node(vec![
            fixtures::claim("u-1", "web", ClaimState::Bound, "1", ""),
            second,
            fixtures::claim("u-3", "idle", ClaimState::Waiting, "3", ""),
        ]);
        let refused = [decision("u-4", "big", Some("no room")), decision("u-3", "idle", None)];
        for (what, uids) in [
            ("u-1", &["u-1"][..]),
            ("web", &["u-1"]),
            ("default/web", &["u-1"]),
            ("of-web", &["u-1", "u-2"]),
            ("default/of-web", &["u-1", "u-2"]),
            ("pod-of-web", &["u-1", "u-2"]),
            ("u-3", &["u-3"]),
            ("big", &["u-4"]),
            ("default/big", &["u-4"]),
        ] {
            assert_eq!(
                found(&node, &refused, what),
                Ok(uids.iter().map(|uid| (*uid).to_owned()).collect()),
                "{what}"
            );
        }
        for nobody in ["", "we", "other/web", "default/", "/", "default"] {
            assert!(
                found(&node, &refused, nobody).unwrap_err().contains("neither a claim nor a pod"),
                "{nobody}"
            );
        }
        let subjects = find(&node, &refused, "idle").unwrap().claims;
        assert!(subjects[0].claim.is_some() && subjects[0].decision.is_some(), "both sides of it");
    }

    #[test]
    fn a_name_that_means_several_things_is_an_error_that_lists_them() {
        let mut elsewhere = fixtures::claim("u-2", "web", ClaimState::Waiting, "2", "");
        elsewhere.namespace = "prod".to_owned();
        let node = fixtures::node(vec![fixtures::claim("u-1", "web", ClaimState::Bound, "1", ""), elsewhere]);
        let why = found(&node, &[], "web").unwrap_err();
        for candidate in ["claim default/web (u-1)", "claim prod/web (u-2)", "by its UID"] {
            assert!(why.contains(candidate), "{candidate} in {why}");
        }
        assert_eq!(found(&node, &[], "prod/web"), Ok(vec!["u-2".to_owned()]));

        // A claim that has a pod's name, which has another one.
        let node = fixtures::node(vec![
            fixtures::claim("u-1", "web", ClaimState::Bound, "1", ""),
            fixtures::claim("u-3", "of-web", ClaimState::Waiting, "3", ""),
        ]);
        let why = found(&node, &[], "of-web").unwrap_err();
        assert!(
            why.contains("claim default/of-web (u-3)") && why.contains("pod default/of-web (pod-of-web)"),
            "{why}"
        );
        assert_eq!(found(&node, &[], "pod-of-web"), Ok(vec!["u-1".to_owned()]));
    }

    #[test]
    fn what_is_gone_does_not_make_a_name_ambiguous() {
        let node = fixtures::node(vec![fixtures::claim("u-2", "web", ClaimState::Bound, "1", "")]);
        let past = [decision("u-1", "web", None)];
        assert_eq!(found(&node, &past, "web"), Ok(vec!["u-2".to_owned()]));
        assert_eq!(found(&fixtures::node(Vec::new()), &past, "web"), Ok(vec!["u-1".to_owned()]));
    }

    #[test]
    fn a_pod_without_claims_stands_for_its_containers_and_a_name_that_begins_others_is_no_dead_end() {
        let mut node =
            fixtures::node(vec![fixtures::claim("u-1", "web-cpus-x7f", ClaimState::Waiting, "1", "")]);
        node.containers =
            vec![fixtures::container("c-1", "plain", "2-7"), fixtures::container("c-2", "other", "2-7")];
        assert_eq!(found(&node, &[], "plain"), Ok(vec!["c-1".to_owned()]));
        assert_eq!(found(&node, &[], "default/other"), Ok(vec!["c-2".to_owned()]));
        for what in ["web", "default/web", "web-cpus"] {
            let why = found(&node, &[], what).unwrap_err();
            assert!(why.contains("but there is claim default/web-cpus-x7f (u-1)"), "{what}: {why}");
        }
        for what in ["we", "cpus", "", "x7f", "prod/web"] {
            assert!(!found(&node, &[], what).unwrap_err().contains("but there is"), "{what}");
        }
    }

    #[test]
    fn a_pod_is_known_by_its_refused_claim_and_by_one_that_waits_for_its_container() {
        let of_pod = |decision: DecisionReport, name: &str, uid: &str| DecisionReport {
            pods: vec![PodReport {
                namespace: "default".to_owned(),
                name: name.to_owned(),
                uid: uid.to_owned(),
            }],
            ..decision
        };
        let mut node = fixtures::node(vec![fixtures::claim("u-1", "a", ClaimState::Waiting, "1", "")]);
        let decisions = [
            of_pod(decision("u-1", "a", None), "web", "pod-1"),
            of_pod(decision("u-2", "b", Some("no room")), "web", "pod-1"),
            of_pod(decision("u-3", "c", None), "web", "of-an-earlier-pod"),
            of_pod(decision("u-4", "d", None), "done", "pod-2"),
            of_pod(
                DecisionReport { over: true, ..decision("u-5", "e", Some("no room")) },
                "web",
                "of-another-earlier-pod",
            ),
        ];
        let uids = |uids: &[&str]| Ok(uids.iter().map(|uid| (*uid).to_owned()).collect::<Vec<_>>());
        for what in ["web", "default/web", "pod-1"] {
            assert_eq!(found(&node, &decisions, what), uids(&["u-1", "u-2"]), "{what}");
        }
        assert_eq!(found(&node, &decisions, "done"), uids(&["u-4"]), "what it had");
        // Its other containers, too: one that has no claim, and not one whose claim is told of anyway.
        let mut with_claim = fixtures::container("c-1", "web", "1");
        (with_claim.pod.uid, with_claim.claims) = ("pod-1".to_owned(), vec!["u-1".to_owned()]);
        let mut without = fixtures::container("c-2", "web", "2-7");
        without.pod.uid = "pod-1".to_owned();
        node.containers = vec![with_claim, without];
        assert_eq!(found(&node, &decisions, "web"), uids(&["u-1", "u-2", "c-2"]));
    }
}
