use std::num::NonZeroUsize;
use std::time::Duration;
use wasmtime::{Config, Engine};

/// How often the clock that deadlines are counted by moves.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// Depth of a guest's call stack. Guests recurse little; the default of the runtime, stated.
const WASM_STACK_BYTES: usize = 512 << 10;

/// The one place where engine and clock are made, so that no engine exists whose deadlines never pass.
///
/// Deterministic (no threads, no relaxed SIMD, one form of NaN) and limited (fuel, epochs, stack); see
/// wasmtime's `examples-deterministic-wasm-execution`.
pub(crate) fn start() -> wasmtime::Result<Engine> {
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        .wasm_relaxed_simd(false)
        .wasm_shared_everything_threads(false)
        .cranelift_nan_canonicalization(true)
        .consume_fuel(true)
        .epoch_interruption(true)
        .max_wasm_stack(WASM_STACK_BYTES)
        .wasm_backtrace_max_frames(NonZeroUsize::new(16));
    let engine = Engine::new(&config)?;
    let weak = engine.weak();
    // Sleeping between ticks never catches up after a stall: guests are not charged for a stopped host.
    std::thread::Builder::new().name("strategy-clock".to_owned()).spawn(move || {
        loop {
            std::thread::sleep(TICK);
            let Some(engine) = weak.upgrade() else { return };
            engine.increment_epoch();
        }
    })?;
    Ok(engine)
}
