//! A strategy that takes the lowest free CPUs of the group, and misbehaves when a request asks for
//! [`UNLUCKY`] CPUs. Each file in `examples/` is one component: it says how.
//!
//! Made from the interface alone, without the SDK: the host must cope with what the SDK would prevent.

mod bindings {
    #![allow(unsafe_code, reason = "generated: the canonical ABI passes pointers")]
    wit_bindgen::generate!({
        path: "../../wit",
        world: "strategy",
        pub_export_macro: true,
        default_bindings_module: "dracpu_test_guests::bindings",
    });
}

#[doc(hidden)]
pub mod reexport {
    pub use super::bindings::*;
}

pub use bindings::dracpu::strategy::log;
pub use bindings::dracpu::strategy::types;
pub use bindings::exports::dracpu::strategy::policy::Guest;

use types::{
    CpuSet, Decision, Denial, Description, ExplicitCpuset, Grant, Offer, Reason, Request, State, Topology,
};

/// The request for so many CPUs is where guests misbehave.
pub const UNLUCKY: u32 = 13;

/// What the guest was opened with.
#[derive(Debug, Clone, Default)]
pub struct Machine {
    /// Each group's CPUs.
    pub groups: Vec<CpuSet>,
    /// Reserved CPUs.
    pub reserved: CpuSet,
}

thread_local! {
    static MACHINE: std::cell::RefCell<Machine> = const { std::cell::RefCell::new(Machine { groups: Vec::new(), reserved: Vec::new() }) };
}

/// Describes the guest of this name; no options.
#[must_use]
pub fn describe(name: &str) -> Description {
    Description {
        name: name.to_owned(),
        version: "1.0.0".to_owned(),
        summary: "takes the lowest free CPUs".to_owned(),
        options_schema: r#"{"type":"object","additionalProperties":false}"#.to_owned(),
        explicit_cpuset: ExplicitCpuset::Refused,
        publishes: Vec::new(),
        needs: Vec::new(),
        extra: Vec::new(),
    }
}

/// Offers every group whole.
#[must_use]
pub fn open(machine: Topology) -> Vec<Offer> {
    let groups: Vec<CpuSet> = machine.groups.into_iter().map(|group| group.cpus).collect();
    let offers =
        groups.iter().map(|cpus| Offer { capacity: size(cpus), step: 1, attributes: Vec::new() }).collect();
    MACHINE.set(Machine { groups, reserved: machine.reserved });
    offers
}

/// Decides honestly.
///
/// # Errors
/// A denial when too few are free.
pub fn allocate(requests: &[Request], now: &State) -> Result<Decision, Denial> {
    let mut free = now.free.clone();
    let mut grants = Vec::new();
    for (index, request) in (0u32..).zip(requests) {
        let group = machine().groups.get(request.group as usize).cloned().unwrap_or_default();
        let cpus: Vec<u32> = members(&intersection(&free, &group)).take(request.count as usize).collect();
        if cpus.len() < request.count as usize {
            return Err(Denial {
                reason: Reason::NotEnough,
                request: Some(index),
                message: format!("{} CPUs asked, {} free", request.count, cpus.len()),
            });
        }
        let cpus = set(cpus);
        for (word, taken) in free.iter_mut().zip(&cpus) {
            *word &= !taken;
        }
        grants.push(Grant { cpus, blocked: Vec::new(), mems: Vec::new() });
    }
    Ok(Decision {
        grants,
        join_shared_pool: false,
        why: "the lowest free CPUs".to_owned(),
        extra: Vec::new(),
    })
}

/// What the guest was opened with.
#[must_use]
pub fn machine() -> Machine {
    MACHINE.with_borrow(Clone::clone)
}

/// Whether misbehaviour is due.
#[must_use]
pub fn unlucky(requests: &[Request]) -> bool {
    requests.iter().any(|request| request.count == UNLUCKY)
}

/// The CPUs of a set, ascending.
pub fn members(cpus: &CpuSet) -> impl Iterator<Item = u32> {
    (0u32..).zip(cpus).flat_map(|(at, word)| {
        (0..64).filter(move |bit| word & (1 << bit) != 0).map(move |bit| at * 64 + bit)
    })
}

/// The canonical set of these CPUs.
#[must_use]
pub fn set(cpus: impl IntoIterator<Item = u32>) -> CpuSet {
    let mut words = Vec::new();
    for cpu in cpus {
        let at = (cpu / 64) as usize;
        if words.len() <= at {
            words.resize(at + 1, 0);
        }
        if let Some(word) = words.get_mut(at) {
            *word |= 1 << (cpu % 64);
        }
    }
    words
}

/// CPUs in both sets.
#[must_use]
pub fn intersection(a: &CpuSet, b: &CpuSet) -> CpuSet {
    set(members(a).filter(|cpu| b.get((cpu / 64) as usize).is_some_and(|word| word & (1 << (cpu % 64)) != 0)))
}

fn size(cpus: &CpuSet) -> u32 {
    cpus.iter().map(|word| word.count_ones()).sum()
}

/// What a guest does to break the rules; whatever is left out is honest.
#[derive(Debug, Clone, Copy)]
pub struct Vices {
    /// What it changes in its description.
    pub describe: fn(&mut Description),
    /// What it changes in its offers.
    pub offer: fn(&mut Vec<Offer>),
    /// When it changes its decisions.
    pub due: fn(&[Request]) -> bool,
    /// What it changes in them.
    pub decide: fn(&mut Decision, &[Request], &State),
}

impl Vices {
    /// An honest guest.
    pub const NONE: Self = Self { describe: |_| (), offer: |_| (), due: unlucky, decide: |_, _, _| () };
    /// Always due.
    pub const ALWAYS: Self = Self { due: |_| true, ..Self::NONE };
}

/// Makes a component that answers honestly but for its vices: `Vices`, or what it does to its decision when it is
/// asked an unlucky question.
#[macro_export]
macro_rules! guest {
    ($name:literal, vices: $vices:expr) => {
        use $crate::types::{Decision, Denial, Description, Offer, Request, State, Topology};

        const VICES: $crate::Vices = $vices;

        /// The component; natively nobody uses it.
        pub struct Component;

        impl $crate::Guest for Component {
            fn describe() -> Description {
                let mut description = $crate::describe($name);
                (VICES.describe)(&mut description);
                description
            }

            fn open(machine: Topology, _: String) -> Result<Vec<Offer>, Denial> {
                let mut offers = $crate::open(machine);
                (VICES.offer)(&mut offers);
                Ok(offers)
            }

            fn allocate(requests: Vec<Request>, now: State) -> Result<Decision, Denial> {
                let mut decision = $crate::allocate(&requests, &now)?;
                if (VICES.due)(&requests) {
                    (VICES.decide)(&mut decision, &requests, &now);
                }
                Ok(decision)
            }
        }

        // The names of a component's exports are none that a native linker takes.
        #[cfg(target_arch = "wasm32")]
        mod exports {
            #![allow(unsafe_code, reason = "generated: the canonical ABI passes pointers")]
            use super::Component;
            $crate::reexport::export!(Component with_types_in $crate::reexport);
        }
    };
    ($name:literal, $decide:expr) => {
        $crate::guest!($name, vices: $crate::Vices { decide: $decide, ..$crate::Vices::NONE });
    };
}
