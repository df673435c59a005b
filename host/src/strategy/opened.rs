//! A strategy in use: loaded once, opened for a machine, asked per claim.

use crate::device::Group;
use crate::strategy::bindings::dracpu::strategy::types as wit;
use crate::strategy::call::{Failed, Instance};
use crate::strategy::error::{CpusetRule, Fault, Identity, StrategyError};
use crate::strategy::limits::Limits;
use crate::strategy::{
    Decision, Denial, Description, ExplicitCpuset, Offer, Request, Source, State, convert,
};
use crate::strategy::{bindings::StrategyPre, log::Guest};
use dracpu_codec::strategy::description::OTHER_CLAIMS;
use dracpu_codec::strategy::options::{Schema, merged};
use dracpu_codec::strategy::verify::Rules;
use dracpu_codec::strategy::{OptionsError, denial, refusal};
use dracpu_cpuset::CpuSet;
use dracpu_topology::Topology;
use serde_json::{Map, Value};
use std::sync::Arc;

/// A strategy that was compiled, linked and has described itself. Cheap to clone.
#[derive(Clone)]
pub struct Loaded(pub(crate) Arc<Parts>);

pub(crate) struct Parts {
    pub(crate) pre: StrategyPre<Guest>,
    pub(crate) identity: Identity,
    pub(crate) description: Description,
    pub(crate) schema: Schema,
    pub(crate) limits: Limits,
    pub(crate) source: Source,
    /// Options of its entry in the configuration.
    pub(crate) options: Map<String, Value>,
}

impl std::fmt::Debug for Loaded {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loaded").field("identity", &self.0.identity).finish_non_exhaustive()
    }
}

impl Loaded {
    /// What the strategy says of itself.
    #[must_use]
    pub fn description(&self) -> &Description {
        &self.0.description
    }

    /// `sha256:` and 64 hexadecimal digits, of the component.
    #[must_use]
    pub fn digest(&self) -> &str {
        &self.0.identity.digest
    }

    /// Name, version and digest.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// Where the component came from.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.0.source
    }

    /// What it may use.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Opens the strategy for a machine: its groups, its reserved CPUs, and the node's options, which go
    /// over those of the strategy's entry in the configuration. Blocking: use `spawn_blocking`.
    ///
    /// # Errors
    /// When the options do not fit its schema, when it refuses the machine, offers what it may not, or
    /// crashes.
    pub fn open(
        &self,
        topology: &Topology,
        reserved: &CpuSet,
        groups: &[Group],
        node_options: &Map<String, Value>,
    ) -> Result<Opened, StrategyError> {
        let options = self.node_options(node_options)?;
        let text = Value::Object(options.clone()).to_string();
        let (machine, rules) = convert::machine(topology, reserved, groups);
        let mut opened = Opened {
            loaded: self.clone(),
            machine,
            rules,
            options,
            options_text: text,
            offers: Vec::new(),
            instance: None,
            answered: false,
            last_fuel: 0,
        };
        let (instance, offers) = opened.instance().map_err(|failed| self.error(failed))?;
        opened.offers = offers;
        opened.last_fuel = instance.fuel_used();
        opened.instance = Some(instance);
        Ok(opened)
    }

    /// The options that it is opened with on a node: the node's over those of its entry in the configuration.
    ///
    /// # Errors
    /// When they do not fit its schema.
    pub fn node_options(
        &self,
        node_options: &Map<String, Value>,
    ) -> Result<Map<String, Value>, StrategyError> {
        let options = Value::Object(merged(&self.0.options, node_options));
        let checked = self.0.schema.check(&options, || "options of the node".to_owned());
        checked.map_err(|error| self.refused(Fault::Options(error)))?;
        match options {
            Value::Object(options) => Ok(options),
            _ => Ok(Map::new()),
        }
    }

    /// What is odd about its options, though it can be used: a sentence each.
    #[must_use]
    pub fn remarks(&self) -> Vec<String> {
        self.0.schema.remarks(&self.0.description.options_schema)
    }

    /// Whether one of its options cannot have this value, whatever others have.
    #[must_use]
    pub fn is_misfit(&self, key: &str, value: &Value) -> bool {
        self.0.schema.misfit(key, value).is_some()
    }

    fn refused(&self, fault: Fault) -> StrategyError {
        self.error(Failed { fault, last_line: None })
    }

    fn error(&self, failed: Failed) -> StrategyError {
        let Failed { fault, last_line } = failed;
        // The last line explains a fault of the guest; a refusal explains itself.
        let last_line = last_line.filter(|_| !matches!(fault, Fault::Denied(_)));
        StrategyError { strategy: self.0.identity.clone(), fault: Box::new(fault), last_line }
    }
}

/// A strategy opened for one machine and one set of node options. Keeps an instance while that answers;
/// a fault costs the instance, never the next claim.
pub struct Opened {
    loaded: Loaded,
    machine: wit::Topology,
    rules: Rules,
    options: Map<String, Value>,
    options_text: String,
    offers: Vec<Offer>,
    instance: Option<Instance>,
    /// Whether the kept instance has answered a question.
    answered: bool,
    last_fuel: u64,
}

impl std::fmt::Debug for Opened {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Opened").field("strategy", &self.loaded.0.identity).finish_non_exhaustive()
    }
}

impl Opened {
    /// The strategy that was opened.
    #[must_use]
    pub fn strategy(&self) -> &Loaded {
        &self.loaded
    }

    /// What each group offers the scheduler, in the order of the groups.
    #[must_use]
    pub fn offers(&self) -> &[Offer] {
        &self.offers
    }

    /// Fuel that the last decision (before the first: opening) used, a measure of work that is the same on every
    /// machine.
    #[must_use]
    pub fn last_fuel(&self) -> u64 {
        self.last_fuel
    }

    /// Memory and tables of the kept instance in bytes; none when the last call cost the instance.
    #[must_use]
    pub fn memory_bytes(&self) -> Option<u64> {
        self.instance.as_ref().map(Instance::memory_bytes)
    }

    /// Drops the kept instance: the next question is asked of a fresh one.
    pub fn start_afresh(&mut self) {
        self.instance = None;
        self.answered = false;
    }

    /// Asks for CPUs for all requests of one claim, and verifies the answer. Blocking: use
    /// `spawn_blocking`.
    ///
    /// # Errors
    /// A refusal ([`StrategyError::is_refusal`]) or a fault of the strategy. Either way nothing is changed
    /// and the next call starts afresh. An instance that had answered before is given a second chance, in
    /// a fresh one, when it ran out of memory or aborted: age may be the cause.
    pub fn decide(&mut self, requests: &[Request], state: &State) -> Result<Decision, StrategyError> {
        let aged = self.answered;
        match self.decide_once(requests, state) {
            Err(error) if aged && error.fault.may_come_from_age() => {
                tracing::warn!(strategy = %self.loaded.0.identity, "asking again in a fresh instance");
                self.decide_once(requests, state)
            }
            answer => answer,
        }
    }

    /// [`decide`](Self::decide) without the second chance, to find out what age does to an instance.
    ///
    /// # Errors
    /// As [`decide`](Self::decide).
    pub fn decide_once(&mut self, requests: &[Request], state: &State) -> Result<Decision, StrategyError> {
        let asked = self.wire(requests).map_err(|fault| self.loaded.refused(fault))?;
        let others = match self.loaded.0.description.needs.iter().any(|need| need == OTHER_CLAIMS) {
            true => state.others.as_slice(),
            false => &[],
        };
        let now = convert::state(&state.free, others);
        self.ask(&asked, &now, requests, state).map_err(|failed| self.loaded.error(failed))
    }

    /// One question to the kept instance, or to a fresh one. The instance is kept only if it answers.
    fn ask(
        &mut self,
        asked: &[wit::Request],
        now: &wit::State,
        requests: &[Request],
        state: &State,
    ) -> Result<Decision, Failed> {
        self.answered = false;
        let mut instance = match self.instance.take() {
            Some(instance) => instance,
            None => self.instance()?.0,
        };
        let answer = instance
            .call(|strategy, store| strategy.dracpu_strategy_policy().call_allocate(store, asked, now));
        self.last_fuel = instance.fuel_used();
        let outcome = match answer? {
            Ok(decision) => self.rules.decision(requests, state, convert::decision(decision)).map(Ok),
            Err(answer) => denial(convert::denial(answer), requests.len()).map(Err),
        };
        match outcome {
            Err(lie) => Err(instance.fail(Fault::BadAnswer(lie))),
            Ok(outcome) => {
                self.instance = Some(instance);
                self.answered = true;
                outcome.map_err(|denial| Failed { fault: Fault::Denied(denial), last_line: None })
            }
        }
    }

    /// A fresh instance, opened, and its offers.
    fn instance(&self) -> Result<(Instance, Vec<Offer>), Failed> {
        let parts = &*self.loaded.0;
        let mut instance = Instance::start(&parts.pre, parts.identity.name.clone(), parts.limits)?;
        let (machine, options) = (&self.machine, &*self.options_text);
        match instance
            .call(|strategy, store| strategy.dracpu_strategy_policy().call_open(store, machine, options))?
        {
            Err(answer) => {
                let denial = Denial { request: None, ..refusal(convert::denial(answer)) };
                Err(instance.fail(Fault::Denied(denial)))
            }
            Ok(offers) => match self.rules.offers(convert::offers(offers)) {
                Ok(offers) => Ok((instance, offers)),
                Err(lie) => Err(instance.fail(Fault::BadAnswer(lie))),
            },
        }
    }

    /// The requests as the strategy sees them: with their effective options, which fit its schema, and
    /// with a cpuset only where it takes one.
    fn wire(&self, requests: &[Request]) -> Result<Vec<wit::Request>, Fault> {
        let cpuset_rule = self.loaded.0.description.explicit_cpuset;
        requests
            .iter()
            .map(|request| {
                let name = || request.name.clone();
                match (cpuset_rule, &request.cpuset) {
                    (ExplicitCpuset::Refused, Some(cpuset)) => {
                        return Err(Fault::Cpuset(CpusetRule::Refused {
                            request: name(),
                            cpuset: cpuset.clone(),
                        }));
                    }
                    (ExplicitCpuset::Required, None) => {
                        return Err(Fault::Cpuset(CpusetRule::Required { request: name() }));
                    }
                    _ => {}
                }
                Ok(wit::Request {
                    name: name(),
                    group: convert::index(request.group),
                    count: request.count,
                    cpuset: request.cpuset.as_ref().map(|cpus| cpus.words().to_vec()),
                    options: self.options_of(request).map_err(Fault::Options)?,
                    pcie_roots: request.pcie_roots.iter().copied().map(convert::index).collect(),
                    extra: Vec::new(),
                })
            })
            .collect()
    }

    fn options_of(&self, request: &Request) -> Result<String, OptionsError> {
        if request.options.is_empty() {
            return Ok(self.options_text.clone()); // checked when the strategy was opened
        }
        let options = Value::Object(merged(&self.options, &request.options));
        self.loaded.0.schema.check(&options, || {
            format!("options of request {} (the claim's over those of its class)", request.name)
        })?;
        Ok(options.to_string())
    }
}
