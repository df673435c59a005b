//! What a guest may say: a few short lines per call, made safe for terminals and logs.

use crate::strategy::bindings::dracpu::strategy::log::{Host, Level};
use crate::strategy::bindings::dracpu::strategy::types;
use crate::strategy::limits::MemoryMeter;
use std::sync::Arc;

/// Lines of one call; what comes after is counted.
const MOST_LINES: u32 = 16;
/// Length of a line or of another text of the guest, before escaping.
const MOST_CHARS: usize = 1024;

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

/// Text of a guest without control characters, cut at [`MOST_CHARS`]; what is cut is said.
pub(crate) fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len().min(MOST_CHARS));
    let mut chars = text.chars();
    for char in chars.by_ref().take(MOST_CHARS) {
        if char.is_control() || is_invisible(char) {
            plain.extend(char.escape_default());
        } else {
            plain.push(char);
        }
    }
    let rest = chars.count();
    if rest > 0 {
        plain.push_str(&format!("… ({rest} characters more)"));
    }
    plain
}

/// Characters that reorder or hide what follows (bidirectional controls, line separators): Unicode
/// Technical Report 36, section 3.
fn is_invisible(char: char) -> bool {
    matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(plain("a\u{1b}[31mred\nnext \u{202e}x ü"), "a\\u{1b}[31mred\\nnext \\u{202e}x ü");
    }

    #[test]
    fn long_lines_are_cut_and_say_so() {
        let text = "x".repeat(MOST_CHARS + 5);
        assert!(plain(&text).ends_with("x… (5 characters more)"));
    }

    #[test]
    fn the_last_line_is_kept_however_many_there_are() {
        let mut guest = Guest { name: "s".into(), memory: MemoryMeter::new(0), log: CallLog::default() };
        for line in 0..100 {
            guest.write(Level::Debug, format!("line {line}"));
        }
        assert_eq!(guest.log.last(), Some("line 99"));
    }
}
