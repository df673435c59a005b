//! A box for each last-level cache: a column for each core, its threads below each other.

use super::{Block, Drawing};
use crate::facts::Cpu;

/// Columns left of the boxes.
const INDENT: usize = 2;

/// A drawn box: lines of the same width.
struct Framed {
    width: usize,
    lines: Vec<String>,
}

pub(super) fn lines(drawing: &Drawing<'_>, blocks: &[Block<'_>]) -> Vec<String> {
    let named = drawing.has_split_caches(blocks);
    let mut lines = Vec::new();
    let mut above = None;
    let mut row: Vec<Framed> = Vec::new();
    for block in blocks {
        let here = (block.place.socket, block.place.node);
        if above != Some(here) {
            flush(&mut row, &mut lines);
            let title = match block.place.node {
                Some(_) => format!("NUMA {}", drawing.node_title(block.place.node)),
                None => "no NUMA node".to_owned(),
            };
            let socket = format!("socket {}", drawing.socket_title(block.place.socket));
            lines.push(format!("{} · {title}", drawing.bold(&socket)));
            above = Some(here);
        }
        let framed = frame(drawing, block, named);
        let used: usize = row.iter().map(|framed| framed.width + 1).sum();
        if INDENT + used + framed.width > drawing.width {
            flush(&mut row, &mut lines);
        }
        row.push(framed);
    }
    flush(&mut row, &mut lines);
    lines
}

/// Puts the boxes of a row side by side.
fn flush(row: &mut Vec<Framed>, lines: &mut Vec<String>) {
    let height = row.iter().map(|framed| framed.lines.len()).max().unwrap_or(0);
    for at in 0..height {
        let mut line = " ".repeat(INDENT);
        for framed in row.iter() {
            match framed.lines.get(at) {
                Some(part) => line.push_str(part),
                None => line.push_str(&" ".repeat(framed.width)),
            }
            line.push(' ');
        }
        lines.push(line);
    }
    row.clear();
}

fn frame(drawing: &Drawing<'_>, block: &Block<'_>, named: bool) -> Framed {
    let last = drawing.topology.cpus.last().map_or(0, |cpu| cpu.id);
    let sign = usize::from(!drawing.marks.is_empty());
    let cell = last.to_string().len() + sign;
    let fitting = (drawing.width.saturating_sub(INDENT + 4) / (cell + 1)).max(1);
    let title = drawing.cache_title(block.place, named);
    let columns = block.cores.len().min(fitting);
    // A sign keeps a number away from the frame as a blank would.
    let content = columns * (cell + 1) + 1 - sign;
    let inner = content.max(title.chars().count() + 3);

    let rule = "─".repeat(inner.saturating_sub(title.chars().count() + 2));
    let mut lines = vec![format!("┌ {title} {rule}┐")];
    for (chunk, nth) in block.cores.chunks(fitting).zip(0..) {
        let threads = chunk.iter().map(Vec::len).max().unwrap_or(0);
        if nth > 0 && threads > 1 {
            lines.push(format!("│{}│", " ".repeat(inner)));
        }
        for thread in 0..threads {
            let cells = chunk.iter().map(|core| cell_text(drawing, core.get(thread).copied(), cell));
            let padding =
                " ".repeat((inner + sign).saturating_sub(chunk.len() * (cell + 1)).saturating_sub(sign));
            lines.push(format!("│ {}{padding}│", cells.collect::<Vec<_>>().join(" ")));
        }
    }
    lines.push(format!("└{}┘", "─".repeat(inner)));
    Framed { width: inner + 2, lines }
}

fn cell_text(drawing: &Drawing<'_>, cpu: Option<&Cpu>, width: usize) -> String {
    let Some(cpu) = cpu else { return " ".repeat(width) };
    if drawing.marks.is_empty() {
        return format!("{:>width$}", cpu.id);
    }
    let sign = drawing.marks.get(&cpu.id).map_or(' ', |mark| mark.sign());
    drawing.paint(cpu.id, &format!("{:>width$}{sign}", cpu.id, width = width.saturating_sub(1)))
}
