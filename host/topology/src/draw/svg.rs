//! The machine as one SVG file: frames for sockets, NUMA nodes, caches and cores, and in them a field for each
//! CPU with its number, its sign, and on hover all that is known of it.
//!
//! Positions are absolute and whole, and each CPU's field is one `rect` with a `title`. Colours are rules of a
//! style sheet: light, and dark where the reader prefers it, never on paper.

use super::{Drawing, LEGEND, Mark, Place, bytes, counted, short_list, wrapped};
use crate::facts::Cpu;
use crate::printable::printable;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Around the picture, and between its parts.
const MARGIN: u32 = 16;
const GAP: u32 = 8;
/// Inside a frame.
const PADDING: u32 = 8;
/// A line of text.
const LINE: u32 = 18;
/// A character, a little wider than fonts have it.
const LETTER: u32 = 7;
/// A CPU's field, its number aside.
const FIELD_HEIGHT: u32 = 18;
const FIELD_PADDING: u32 = 8;
/// Between fields, and around those of a core.
const HAIR: u32 = 2;
const CORE_GAP: u32 = 5;
/// The width that sockets flow in, and the least, for the text below.
const WIDTH: u32 = 1240;
const MIN_WIDTH: u32 = 560;

const STYLE: &str = include_str!("svg.css");

/// Something with a size, and what it is.
struct Node {
    width: u32,
    height: u32,
    what: What,
}

enum What {
    Frame {
        class: &'static str,
        title: String,
        inside: Vec<(u32, u32, Node)>,
    },
    /// A core's threads, below each other.
    Core(Vec<u32>),
    /// A CPU that is present, but offline: nothing else is known of it.
    Offline(u32),
}

pub(super) fn render(drawing: &Drawing<'_>) -> String {
    let topology = drawing.topology;
    let highest = topology.cpus.last().map(|cpu| cpu.id).max(topology.offline.last()).unwrap_or(0);
    let sign = usize::from(!drawing.marks.is_empty());
    let field = letters(highest.to_string().len() + sign) + FIELD_PADDING;

    let mut parts = sockets(drawing, field);
    if !topology.offline.is_empty() {
        let fields = topology.offline.iter().map(|cpu| Node {
            width: field,
            height: FIELD_HEIGHT,
            what: What::Offline(cpu),
        });
        parts.push(frame(
            "offline",
            format!("offline: {}", counted(topology.offline.len(), "CPU")),
            fields,
            WIDTH,
            HAIR,
        ));
    }
    let (parts, width, height) = flow(parts, WIDTH, GAP);
    let width = width.max(MIN_WIDTH).max(letters(drawing.summary().chars().count()));
    let legend = legend(drawing, width / LETTER);

    let top = MARGIN + LINE + GAP;
    let below = top + height + GAP;
    let lines = u32::try_from(legend.len()).unwrap_or(0);
    let mut canvas = Canvas { drawing, field, titles: titles(drawing), out: String::new() };
    canvas.open(width + 2 * MARGIN, below + lines * LINE + MARGIN);
    canvas.text("summary", MARGIN, MARGIN + 12, &drawing.summary());
    for (x, y, node) in &parts {
        canvas.node(node, MARGIN + x, top + y);
    }
    for ((class, text), nth) in legend.iter().zip(0..) {
        let y = below + nth * LINE;
        if let Some(class) = class {
            canvas.rect(class, (MARGIN, y + 3, 12, 12), None);
        }
        canvas.text("note", MARGIN + 20, y + 13, text);
    }
    canvas.out.push_str("</svg>\n");
    canvas.out
}

/// A frame for each socket, in it one for each NUMA node, in it one for each cache.
fn sockets(drawing: &Drawing<'_>, field: u32) -> Vec<Node> {
    let blocks = drawing.blocks();
    let named = drawing.has_split_caches(&blocks);
    let mut sockets: BTreeMap<usize, BTreeMap<Option<usize>, Vec<Node>>> = BTreeMap::new();
    for block in &blocks {
        let cores = block.cores.iter().map(|core| core_node(core, field)).collect::<Vec<_>>();
        let columns = columns(&cores);
        let title = drawing.cache_title(block.place, named);
        let inside = columns * (field + 2 * HAIR + CORE_GAP) + 2 * PADDING;
        let Place { socket, node, .. } = block.place;
        let caches = sockets.entry(socket).or_default().entry(node).or_default();
        caches.push(frame("cache", title, cores, inside, CORE_GAP));
    }
    let socket_frame = |(socket, nodes): (usize, BTreeMap<Option<usize>, Vec<Node>>)| {
        let inside = nodes.into_iter().map(|(node, caches)| {
            let title =
                node.map_or("no NUMA node".to_owned(), |_| format!("NUMA {}", drawing.node_title(node)));
            frame("node", title, caches, WIDTH - 2 * PADDING, GAP)
        });
        frame("socket", format!("socket {}", drawing.socket_title(socket)), inside, WIDTH, GAP)
    };
    sockets.into_iter().map(socket_frame).collect()
}

fn core_node(core: &[&Cpu], field: u32) -> Node {
    let threads = u32::try_from(core.len()).unwrap_or(1);
    let what = What::Core(core.iter().map(|cpu| cpu.id).collect());
    Node { width: field + 2 * HAIR, height: threads * (FIELD_HEIGHT + HAIR) + HAIR, what }
}

/// How many cores stand side by side: about twice as wide as high, and rows of the same length where it can be.
fn columns(cores: &[Node]) -> u32 {
    let count = u32::try_from(cores.len()).unwrap_or(1).max(1);
    let tallest = cores.iter().map(|core| core.height).max().unwrap_or(1);
    let width = cores.first().map_or(1, |core| core.width);
    let wanted = (2 * count * tallest / width).isqrt().clamp(1, count);
    let fitting = ((WIDTH - 6 * PADDING) / (width + CORE_GAP)).max(1);
    let even = (wanted..=2 * wanted).find(|columns| count % columns == 0).unwrap_or(wanted);
    even.min(fitting)
}

fn frame(
    class: &'static str,
    title: String,
    inside: impl IntoIterator<Item = Node>,
    width: u32,
    gap: u32,
) -> Node {
    let (inside, used, height) = flow(inside, width - 2 * PADDING, gap);
    let width = used.max(letters(title.chars().count())) + 2 * PADDING;
    Node { width, height: LINE + height + PADDING, what: What::Frame { class, title, inside } }
}

/// Places parts side by side, in rows no wider than given where a part allows it, and of the same number where
/// all are alike: the parts with their positions, and the size of all.
fn flow(parts: impl IntoIterator<Item = Node>, width: u32, gap: u32) -> (Vec<(u32, u32, Node)>, u32, u32) {
    let parts: Vec<Node> = parts.into_iter().collect();
    let (narrowest, widest) =
        parts.iter().fold((u32::MAX, 1), |(least, most), part| (part.width.min(least), part.width.max(most)));
    let count = u32::try_from(parts.len()).unwrap_or(1).max(1);
    let fitting = ((width + gap) / (widest + gap)).max(1);
    let even = count.div_ceil(count.div_ceil(fitting));
    let width = if narrowest == widest { even * (widest + gap) - gap } else { width };

    let mut placed = Vec::new();
    let (mut x, mut y, mut row, mut used) = (0, 0, 0, 0);
    for part in parts {
        if x > 0 && x + part.width > width {
            (x, y, row) = (0, y + row + gap, 0);
        }
        let right = x + part.width;
        (used, row) = (right.max(used), part.height.max(row));
        placed.push((x, y, part));
        x = right + gap;
    }
    (placed, used, y + row)
}

/// Columns of text.
fn letters(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(0) * LETTER
}

/// What is known of each CPU, for people.
fn titles(drawing: &Drawing<'_>) -> BTreeMap<u32, String> {
    let topology = drawing.topology;
    let list = |cpus| short_list(cpus, LEGEND);
    let cores: Vec<String> = topology.cores.iter().map(list).collect();
    let caches: Vec<String> = topology.caches.iter().map(|cache| list(&cache.cpus)).collect();
    let title = |cpu: &Cpu| {
        let mut title = format!("CPU {}: ", cpu.id);
        let mut say = |part: String| {
            title.push_str(&part);
            title.push_str(", ");
        };
        match cores.get(cpu.core) {
            Some(core) if *core != cpu.id.to_string() => {
                say(format!("thread {} of the core {core}", cpu.thread))
            }
            _ => say("the only thread of its core".to_owned()),
        }
        if let Some(id) = cpu.core_id {
            say(format!("core id {id}"));
        }
        say(format!("socket {}", drawing.socket_title(cpu.socket)));
        if topology.dies.len() > topology.sockets.len() {
            say(format!("die {}", cpu.die));
        }
        match cpu.numa_node.and_then(|at| topology.numa_nodes.get(at)) {
            Some(node) => say(format!("NUMA node {}", node.id)),
            None => say("no NUMA node".to_owned()),
        }
        match cpu.llc.and_then(|at| Some((topology.caches.get(at)?, caches.get(at)?))) {
            Some((cache, cpus)) if cache.size_bytes > 0 => {
                say(format!("L{} cache of {} with {cpus}", cache.level, bytes(cache.size_bytes)));
            }
            Some((cache, cpus)) => say(format!("L{} cache with {cpus}", cache.level)),
            None => say("no cache".to_owned()),
        }
        if let Some(kind) = topology.kinds.get(cpu.kind).filter(|_| topology.kinds.len() > 1) {
            say(format!("{} of capacity {}", kind.name, kind.capacity));
        }
        if let Some(mark) = drawing.marks.get(&cpu.id) {
            say(drawing.mark_name(*mark));
        }
        title.truncate(title.len() - 2);
        (cpu.id, title)
    };
    topology.cpus.iter().map(title).collect()
}

/// The lines below the picture, the class of a sample before those that explain a colour.
fn legend(drawing: &Drawing<'_>, columns: u32) -> Vec<(Option<String>, String)> {
    let columns = usize::try_from(columns).unwrap_or(80).saturating_sub(4);
    let mut lines = Vec::new();
    let mut say = |class: Option<String>, text: &str| {
        for (line, nth) in wrapped(text, columns).into_iter().zip(0..) {
            lines.push((class.clone().filter(|_| nth == 0), line));
        }
    };
    if drawing.topology.kinds.len() > 1 {
        for (kind, at) in drawing.topology.kinds.iter().zip(0..) {
            say(
                Some(format!("cpu {}", kind_class(at))),
                &format!("{} of capacity {}", kind.name, kind.capacity),
            );
        }
    }
    for note in drawing.notes().into_iter().filter(|note| note.label != "offline") {
        match note.sign {
            Some(mark) => say(
                Some(format!("cpu {}", mark_class(mark))),
                &format!("{} {}: {}", mark.sign(), note.label, note.text),
            ),
            None => say(None, &format!("{}: {}", note.label, note.text)),
        }
    }
    lines
}

fn kind_class(kind: usize) -> String {
    format!("kind{}", kind.min(3))
}

fn mark_class(mark: Mark) -> String {
    match mark {
        Mark::Claim(letter) => format!("claim{}", u32::from(letter) % 6),
        Mark::Blocked => "blocked".to_owned(),
        Mark::Shared => "shared".to_owned(),
        Mark::Reserved => "reserved".to_owned(),
        Mark::Isolated => "isolated".to_owned(),
    }
}

/// The file as it grows.
struct Canvas<'a> {
    drawing: &'a Drawing<'a>,
    field: u32,
    titles: BTreeMap<u32, String>,
    out: String,
}

impl Canvas<'_> {
    fn open(&mut self, width: u32, height: u32) {
        let label = xml(&self.drawing.summary());
        self.write(format_args!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} \
             {height}\" role=\"img\" aria-label=\"{label}\">\n<style>\n{STYLE}</style>\n"
        ));
        self.rect("page", (0, 0, width, height), None);
    }

    fn node(&mut self, node: &Node, x: u32, y: u32) {
        match &node.what {
            What::Frame { class, title, inside } => {
                self.rect(class, (x, y, node.width, node.height), None);
                self.text("title", x + PADDING, y + 13, title);
                for (right, down, part) in inside {
                    self.node(part, x + PADDING + right, y + LINE + down);
                }
            }
            What::Core(cpus) => {
                self.rect("core", (x, y, node.width, node.height), None);
                for (cpu, thread) in cpus.iter().zip(0..) {
                    self.cpu(*cpu, x + HAIR, y + HAIR + thread * (FIELD_HEIGHT + HAIR));
                }
            }
            What::Offline(cpu) => {
                self.rect("cpu off", (x, y, node.width, node.height), None);
                self.text("number", x + node.width / 2, y + 13, &cpu.to_string());
            }
        }
    }

    fn cpu(&mut self, cpu: u32, x: u32, y: u32) {
        let mark = self.drawing.marks.get(&cpu).copied();
        let kind = self.drawing.topology.cpu(cpu).map_or(0, |cpu| cpu.kind);
        let class = mark.map_or_else(|| kind_class(kind), mark_class);
        let title = self.titles.remove(&cpu);
        self.rect(&format!("cpu {class}"), (x, y, self.field, FIELD_HEIGHT), title.as_deref());
        let sign = mark.map(|mark| mark.sign().to_string()).unwrap_or_default();
        self.text("number", x + self.field / 2, y + 13, &format!("{cpu}{sign}"));
    }

    fn rect(&mut self, class: &str, (x, y, width, height): (u32, u32, u32, u32), title: Option<&str>) {
        self.write(format_args!(
            "<rect class=\"{class}\" x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\""
        ));
        match title {
            Some(title) => self.write(format_args!("><title>{}</title></rect>\n", xml(title))),
            None => self.write(format_args!("/>\n")),
        }
    }

    fn text(&mut self, class: &str, x: u32, y: u32, text: &str) {
        self.write(format_args!("<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>\n", xml(text)));
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        let written = self.out.write_fmt(text);
        debug_assert!(written.is_ok(), "a String takes any text");
    }
}

/// Text in XML, which has no control characters.
fn xml(text: &str) -> String {
    printable(text).replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_text_not_markup() {
        assert_eq!(xml("a<b>&\"c\"\u{1b}"), "a&lt;b&gt;&amp;&quot;c&quot;\\u{1b}");
    }
}
