//! The thin layer between the component's functions and a [`Strategy`].

use crate::bindings::exports::dracpu::strategy::policy as wit;
use crate::{Denial, Machine, State, Strategy, convert, deny};
use std::cell::OnceCell;

/// Exports a [`Strategy`] as the component's `policy`. Once per crate.
///
/// On targets other than `wasm32` nothing is exported, so that tests can link several strategies.
///
/// ```
/// # use dracpu_strategy_sdk::*;
/// struct First { machine: Machine }
/// impl Strategy for First {
///     type Options = NoOptions;
///     fn describe() -> Description {
///         Description {
///             name: "first",
///             version: "0.1.0",
///             summary: "The lowest free CPUs of the group.",
///             options_schema: NoOptions::SCHEMA,
///             explicit_cpuset: ExplicitCpuset::Refused,
///             publishes: &[],
///             needs: &[],
///         }
///     }
///     fn open(machine: Machine, _: NoOptions) -> Result<(Self, Vec<Offer>), Denial> {
///         let offers = machine.groups.iter().map(|group| Offer::of(group.cpus.len() as u32)).collect();
///         Ok((Self { machine }, offers))
///     }
///     fn allocate(&self, requests: &[Request<NoOptions>], now: &State) -> Result<Decision, Denial> {
///         let mut free = now.free.clone();
///         let mut grants = Vec::new();
///         for (at, request) in requests.iter().enumerate() {
///             let candidates = free.intersection(&self.machine.group(request.group)?.cpus);
///             let asked = request.count as usize;
///             if candidates.len() < asked {
///                 let free = candidates.len();
///                 return Err(deny!(NotEnough, "{asked} CPUs asked, {free} free; ask for fewer").of_request(at));
///             }
///             let cpus: CpuSet = candidates.iter().take(asked).collect();
///             free.subtract(&cpus);
///             grants.push(cpus.into());
///         }
///         Ok(Decision { grants, join_shared_pool: false, why: "the lowest free CPUs".into() })
///     }
/// }
/// export!(First);
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! export {
    ($strategy:ty) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            use $crate::bindings::exports::dracpu::strategy::policy as wit;

            ::std::thread_local! {
                static OPENED: ::std::cell::OnceCell<$crate::guest::Opened<$strategy>> =
                    const { ::std::cell::OnceCell::new() };
            }

            struct Component;

            impl wit::Guest for Component {
                fn describe() -> wit::Description {
                    $crate::guest::describe::<$strategy>()
                }
                fn open(machine: wit::Topology, options: String) -> Result<Vec<wit::Offer>, wit::Denial> {
                    OPENED.with(|opened| $crate::guest::open(opened, machine, &options))
                }
                fn allocate(
                    requests: Vec<wit::Request>,
                    now: wit::State,
                ) -> Result<wit::Decision, wit::Denial> {
                    OPENED.with(|opened| $crate::guest::allocate(opened, requests, now))
                }
            }

    $crate::bindings::export!(Component with_types_in $crate::bindings);
        };
        #[cfg(not(target_arch = "wasm32"))]
        const _: fn() -> $crate::Description = <$strategy as $crate::Strategy>::describe;
    };
}

/// A strategy that was opened.
pub struct Opened<S: Strategy> {
    strategy: S,
    /// The node's options as they came, and what they are: most claims set none of their own, and bring the same text.
    options: (String, S::Options),
}

/// The component's `describe`.
#[must_use]
pub fn describe<S: Strategy>() -> wit::Description {
    report_panics();
    S::describe().into()
}

/// The component's `open`.
///
/// # Errors
/// The strategy's denial, or an invalid one for input that breaks the contract.
pub fn open<S: Strategy>(
    opened: &OnceCell<Opened<S>>,
    machine: wit::Topology,
    options: &str,
) -> Result<Vec<wit::Offer>, wit::Denial> {
    report_panics();
    try_open(opened, machine, options).map_err(wit::Denial::from)
}

fn try_open<S: Strategy>(
    opened: &OnceCell<Opened<S>>,
    machine: wit::Topology,
    options: &str,
) -> Result<Vec<wit::Offer>, Denial> {
    let read: S::Options = convert::options(options)?;
    let (strategy, offers) = S::open(Machine::try_from(machine)?, read.clone())?;
    match opened.set(Opened { strategy, options: (options.to_owned(), read) }) {
        Ok(()) => Ok(offers.into_iter().map(wit::Offer::from).collect()),
        Err(_) => {
            Err(deny!(Invalid, "open was called a second time; each machine needs an instance of its own"))
        }
    }
}

/// The component's `allocate`.
///
/// # Errors
/// The strategy's denial, or an invalid one for input that breaks the contract.
pub fn allocate<S: Strategy>(
    opened: &OnceCell<Opened<S>>,
    requests: Vec<wit::Request>,
    now: wit::State,
) -> Result<wit::Decision, wit::Denial> {
    report_panics();
    try_allocate(opened, requests, now).map_err(wit::Denial::from)
}

fn try_allocate<S: Strategy>(
    opened: &OnceCell<Opened<S>>,
    requests: Vec<wit::Request>,
    now: wit::State,
) -> Result<wit::Decision, Denial> {
    let Opened { strategy, options } =
        opened.get().ok_or_else(|| deny!(Invalid, "allocate was called before open had succeeded"))?;
    let requests = convert::requests(requests, options)?;
    strategy.allocate(&requests, &State::try_from(now)?).map(wit::Decision::from)
}

/// Sends the message of a panic to the log before the instance traps: the trap itself says nothing.
fn report_panics() {
    #[cfg(target_arch = "wasm32")]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| std::panic::set_hook(Box::new(|panic| crate::log::error(&panic.to_string()))));
    }
}
