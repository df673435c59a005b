//! A line for each last-level cache, or part of a wide one: a sign for each CPU, the threads of a core next
//! to each other, and the CPUs' numbers as a list.

use super::{Block, Drawing, short_list};
use dracpu_cpuset::CpuSet;

/// Columns for the signs of a line.
const SIGNS: usize = 48;
/// Columns for the CPU list of a line.
const LIST: usize = 24;

pub(super) fn lines(drawing: &Drawing<'_>, blocks: &[Block<'_>]) -> Vec<String> {
    let threads = drawing.topology.threads_per_core();
    let fitting = (SIGNS / (threads + 1)).max(1);
    let named = drawing.has_split_caches(blocks);
    let mut rows = vec![Row {
        labels: ["socket", "NUMA", "cache"].map(str::to_owned),
        signs: "cores".to_owned(),
        width: 5,
        cpus: "CPUs".to_owned(),
    }];
    let mut above = [String::new(), String::new()];
    for block in blocks {
        let socket = drawing.socket_title(block.place.socket);
        let node = drawing.node_title(block.place.node);
        for (cores, nth) in block.cores.chunks(fitting).zip(0..) {
            let is_new = above != [socket.clone(), node.clone()];
            let labels = [
                if above[0] == socket { String::new() } else { socket.clone() },
                if is_new { node.clone() } else { String::new() },
                if nth == 0 { drawing.cache_title(block.place, named) } else { String::new() },
            ];
            above = [socket.clone(), node.clone()];
            let mut signs = Vec::new();
            for core in cores {
                let painted: String =
                    core.iter().map(|cpu| drawing.paint(cpu.id, &drawing.sign(cpu.id).to_string())).collect();
                signs.push(painted + &" ".repeat(threads.saturating_sub(core.len())));
            }
            let cpus: CpuSet = cores.iter().flatten().map(|cpu| cpu.id).collect();
            rows.push(Row {
                labels,
                signs: signs.join(" "),
                width: cores.len() * (threads + 1) - 1,
                cpus: short_list(&cpus, LIST),
            });
        }
    }
    let width_of = |column: usize| {
        rows.iter()
            .filter_map(|row| row.labels.get(column))
            .map(|label| label.chars().count())
            .max()
            .unwrap_or(0)
    };
    let [socket, node, cache] = [width_of(0), width_of(1), width_of(2)];
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
