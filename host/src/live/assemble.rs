//! What the daemon's parts know → the report.

use super::decisions::identity;
use super::report::{
    ClaimReport, ContainerReport, CpusReport, DeviceReport, DriverReport, FieldReport, KubeletReport,
    NODE_SCHEMA, NodeReport, NriReport, PartReport, PodReport, PublishedReport, RuntimeReport, SlicesReport,
    StrategyIdentity, StrategyReport, UnusableReport, WarningReport,
};
use crate::config::Config;
use crate::driver::{Driver, HeldClaim, Inventory, KnownContainer, StrategyInfo};
use crate::nri::{Peer, Runtime};
use crate::readiness::{Part, Readiness};
use crate::slices::{Progress, Published};
use dracpu_ledger::{Part as BookedPart, StrategyId, Who};
use dracpu_topology::Warning;
use std::collections::BTreeMap;
use std::sync::Arc;

/// What the answers are made of.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) driver: Arc<Driver>,
    pub(crate) readiness: Arc<Readiness>,
    pub(crate) peer: Arc<Peer>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) node: String,
    /// That the daemon has started with.
    pub(crate) config: Config,
}

/// The strategies, by name.
type Strategies = BTreeMap<String, Result<StrategyInfo, String>>;

impl Sources {
    pub(super) fn report(&self) -> NodeReport {
        let Inventory { status, claims, containers, strategies, warnings, offline } = self.driver.inventory();
        let problems = self.readiness.problems();
        let reason =
            |part: Part| problems.iter().find(|(problem, _)| *problem == part).map(|(_, why)| why.clone());
        let past = self.driver.past_decisions();
        let why = |uid: &str| {
            let past = past.iter().find(|past| past.claim.uid == uid);
            past.and_then(|past| past.decision.as_ref()).map(|decision| decision.why.clone())
        };
        let (unregistered, unconnected) = (reason(Part::Registration), reason(Part::Nri));
        NodeReport {
            schema: NODE_SCHEMA.to_owned(),
            driver: DriverReport { version: env!("CARGO_PKG_VERSION").to_owned(), pid: std::process::id() },
            node: self.node.clone(),
            kubelet: KubeletReport { registered: unregistered.is_none(), reason: unregistered },
            nri: NriReport {
                connected: unconnected.is_none(),
                reason: unconnected,
                runtime: self.peer.runtime().map(runtime),
            },
            problems: parts(problems),
            notes: parts(self.readiness.notes()),
            strategy: self.strategy(&strategies),
            cpus: CpusReport {
                online: status.online,
                offline,
                reserved: status.reserved,
                isolated: status.isolated,
                shared: status.shared,
                allocated: status.allocated,
                available: status.available,
                stranded: status.stranded_cpus,
                conflicted: status.conflicted_cpus,
                unproven: status.unproven_cpus,
            },
            pending_updates: status.pending_updates,
            unreadable_specs: status.unreadable_specs,
            unprepared_in_use: status.unprepared_in_use,
            claims: claims
                .into_iter()
                .map(|held| ClaimReport { why: why(&held.uid), ..claim(held, &strategies) })
                .collect(),
            containers: containers.into_iter().map(container).collect(),
            slices: self.slices(),
            warnings: warnings.into_iter().map(warning).collect(),
            config: Config { selection: self.driver.selection(), ..self.config.clone() }.describe(),
        }
    }

    fn strategy(&self, strategies: &Strategies) -> StrategyReport {
        let (active, problem) = match self.driver.strategy() {
            Ok(active) => (active, None),
            Err(why) => (None, Some(why)),
        };
        let is_active = |info: &StrategyInfo| active.as_ref().is_some_and(|active| active.name == info.name);
        let usable = strategies.values().flatten().filter(|info| !is_active(info));
        let unusable = strategies.iter().filter_map(|(name, known)| {
            let reason = known.as_ref().err()?.clone();
            Some(UnusableReport { name: name.clone(), reason })
        });
        StrategyReport {
            others: usable.map(identity).collect(),
            unusable: unusable.collect(),
            active: active.as_ref().map(identity),
            problem,
        }
    }

    fn slices(&self) -> SlicesReport {
        let published =
            |Published { generation, slices, devices }| PublishedReport { generation, slices, devices };
        let field =
            |(field, consequence): (&str, String)| FieldReport { field: field.to_owned(), consequence };
        SlicesReport {
            published: self.progress.last().map(published),
            error: self.progress.problem(),
            fields_left_out: self.progress.fields_left_out().into_iter().map(field).collect(),
        }
    }
}

fn parts(parts: Vec<(Part, String)>) -> Vec<PartReport> {
    parts.into_iter().map(|(part, message)| PartReport { part: part.to_string(), message }).collect()
}

fn runtime(Runtime { name, version, nri }: Runtime) -> RuntimeReport {
    RuntimeReport { name, version, nri_version: nri.map(|version| version.to_string()) }
}

/// What a record says of the strategy, with what is known of it beside.
fn recorded(StrategyId { name, digest }: StrategyId, strategies: &Strategies) -> StrategyIdentity {
    let known = strategies.values().flatten().find(|known| known.digest == digest);
    StrategyIdentity { name, version: known.map(|known| known.version.clone()), digest }
}

fn pod(who: &Who) -> PodReport {
    PodReport { namespace: who.pod_namespace.clone(), name: who.pod_name.clone(), uid: who.pod_uid.clone() }
}

fn claim(held: HeldClaim, strategies: &Strategies) -> ClaimReport {
    let HeldClaim { uid, booking, state, owner, offline, recorded: on_record } = held;
    ClaimReport {
        uid,
        state,
        pod: owner.as_ref().map(pod),
        container: owner.map(|owner| owner.name),
        cpus: booking.cpus(),
        blocked: booking.blocked(),
        offline,
        namespace: booking.namespace,
        name: booking.name,
        pod_claim_name: booking.pod_claim_name,
        joins_shared_pool: booking.joins_shared_pool,
        strategy: booking.strategy.map(|strategy| recorded(strategy, strategies)),
        why: None,
        devices: booking.parts.into_iter().map(device).collect(),
        recorded: on_record,
    }
}

fn device(part: BookedPart) -> DeviceReport {
    let BookedPart { request, device, share_id, cpus, blocked, .. } = part;
    DeviceReport { request, device, share_id, cpus, blocked }
}

fn container(known: KnownContainer) -> ContainerReport {
    let KnownContainer { who, claims, unproven, wanted, believed, started, stopped } = known;
    ContainerReport {
        pod: pod(&who),
        id: who.id.to_string(),
        name: who.name,
        claims,
        unproven,
        differs: wanted.is_some() && believed.is_some() && wanted != believed,
        wanted,
        mask: believed,
        started,
        stopped,
    }
}

fn warning(Warning { code, message }: Warning) -> WarningReport {
    WarningReport { code: code.to_owned(), message }
}
