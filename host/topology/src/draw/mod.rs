//! The machine as a picture, text for a terminal or SVG: sockets, NUMA nodes, last-level caches, cores,
//! threads, and who has which CPU.
//!
//! Never decides who has what: the caller marks CPUs. Reading order: this file, then `boxes` (small
//! machines: every CPU with its number), `table` (large ones: a sign for each CPU) and `svg`.

mod boxes;
mod svg;
mod table;

use crate::facts::{Cpu, Topology};
use dracpu_cpuset::{CpuSet, StridedList};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Up to here each CPU is drawn with its number.
const MAX_BOXED_CPUS: usize = 64;
const MAX_BOXES: usize = 16;
const MAX_BOXED_PLACES: usize = 8;

/// Columns for a CPU list below the picture.
const LEGEND: usize = 44;

/// What a CPU is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mark {
    /// It belongs to the claim with this letter.
    Claim(char),
    /// It is an idle sibling that a claim keeps idle.
    Blocked,
    /// It is in the shared pool.
    Shared,
    /// It is reserved for the system.
    Reserved,
    /// The kernel keeps its scheduler off it.
    Isolated,
}

impl Mark {
    fn sign(self) -> char {
        match self {
            Self::Claim(letter) => letter,
            Self::Blocked => 'x',
            Self::Shared => '·',
            Self::Reserved => '#',
            Self::Isolated => '~',
        }
    }

    fn meaning(self) -> &'static str {
        match self {
            Self::Claim(_) => "claim",
            Self::Blocked => "kept idle",
            Self::Shared => "shared",
            Self::Reserved => "reserved",
            Self::Isolated => "isolated",
        }
    }

    /// The SGR parameters of the mark's colours. Claims have backgrounds that stay apart from each other.
    fn colours(self) -> String {
        const BACKGROUNDS: [u8; 10] = [75, 214, 114, 211, 179, 141, 80, 203, 150, 110];
        match self {
            Self::Claim(letter) => {
                let at = usize::try_from(u32::from(letter)).unwrap_or(0) % BACKGROUNDS.len();
                let background = BACKGROUNDS.get(at).copied().unwrap_or(75);
                format!("30;48;5;{background}")
            }
            Self::Blocked => "31".to_owned(),
            Self::Shared => "32".to_owned(),
            Self::Reserved => "90".to_owned(),
            Self::Isolated => "35".to_owned(),
        }
    }
}

/// A machine about to be drawn; its `Display` is the drawing, ending in a line break.
#[derive(Debug, Clone)]
pub struct Drawing<'a> {
    topology: &'a Topology,
    marks: BTreeMap<u32, Mark>,
    names: BTreeMap<char, String>,
    width: usize,
    colour: bool,
}

impl<'a> Drawing<'a> {
    /// The machine without marks (isolated CPUs aside), without colours, for 80 columns.
    #[must_use]
    pub fn new(topology: &'a Topology) -> Self {
        let isolated = topology.isolated.iter().map(|cpu| (cpu, Mark::Isolated));
        Self { topology, marks: isolated.collect(), names: BTreeMap::new(), width: 80, colour: false }
    }

    /// Marks CPUs; the last mark of a CPU counts.
    #[must_use]
    pub fn mark(mut self, cpus: &CpuSet, mark: Mark) -> Self {
        self.marks.extend(cpus.iter().map(|cpu| (cpu, mark)));
        self
    }

    /// Marks CPUs, each with its own mark.
    #[must_use]
    pub fn marks(mut self, marks: &BTreeMap<u32, Mark>) -> Self {
        self.marks.extend(marks);
        self
    }

    /// Says in the legend what a claim's letter stands for.
    #[must_use]
    pub fn name(mut self, letter: char, name: impl Into<String>) -> Self {
        self.names.insert(letter, name.into());
        self
    }

    /// The columns to use. Drawings of large machines may need more for their CPU lists.
    #[must_use]
    pub fn width(mut self, columns: usize) -> Self {
        self.width = columns.max(40);
        self
    }

    /// Whether to colour with ANSI escapes.
    #[must_use]
    pub fn colour(mut self, colour: bool) -> Self {
        self.colour = colour;
        self
    }

    /// The machine as an SVG file: one element with a title for each CPU, none over another.
    #[must_use]
    pub fn svg(&self) -> String {
        svg::render(self)
    }

    /// Groups of CPUs that share everything that is drawn as a frame, in drawing order.
    fn blocks(&self) -> Vec<Block<'a>> {
        let mut blocks: BTreeMap<_, BTreeMap<usize, Vec<&Cpu>>> = BTreeMap::new();
        for cpu in &self.topology.cpus {
            let place = Place { socket: cpu.socket, node: cpu.numa_node, llc: cpu.llc, kind: cpu.kind };
            blocks.entry(place).or_default().entry(cpu.core).or_default().push(cpu);
        }
        blocks
            .into_iter()
            .map(|(place, cores)| Block { place, cores: cores.into_values().collect() })
            .collect()
    }

    fn is_boxed(&self, blocks: &[Block<'_>]) -> bool {
        let places: BTreeSet<_> = blocks.iter().map(|block| (block.place.socket, block.place.node)).collect();
        self.topology.cpus.len() <= MAX_BOXED_CPUS
            && blocks.len() <= MAX_BOXES
            && places.len() <= MAX_BOXED_PLACES
    }

    /// Whether some cache is drawn in several blocks, so that caches need names.
    fn has_split_caches(&self, blocks: &[Block<'_>]) -> bool {
        let mut seen = BTreeSet::new();
        blocks.iter().filter_map(|block| block.place.llc).any(|cache| !seen.insert(cache))
    }

    /// `L3 16M p-core`: the cache and, on a machine with several, the kind of a block. Named caches are
    /// `L3#0`, `L3#1`, ….
    fn cache_title(&self, place: Place, named: bool) -> String {
        let mut parts = Vec::new();
        match place.llc.and_then(|at| Some((at, self.topology.caches.get(at)?))) {
            Some((at, cache)) => {
                parts.push(if named {
                    format!("L{}#{at}", cache.level)
                } else {
                    format!("L{}", cache.level)
                });
                if cache.size_bytes > 0 {
                    parts.push(bytes(cache.size_bytes));
                }
            }
            None => parts.push("no cache".to_owned()),
        }
        if self.topology.kinds.len() > 1 {
            parts.extend(self.topology.kinds.get(place.kind).map(|kind| match kind.name.as_str() {
                "standard" => format!("capacity {}", kind.capacity),
                name => name.to_owned(),
            }));
        }
        parts.join(" ")
    }

    /// `0 128G`: a NUMA node's id and memory.
    fn node_title(&self, node: Option<usize>) -> String {
        match node.and_then(|at| self.topology.numa_nodes.get(at)) {
            Some(node) if node.memory_bytes > 0 => format!("{} {}", node.id, bytes(node.memory_bytes)),
            Some(node) => node.id.to_string(),
            None => "-".to_owned(),
        }
    }

    fn socket_title(&self, socket: usize) -> String {
        self.topology.sockets.get(socket).map(|socket| socket.id.to_string()).unwrap_or_default()
    }

    fn sign(&self, cpu: u32) -> char {
        self.marks.get(&cpu).map_or('▪', |mark| mark.sign())
    }

    /// Text of a CPU in the colours of its mark.
    fn paint(&self, cpu: u32, text: &str) -> String {
        match self.marks.get(&cpu) {
            Some(mark) => self.coloured(&mark.colours(), text),
            None => text.to_owned(),
        }
    }

    fn bold(&self, text: &str) -> String {
        self.coloured("1", text)
    }

    fn coloured(&self, parameters: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{parameters}m{text}\x1b[0m") } else { text.to_owned() }
    }

    fn summary(&self) -> String {
        let topology = self.topology;
        let caches = match topology.caches.first() {
            Some(cache) if topology.caches.iter().all(|other| other.level == cache.level) => {
                counted(topology.caches.len(), &format!("L{} cache", cache.level))
            }
            _ => counted(topology.caches.len(), "last-level cache"),
        };
        let threads = match topology.threads_per_core() {
            1 => String::new(),
            threads if topology.cores.iter().all(|core| core.len() == threads) => {
                format!(", {threads} threads a core")
            }
            threads => format!(", up to {threads} threads a core"),
        };
        format!(
            "{}, {}, {caches}, {}, {}{threads}",
            counted(topology.sockets.len(), "socket"),
            counted(topology.numa_nodes.len(), "NUMA node"),
            counted(topology.cores.len(), "core"),
            counted(topology.cpus.len(), "CPU"),
        )
    }

    /// The name of a claim, or what a mark means.
    fn mark_name(&self, mark: Mark) -> String {
        let name = match mark {
            Mark::Claim(letter) => self.names.get(&letter).map(String::as_str),
            _ => None,
        };
        name.unwrap_or(mark.meaning()).to_owned()
    }

    /// What the signs mean and what has no place in the picture.
    fn notes(&self) -> Vec<Note> {
        let mut notes = Vec::new();
        let mut marked: BTreeMap<Mark, CpuSet> = BTreeMap::new();
        for cpu in &self.topology.cpus {
            if let Some(mark) = self.marks.get(&cpu.id) {
                marked.entry(*mark).or_default().insert(cpu.id);
            }
        }
        for (mark, cpus) in &marked {
            let label = self.mark_name(*mark);
            let text = format!("{}  ({})", short_list(cpus, LEGEND), counted(cpus.len(), "CPU"));
            notes.push(Note { sign: Some(*mark), label, text });
        }
        let mut note = |label: String, text: String| notes.push(Note { sign: None, label, text });
        if !self.topology.offline.is_empty() {
            note("offline".to_owned(), self.topology.offline.to_string());
        }
        if !self.topology.nohz_full.is_empty() {
            note("nohz_full".to_owned(), short_list(&self.topology.nohz_full, LEGEND));
        }
        let mut without_cpus: BTreeMap<u64, CpuSet> = BTreeMap::new();
        for node in self.topology.numa_nodes.iter().filter(|node| node.cpus.is_empty()) {
            without_cpus.entry(node.memory_bytes).or_default().insert(node.id);
        }
        for (memory, nodes) in without_cpus {
            let each = if nodes.len() > 1 { " each" } else { "" };
            note(format!("NUMA {nodes}"), format!("{}{each}, no CPUs", bytes(memory)));
        }
        let mut roots: BTreeMap<&CpuSet, Vec<&str>> = BTreeMap::new();
        for root in &self.topology.pcie_roots {
            roots.entry(&root.cpus).or_default().push(&root.name);
        }
        for (cpus, names) in roots {
            note("PCIe".to_owned(), format!("{} → {}", names.join(" "), short_list(cpus, LEGEND)));
        }
        for warning in &self.topology.warnings {
            note(format!("! {}", warning.code), warning.message.clone());
        }
        notes
    }
}

impl fmt::Display for Drawing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for line in wrapped(&self.summary(), self.width) {
            writeln!(f, "{}", self.bold(line.trim_end()))?;
        }
        let blocks = self.blocks();
        let lines =
            if self.is_boxed(&blocks) { boxes::lines(self, &blocks) } else { table::lines(self, &blocks) };
        for line in lines {
            writeln!(f, "{}", line.trim_end())?;
        }
        let notes = self.notes();
        let widest = notes.iter().map(Note::label_width).filter(|width| *width <= 24).max().unwrap_or(0);
        for note in &notes {
            let sign = note.sign.map(|mark| self.coloured(&mark.colours(), &mark.sign().to_string()) + " ");
            let padding = " ".repeat(widest.saturating_sub(note.label_width()));
            write!(f, "  {}{}{padding}  ", sign.unwrap_or_default(), note.label)?;
            let indent = 4 + note.label_width().max(widest);
            for (line, nth) in wrapped(&note.text, self.width.saturating_sub(indent).max(20)).iter().zip(0..)
            {
                let before = if nth == 0 { 0 } else { indent };
                writeln!(f, "{:before$}{}", "", line.trim_end())?;
            }
        }
        Ok(())
    }
}

/// A line below the picture.
struct Note {
    sign: Option<Mark>,
    label: String,
    text: String,
}

impl Note {
    fn label_width(&self) -> usize {
        self.label.chars().count() + if self.sign.is_some() { 2 } else { 0 }
    }
}

/// What a block's CPUs share, as positions in the topology's lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    socket: usize,
    node: Option<usize>,
    llc: Option<usize>,
    kind: usize,
}

/// CPUs of the same place, by core, ascending.
struct Block<'a> {
    place: Place,
    cores: Vec<Vec<&'a Cpu>>,
}

/// A CPU list for people: runs as long as they fit the columns, else the kernel's form with strides, where
/// `0-62:1/2` is every other CPU.
fn short_list(cpus: &CpuSet, columns: usize) -> String {
    let runs = cpus.to_string();
    if runs.len() <= columns { runs } else { StridedList(cpus).to_string() }
}

/// Text in lines of so many characters, broken after blanks and commas where there are some.
fn wrapped(text: &str, columns: usize) -> Vec<String> {
    let mut lines = Vec::new();
    let mut line = String::new();
    for word in text.split_inclusive([' ', ',']) {
        if !line.is_empty() && line.chars().count() + word.chars().count() > columns {
            lines.push(std::mem::take(&mut line));
        }
        for letter in word.chars() {
            if line.chars().count() >= columns {
                lines.push(std::mem::take(&mut line));
            }
            line.push(letter);
        }
    }
    lines.push(line);
    lines
}

/// `2 sockets`, `1 core`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A size in the largest unit that leaves at least one, as `dmidecode` and `lscpu` print them.
fn bytes(bytes: u64) -> String {
    let (unit, sign) = [(1 << 40, "T"), (1 << 30, "G"), (1 << 20, "M"), (1 << 10, "K")]
        .into_iter()
        .find(|(unit, _)| bytes >= *unit)
        .unwrap_or((1, "B"));
    let tenths = bytes / (unit / 10).max(1) % 10;
    match (bytes / unit, tenths) {
        (whole, tenths) if whole < 10 && tenths > 0 && unit > 1 => format!("{whole}.{tenths}{sign}"),
        (whole, _) => format!("{whole}{sign}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_broken_where_it_can_be() {
        assert_eq!(wrapped("one two,three", 8), ["one two,", "three"]);
        assert_eq!(wrapped("0123456789", 4), ["0123", "4567", "89"]);
        assert_eq!(wrapped("", 4), [""]);
    }
}
