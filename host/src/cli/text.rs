//! What answers for people have in common.

use std::io::IsTerminal as _;

/// Whether an answer may have colours: on a terminal, unless the person says no (<https://no-color.org>).
pub(super) fn colour() -> bool {
    std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// Columns as wide as their widest cell, two blanks apart.
pub(super) fn aligned<const N: usize>(lines: &[[String; N]]) -> String {
    let mut widths = [0; N];
    for line in lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let line = |cells: &[String; N]| {
        let cells: String =
            cells.iter().zip(widths).map(|(cell, width)| format!("{cell:width$}  ")).collect();
        format!("{}\n", cells.trim_end())
    };
    lines.iter().map(line).collect()
}

/// So much of a digest tells it from others.
pub(super) fn short_digest(digest: &str) -> &str {
    digest.get(.."sha256:".len() + 12).unwrap_or(digest)
}
