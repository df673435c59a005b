//! A line for each last-level cache, part of a wide one, or several small ones: a sign for each CPU, the threads
//! of a core next to each other, and the CPUs' numbers as a list.

use super::{Block, Drawing, short_list};
use crate::facts::Cpu;
use dracpu_cpuset::CpuSet;

/// The most columns for the signs of a line, and the least.
const SIGNS: usize = 48;
const MIN_SIGNS: usize = 8;
/// Columns for the CPU list of a line.
const LIST: usize = 24;
/// Columns between and around the others.
const GAPS: usize = 10;

pub(super) fn lines(drawing: &Drawing<'_>, blocks: &[Block<'_>]) -> Vec<String> {
    let threads = drawing.topology.threads_per_core();
    let named = drawing.has_split_caches(blocks);
    let labels = |block: &Block<'_>| {
        [
            drawing.socket_title(block.place.socket),
            drawing.node_title(block.place.node),
            drawing.cache_title(block.place, named),
        ]
    };
    let header = ["socket", "NUMA", "cache"].map(str::to_owned);
    let mut widths = header.each_ref().map(|label| label.len());
    for label in blocks.iter().map(labels) {
        for (width, label) in widths.iter_mut().zip(label) {
            *width = label.chars().count().max(*width);
        }
    }
    let left = drawing.width.saturating_sub(widths.iter().sum::<usize>() + GAPS + LIST);
    let fitting = ((left.clamp(MIN_SIGNS, SIGNS) + 1) / (threads + 1)).max(1);

    let mut rows = vec![Row { labels: header, signs: "cores".to_owned(), width: 5, cpus: "CPUs".to_owned() }];
    let mut above = [String::new(), String::new(), String::new()];
    for line in joined(blocks, fitting, labels) {
        let [socket, node, cache] = &line.labels;
        let is_new = above[..2] != line.labels[..2];
        let shown = [
            if above[0] == *socket { String::new() } else { socket.clone() },
            if is_new { node.clone() } else { String::new() },
            if line.continues { String::new() } else { cache.clone() },
        ];
        above.clone_from(&line.labels);
        let mut signs = String::new();
        for (cores, nth) in line.caches.iter().zip(0..) {
            if nth > 0 {
                signs.push('│');
            }
            let core = |core: &Vec<&Cpu>| {
                let painted: String =
                    core.iter().map(|cpu| drawing.paint(cpu.id, &drawing.sign(cpu.id).to_string())).collect();
                painted + &" ".repeat(threads.saturating_sub(core.len()))
            };
            signs.push_str(&cores.iter().map(core).collect::<Vec<_>>().join(" "));
        }
        let cores = || line.caches.iter().flat_map(|cores| cores.iter());
        let cpus: CpuSet = cores().flatten().map(|cpu| cpu.id).collect();
        let width = cores().count() * (threads + 1) - 1;
        rows.push(Row { labels: shown, signs, width, cpus: short_list(&cpus, LIST) });
    }
    let [socket, node, cache] = widths;
    let signs = rows.iter().map(|row| row.width).max().unwrap_or(0);
    rows.iter()
        .map(|row| {
            let [in_socket, in_node, in_cache] = &row.labels;
            let padding = " ".repeat(signs - row.width);
            let Row { signs, cpus, .. } = row;
            format!("  {in_socket:>socket$}  {in_node:<node$}  {in_cache:<cache$}  {signs}{padding}  {cpus}")
        })
        .collect()
}

struct Row {
    labels: [String; 3],
    signs: String,
    /// Columns that `signs` takes; colours take none.
    width: usize,
    cpus: String,
}

/// What stands in a line.
struct Line<'a> {
    labels: [String; 3],
    /// The cores of each cache, or of a part of one.
    caches: Vec<&'a [Vec<&'a Cpu>]>,
    /// Whether the cache begins in the line above.
    continues: bool,
}

/// Blocks in lines of at most so many cores: several blocks of the same labels where they fit, parts of the same
/// length where one does not.
fn joined<'a>(
    blocks: &'a [Block<'a>],
    fitting: usize,
    labels: impl Fn(&Block<'_>) -> [String; 3],
) -> Vec<Line<'a>> {
    let mut lines: Vec<Line<'a>> = Vec::new();
    for block in blocks {
        let labels = labels(block);
        let count = block.cores.len();
        let beside = lines.last_mut().filter(|line| {
            let used: usize = line.caches.iter().map(|cores| cores.len()).sum();
            line.labels == labels && used + count <= fitting
        });
        if let Some(line) = beside {
            line.caches.push(&block.cores);
            continue;
        }
        let parts = count.div_ceil(fitting).max(1);
        for (cores, nth) in block.cores.chunks(count.div_ceil(parts).max(1)).zip(0..) {
            lines.push(Line { labels: labels.clone(), caches: vec![cores], continues: nth > 0 });
        }
    }
    lines
}
