//! Reports for tests of what is made of them.

use super::*;
use crate::driver::ClaimState;
use serde_json::json;

/// A node that is well, with these claims.
pub(crate) fn node(claims: Vec<ClaimReport>) -> NodeReport {
    let mut allocated = CpuSet::new();
    for claim in &claims {
        allocated.extend_from(&claim.cpus.union(&claim.blocked));
    }
    let online: CpuSet = (0..8).collect();
    NodeReport {
        schema: NODE_SCHEMA.to_owned(),
        driver: DriverReport { version: "0.1.0".to_owned(), pid: 7 },
        node: "node-a".to_owned(),
        problems: Vec::new(),
        notes: Vec::new(),
        kubelet: KubeletReport { registered: true, reason: None },
        nri: NriReport {
            connected: true,
            reason: None,
            runtime: Some(RuntimeReport {
                name: "containerd".to_owned(),
                version: "2.4.2".to_owned(),
                nri_version: Some("0.12.3".to_owned()),
            }),
        },
        strategy: StrategyReport {
            active: Some(strategy()),
            problem: None,
            others: Vec::new(),
            unusable: Vec::new(),
        },
        cpus: CpusReport {
            shared: online.difference(&allocated),
            available: online.difference(&allocated),
            online,
            offline: CpuSet::new(),
            reserved: CpuSet::new(),
            isolated: CpuSet::new(),
            allocated,
            stranded: CpuSet::new(),
            conflicted: CpuSet::new(),
            unproven: CpuSet::new(),
        },
        pending_updates: 0,
        unreadable_specs: Vec::new(),
        unprepared_in_use: 0,
        claims,
        containers: Vec::new(),
        slices: SlicesReport {
            published: Some(PublishedReport { generation: 1, slices: 1, devices: 1 }),
            error: None,
            fields_left_out: Vec::new(),
        },
        warnings: Vec::new(),
        config: json!({}),
    }
}

/// A decision of a claim that was prepared, and nobody was asked.
pub(crate) fn decision(uid: &str, name: &str) -> DecisionReport {
    DecisionReport {
        uid: uid.to_owned(),
        namespace: "default".to_owned(),
        name: name.to_owned(),
        pods: Vec::new(),
        at: String::new(),
        refusal: None,
        over: false,
        strategy: None,
        requests: Vec::new(),
        question: None,
        answer: None,
    }
}

/// A claim; one that is bound or held has the container `app` of the pod `of-NAME`.
pub(crate) fn claim(uid: &str, name: &str, state: ClaimState, cpus: &str, blocked: &str) -> ClaimReport {
    let has_pod = matches!(state, ClaimState::Bound | ClaimState::Held);
    let pod = PodReport {
        namespace: "default".to_owned(),
        name: format!("of-{name}"),
        uid: format!("pod-of-{name}"),
    };
    let (cpus, blocked): (CpuSet, CpuSet) = (cpus.parse().unwrap(), blocked.parse().unwrap());
    ClaimReport {
        uid: uid.to_owned(),
        namespace: "default".to_owned(),
        name: name.to_owned(),
        pod_claim_name: None,
        state,
        pod: has_pod.then_some(pod),
        container: has_pod.then(|| "app".to_owned()),
        devices: vec![DeviceReport {
            request: "r".to_owned(),
            device: "cpudevnuma000".to_owned(),
            share_id: None,
            cpus: cpus.clone(),
            blocked: blocked.clone(),
        }],
        cpus,
        blocked,
        offline: CpuSet::new(),
        joins_shared_pool: false,
        strategy: Some(strategy()),
        why: None,
        recorded: true,
    }
}

/// A container without claims that runs, with this mask.
pub(crate) fn container(id: &str, pod: &str, mask: &str) -> ContainerReport {
    let mask: Option<CpuSet> = Some(mask.parse().unwrap());
    ContainerReport {
        id: id.to_owned(),
        name: "app".to_owned(),
        pod: PodReport {
            namespace: "default".to_owned(),
            name: pod.to_owned(),
            uid: format!("uid-of-{pod}"),
        },
        claims: Vec::new(),
        unproven: Vec::new(),
        wanted: mask.clone(),
        mask,
        differs: false,
        started: true,
        stopped: false,
    }
}

fn strategy() -> StrategyIdentity {
    StrategyIdentity {
        name: "packed".to_owned(),
        version: Some("0.1.0".to_owned()),
        digest: format!("sha256:{}", "0123456789abcdef".repeat(4)),
    }
}
