use super::{check_decision, open};
use crate::{CpuSet, Decision, Denial, Machine, Request, State, Strategy, convert};
use serde::de::DeserializeOwned;

/// A claim in the making: requests with the options of the claim, in the order in which they are added.
///
/// ```
/// # use dracpu_strategy_sdk::testkit::{Claim, cpus};
/// Claim::with(r#"{"isolate":"core"}"#).request(4).request(2).of_group(1).cpuset(cpus("6-7"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    options: String,
    requests: Vec<Request<Option<String>>>,
}

impl Claim {
    /// A claim whose requests have these effective options, as JSON text: those of the node, the class and the claim
    /// put together.
    #[must_use]
    pub fn with(options: &str) -> Self {
        Self { options: options.to_owned(), requests: Vec::new() }
    }

    /// Adds a request for so many CPUs of the first group, called `r1`, `r2` and so on.
    #[must_use]
    pub fn request(mut self, count: u32) -> Self {
        let name = format!("r{}", self.requests.len() + 1);
        let request = Request { name, group: 0, count, cpuset: None, options: None, pcie_roots: Vec::new() };
        self.requests.push(request);
        self
    }

    /// The last request is for CPUs of the group at this position.
    #[must_use]
    pub fn of_group(self, group: usize) -> Self {
        self.change(|last| last.group = group)
    }

    /// The last request names its CPUs.
    #[must_use]
    pub fn cpuset(self, cpus: CpuSet) -> Self {
        self.change(|last| last.cpuset = Some(cpus))
    }

    /// The last request's other devices were matched on the PCIe roots at these positions.
    #[must_use]
    pub fn near(self, pcie_roots: &[usize]) -> Self {
        self.change(|last| last.pcie_roots = pcie_roots.to_vec())
    }

    /// The last request has these effective options, in place of the claim's.
    #[must_use]
    pub fn options(self, options: &str) -> Self {
        self.change(|last| last.options = Some(options.to_owned()))
    }

    fn change(mut self, change: impl FnOnce(&mut Request<Option<String>>)) -> Self {
        if let Some(last) = self.requests.last_mut() {
            change(last);
        }
        self
    }

    /// The requests as the strategy gets them.
    ///
    /// # Errors
    /// Invalid, for options that do not parse.
    pub fn requests<O: DeserializeOwned>(&self) -> Result<Vec<Request<O>>, Denial> {
        let request = |request: &Request<Option<String>>| {
            Ok(Request {
                options: convert::options(request.options.as_ref().unwrap_or(&self.options))?,
                name: request.name.clone(),
                group: request.group,
                count: request.count,
                cpuset: request.cpuset.clone(),
                pcie_roots: request.pcie_roots.clone(),
            })
        };
        self.requests.iter().map(request).collect()
    }

    /// What a strategy that is opened with the node's options answers.
    ///
    /// # Errors
    /// The strategy's denial, of the node's options too.
    ///
    /// # Panics
    /// When the answer breaks one of the host's rules ([`check_decision`]).
    #[track_caller]
    pub fn decide<S: Strategy>(
        &self,
        machine: &Machine,
        node: &str,
        now: &State,
    ) -> Result<Decision, Denial> {
        let (strategy, _) = open::<S>(machine.clone(), node)?;
        let requests = self.requests()?;
        let decision = strategy.allocate(&requests, now)?;
        match check_decision(machine, &requests, now, &decision) {
            Ok(()) => Ok(decision),
            Err(rule) => panic!("{self:?} on a node with {node}, {} free: {rule}", now.free),
        }
    }
}

/// The CPUs of a list such as `0-3,8`.
///
/// # Panics
/// When it is none.
#[must_use]
#[track_caller]
pub fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap_or_else(|error| panic!("{list:?}: {error}"))
}

/// The CPUs of a list are free; what others hold is not said.
///
/// # Panics
/// When it is no list.
#[must_use]
#[track_caller]
pub fn free(list: &str) -> State {
    State { free: cpus(list), others: Vec::new() }
}
