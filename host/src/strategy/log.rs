//! What a guest may say: a few short lines per call, made safe for terminals and logs.

use crate::strategy::bindings::dracpu::strategy::log::{Host, Level};
use crate::strategy::bindings::dracpu::strategy::types;
use crate::strategy::limits::MemoryMeter;
pub(crate) use dracpu_codec::words::plain;
use std::sync::Arc;

/// Lines of one call; what comes after is counted.
const MOST_LINES: u32 = 16;

/// What a store carries.
#[derive(Debug)]
pub(crate) struct Guest {
    pub(crate) name: Arc<str>,
    pub(crate) memory: MemoryMeter,
    pub(crate) log: CallLog,
}

/// The lines of the call in progress.
#[derive(Debug, Default)]
pub(crate) struct CallLog {
    lines: u32,
    last: Option<String>,
}

impl CallLog {
    /// The last line written, escaped.
    pub(crate) fn last(&self) -> Option<&str> {
        self.last.as_deref()
    }
}

impl types::Host for Guest {}

impl Host for Guest {
    fn write(&mut self, level: Level, message: String) {
        let line = plain(&message);
        self.log.lines += 1;
        let strategy = &*self.name;
        match self.log.lines {
            ..=MOST_LINES => match level {
                Level::Debug => tracing::debug!(target: "strategy", strategy, "{line}"),
                Level::Info => tracing::info!(target: "strategy", strategy, "{line}"),
                Level::Warn => tracing::warn!(target: "strategy", strategy, "{line}"),
                Level::Error => tracing::error!(target: "strategy", strategy, "{line}"),
            },
            lines if lines == MOST_LINES + 1 => {
                tracing::warn!(target: "strategy", strategy, "more than {MOST_LINES} lines in one call; the rest is dropped");
            }
            _ => {}
        }
        // The last line is kept whatever their number: it is what explains a trap.
        self.log.last = Some(line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_kept_however_many_there_are() {
        let mut guest = Guest { name: "s".into(), memory: MemoryMeter::new(0), log: CallLog::default() };
        for line in 0..100 {
            guest.write(Level::Debug, format!("line {line}"));
        }
        assert_eq!(guest.log.last(), Some("line 99"));
    }
}
