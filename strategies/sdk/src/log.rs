//! Lines to the host's log: all that a strategy can do to the outside. The host limits rate and length.
//! In native tests they go to standard error.

/// For the author.
pub fn debug(message: &str) {
    write("debug", message);
}

/// A decision worth knowing.
pub fn info(message: &str) {
    write("info", message);
}

/// Something is degraded.
pub fn warn(message: &str) {
    write("warn", message);
}

/// A person must act.
pub fn error(message: &str) {
    write("error", message);
}

#[cfg(target_arch = "wasm32")]
fn write(level: &str, message: &str) {
    use crate::bindings::dracpu::strategy::log::{Level, write};
    let level = match level {
        "debug" => Level::Debug,
        "info" => Level::Info,
        "warn" => Level::Warn,
        _ => Level::Error,
    };
    write(level, message);
}

#[cfg(not(target_arch = "wasm32"))]
fn write(level: &str, message: &str) {
    eprintln!("{level}: {message}");
}
