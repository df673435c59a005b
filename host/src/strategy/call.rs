//! One call of a guest under limits.

use crate::strategy::bindings::{Strategy, StrategyPre};
use crate::strategy::component::Forbidden;
use crate::strategy::error::Fault;
use crate::strategy::limits::{Limits, MemoryMeter};
use crate::strategy::log::{CallLog, Guest};
use std::sync::Arc;
use wasmtime::{Store, Trap};

/// An instance of a component. Thrown away after any fault: what a crashed guest left in its memory is
/// not to be trusted, and the runtime would not enter it again.
pub(crate) struct Instance {
    store: Store<Guest>,
    strategy: Strategy,
    limits: Limits,
}

/// A call that failed, with the guest's last words.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) fault: Fault,
    pub(crate) last_line: Option<String>,
}

impl Instance {
    /// Makes an instance. Runs code of the guest, so that the limits are in place before.
    pub(crate) fn start(pre: &StrategyPre<Guest>, name: Arc<str>, limits: Limits) -> Result<Self, Failed> {
        let guest = Guest { name, memory: MemoryMeter::new(limits.memory_bytes), log: CallLog::default() };
        let mut store = Store::new(pre.engine(), guest);
        store.limiter(|guest| &mut guest.memory);
        match arm(&mut store, &limits).and_then(|()| pre.instantiate(&mut store)) {
            Ok(strategy) => Ok(Self { store, strategy, limits }),
            Err(error) => Err(failed(&store, &limits, &error, During::Start)),
        }
    }

    /// Calls the guest with fresh limits. After an error the instance must be dropped.
    pub(crate) fn call<T>(
        &mut self,
        function: impl FnOnce(&Strategy, &mut Store<Guest>) -> wasmtime::Result<T>,
    ) -> Result<T, Failed> {
        arm(&mut self.store, &self.limits)
            .and_then(|()| function(&self.strategy, &mut self.store))
            .map_err(|error| failed(&self.store, &self.limits, &error, During::Call))
    }

    /// The fault of an answer that was taken over but is of no use, with the guest's last words.
    pub(crate) fn fail(&self, fault: Fault) -> Failed {
        Failed { fault, last_line: self.store.data().log.last().map(str::to_owned) }
    }

    /// What its memories and tables take.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.store.data().memory.used()
    }

    /// Fuel that the last call used.
    pub(crate) fn fuel_used(&self) -> u64 {
        self.limits.fuel.saturating_sub(self.store.get_fuel().unwrap_or_default())
    }
}

/// Sets what one call may use. Costs nanoseconds.
fn arm(store: &mut Store<Guest>, limits: &Limits) -> wasmtime::Result<()> {
    let guest = store.data_mut();
    guest.memory.forget_refusal();
    guest.log = CallLog::default();
    store.set_hostcall_fuel(usize::try_from(limits.transfer_bytes).unwrap_or(usize::MAX));
    store.set_epoch_deadline(limits.deadline_ticks());
    store.set_fuel(limits.fuel)
}

/// What failed.
#[derive(Debug, Clone, Copy)]
enum During {
    Start,
    Call,
}

fn failed(store: &Store<Guest>, limits: &Limits, error: &wasmtime::Error, during: During) -> Failed {
    let guest = store.data();
    // The backtrace of the guest is for its author.
    tracing::debug!(target: "strategy", strategy = &*guest.name, "call failed: {error:?}");
    let limits = *limits;
    let reason = || crate::strategy::log::plain(&format!("{error:#}"));
    let fault = match (error.downcast_ref::<Trap>(), guest.memory.refused()) {
        _ if is_of_host(error) => Fault::Host(reason()),
        (Some(Trap::OutOfFuel), _) => Fault::OutOfFuel(limits),
        (Some(Trap::Interrupt), _) => Fault::DeadlineExceeded(limits),
        (_, Some(wanted)) => Fault::OutOfMemory { wanted, limits },
        (Some(trap), None) => Fault::Trapped(*trap),
        (None, None) => match error.downcast_ref::<Forbidden>() {
            Some(Forbidden(function)) => Fault::Forbidden(function.clone()),
            None => match during {
                During::Start => Fault::Unstartable(reason()),
                During::Call => Fault::Unreadable { reason: reason(), limits },
            },
        },
    };
    Failed { fault, last_line: guest.log.last().map(str::to_owned) }
}

/// Whether a system call or an allocation of the runtime failed: no guest makes either.
fn is_of_host(error: &wasmtime::Error) -> bool {
    error.is::<rustix::io::Errno>() || error.is::<std::io::Error>() || error.is::<wasmtime::OutOfMemory>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wasmtime::error::Context as _;
    use wasmtime::{Engine, Result};

    fn fault(error: wasmtime::Error, during: During) -> Fault {
        let guest = Guest { name: "s".into(), memory: MemoryMeter::new(0), log: CallLog::default() };
        let store = Store::new(&Engine::default(), guest);
        failed(&store, &Limits::default(), &error, during).fault
    }

    #[test]
    fn what_the_machine_refuses_is_no_fault_of_the_strategy() {
        let errno: Result<()> = Err(rustix::io::Errno::NOMEM.into());
        let error = errno.context("mmap failed to reserve 0x104000000 bytes").unwrap_err();
        let fault = fault(error, During::Start);
        let words = fault.to_string();
        assert!(
            words.starts_with("this host cannot run an instance of it: mmap failed to reserve"),
            "{words}"
        );
        assert!(words.contains("ulimit -v") && !words.contains("transferBytes"), "{words}");
    }

    #[test]
    fn only_an_answer_is_said_to_be_an_answer() {
        let error = || wasmtime::Error::msg("resource limit exceeded: memory count too high at 65");
        assert!(matches!(fault(error(), During::Start), Fault::Unstartable(_)));
        assert!(matches!(fault(error(), During::Call), Fault::Unreadable { .. }));
    }
}
