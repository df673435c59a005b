//! Drawings, compared as they are with what a person should see.

use dracpu_cpuset::CpuSet;
use dracpu_topology::{Drawing, Mark, Topology, machine};
use std::collections::BTreeMap;

fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

#[track_caller]
fn assert_drawing(drawing: &Drawing<'_>, expected: &str) {
    let drawn = drawing.to_string();
    assert_eq!(drawn.trim_end(), expected.trim(), "\n{drawn}");
}

#[test]
fn a_small_machine_shows_every_cpu_with_its_number() {
    let machine = machine::load("holes").unwrap();
    assert_drawing(
        &Drawing::new(&machine.topology),
        "
2 sockets, 3 NUMA nodes, 3 L3 caches, 12 cores, 21 CPUs, up to 2 threads a core
socket 0 · NUMA 0 32G
  ┌ L3 24M ────────────────┐
  │  0   1   2   4~  5~ 15 │
  │ 12  13  14  16~        │
  └────────────────────────┘
socket 1 · NUMA 2 16G
  ┌ L3 16M ────────┐ ┌ L3 8M ─┐
  │  6   7   8   9 │ │ 10  11 │
  │ 18  19  20  21 │ │ 22     │
  └────────────────┘ └────────┘
  ~ isolated  4-5,16  (3 CPUs)
  offline     3,17,23
  NUMA 4      64G, no CPUs
  PCIe        pci0000:00 → 0-2,4-5,12-16
",
    );
}

#[test]
fn claims_are_letters_with_a_legend() {
    let machine = machine::load("two-socket").unwrap();
    let mut marks: BTreeMap<u32, Mark> =
        machine.topology.online().iter().map(|cpu| (cpu, Mark::Shared)).collect();
    marks.extend([(0, Mark::Reserved), (32, Mark::Reserved), (4, Mark::Blocked)]);
    let drawing = Drawing::new(&machine.topology)
        .marks(&marks)
        .mark(&cpus("8,10,40,42"), Mark::Claim('A'))
        .mark(&cpus("36"), Mark::Claim('B'))
        .name('A', "pod web/0");
    assert_drawing(
        &drawing,
        "
2 sockets, 2 NUMA nodes, 8 L3 caches, 32 cores, 64 CPUs, 2 threads a core
socket 0 · NUMA 0 128G
  ┌ L3 16M ────────┐ ┌ L3 16M ────────┐ ┌ L3 16M ────────┐ ┌ L3 16M ────────┐
  │  0#  2·  4x  6·│ │  8A 10A 12· 14·│ │ 16· 18· 20· 22·│ │ 24· 26· 28· 30·│
  │ 32# 34· 36B 38·│ │ 40A 42A 44· 46·│ │ 48· 50· 52· 54·│ │ 56· 58· 60· 62·│
  └────────────────┘ └────────────────┘ └────────────────┘ └────────────────┘
socket 1 · NUMA 1 128G
  ┌ L3 16M ────────┐ ┌ L3 16M ────────┐ ┌ L3 16M ────────┐ ┌ L3 16M ────────┐
  │  1·  3·  5·  7·│ │  9· 11· 13· 15·│ │ 17· 19· 21· 23·│ │ 25· 27· 29· 31·│
  │ 33· 35· 37· 39·│ │ 41· 43· 45· 47·│ │ 49· 51· 53· 55·│ │ 57· 59· 61· 63·│
  └────────────────┘ └────────────────┘ └────────────────┘ └────────────────┘
  A pod web/0  8,10,40,42  (4 CPUs)
  B claim      36  (1 CPU)
  x kept idle  4  (1 CPU)
  · shared     1-3,5-7,9,11-31,33-35,37-39,41,43-63  (56 CPUs)
  # reserved   0,32  (2 CPUs)
  PCIe         pci0000:00 pci0000:40 → 0-62:1/2
  PCIe         pci0000:80 pci0000:c0 → 1-63:1/2
",
    );
}

#[test]
fn a_large_machine_is_a_line_for_each_cache() {
    let machine = machine::load("amd-ccd").unwrap();
    let drawing = Drawing::new(&machine.topology).mark(&cpus("0-3,64-67"), Mark::Claim('A'));
    assert_drawing(
        &drawing,
        "
1 socket, 4 NUMA nodes, 8 L3 caches, 64 cores, 128 CPUs, 2 threads a core
  socket  NUMA   cache   cores                    CPUs
       0  0 96G  L3 32M  AA AA AA AA ▪▪ ▪▪ ▪▪ ▪▪  0-7,64-71
                 L3 32M  ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪  8-15,72-79
          1 96G  L3 32M  ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪  16-23,80-87
                 L3 32M  ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪  24-31,88-95
          2 96G  L3 32M  ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪  32-39,96-103
                 L3 32M  ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪  40-47,104-111
          3 96G  L3 32M  ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪  48-55,112-119
                 L3 32M  ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪ ▪▪  56-63,120-127
  A claim  0-3,64-67  (8 CPUs)
  PCIe     pci0000:00 → 0-15,64-79
  PCIe     pci0000:20 → 16-31,80-95
  PCIe     pci0000:40 → 32-47,96-111
  PCIe     pci0000:60 → 48-63,112-127
",
    );
}

#[test]
fn hybrid_machines_show_the_kinds() {
    let machine = machine::load("hybrid").unwrap();
    let drawing = Drawing::new(&machine.topology).to_string();
    assert!(drawing.contains("L3#0 36M p-core") && drawing.contains("L3#0 36M e-core"), "{drawing}");
    assert!(drawing.contains("up to 2 threads a core"), "{drawing}");
}

#[test]
fn drawings_keep_to_the_width_and_colours_take_none() {
    for example in dracpu_topology::examples() {
        let machine = machine::load(example.name).unwrap();
        let online = machine.topology.online();
        let plain = Drawing::new(&machine.topology).mark(&online, Mark::Shared);
        let coloured = plain.clone().colour(true).to_string();
        for line in plain.to_string().lines() {
            assert!(line.chars().count() <= 80, "{}: {line}", example.name);
        }
        let mut uncoloured = String::new();
        for (part, nth) in coloured.split('\x1b').zip(0..) {
            uncoloured.push_str(if nth == 0 { part } else { part.split_once('m').unwrap().1 });
        }
        let trimmed: Vec<_> = uncoloured.lines().map(str::trim_end).collect();
        assert_eq!(trimmed.join("\n") + "\n", plain.to_string());
    }
}

/// What a reader of the SVG finds: the fields with a title, by CPU, and every rectangle of the file.
pub(crate) fn assert_svg(name: &str, topology: &Topology) {
    let svg = Drawing::new(topology).mark(&topology.online(), Mark::Shared).svg();
    let document = roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{name}: {error}"));
    let number =
        |node: roxmltree::Node<'_, '_>, key: &str| node.attribute(key).unwrap().parse::<u32>().unwrap();
    let view = document.root_element().attribute("viewBox").unwrap();
    let view: Vec<u32> = view.split(' ').map(|number| number.parse().unwrap()).collect();
    let mut fields = BTreeMap::new();
    for node in document.descendants().filter(|node| node.has_tag_name("rect")) {
        let [x, y, width, height] = ["x", "y", "width", "height"].map(|key| number(node, key));
        assert!(width > 0 && height > 0 && x + width <= view[2] && y + height <= view[3], "{name}: outside");
        if let Some(title) = node.children().find(|child| child.has_tag_name("title")) {
            let title = title.text().unwrap();
            let cpu = title.strip_prefix("CPU ").and_then(|rest| rest.split(':').next()).unwrap();
            let known = fields.insert(cpu.parse::<u32>().unwrap(), (y, x, width, height));
            assert_eq!(known, None, "{name}: CPU {cpu} twice");
        }
    }
    let titles = document.descendants().filter(|node| node.has_tag_name("title")).count();
    assert_eq!((fields.len(), titles), (topology.cpus.len(), topology.cpus.len()), "{name}");
    assert!(fields.keys().copied().eq(&topology.online()), "{name}");
    for node in document.descendants().filter(|node| node.has_tag_name("text")) {
        let (x, y) = (number(node, "x"), number(node, "y"));
        let letters = u32::try_from(node.text().unwrap_or_default().chars().count()).unwrap();
        let from = if node.attribute("class") == Some("number") { letters * 7 / 2 } else { letters * 7 };
        assert!(x + from <= view[2] && y <= view[3], "{name}: text outside: {:?}", node.text());
    }
    // Fields of the same row are the only ones that could touch: all have the same height.
    let mut rows: BTreeMap<u32, Vec<(u32, u32)>> = BTreeMap::new();
    for (y, x, width, height) in fields.into_values() {
        assert_eq!(height, 18);
        rows.entry(y).or_default().push((x, x + width));
    }
    let all: Vec<(u32, Vec<(u32, u32)>)> = rows
        .into_iter()
        .map(|(y, mut row)| {
            row.sort_unstable();
            (y, row)
        })
        .collect();
    for (at, (y, row)) in all.iter().enumerate() {
        assert!(row.windows(2).all(|pair| pair[0].1 < pair[1].0), "{name}: fields overlap");
        for (_, below) in all[at + 1..].iter().take_while(|(below, _)| *below < y + 18) {
            let apart = |(left, right): &(u32, u32)| below.iter().all(|(from, to)| to < left || right < from);
            assert!(row.iter().all(apart), "{name}: rows overlap");
        }
    }
}

#[test]
fn an_svg_has_a_field_for_each_cpu_and_none_over_another() {
    for example in dracpu_topology::examples() {
        assert_svg(example.name, &machine::load(example.name).unwrap().topology);
    }
}

#[test]
fn an_svg_tells_all_of_a_cpu_and_what_it_is_for() {
    let machine = machine::load("mobile-hybrid").unwrap().topology;
    let svg = Drawing::new(&machine)
        .mark(&cpus("0"), Mark::Reserved)
        .mark(&cpus("3"), Mark::Claim('A'))
        .name('A', "a <b>")
        .svg();
    for text in [
        "<title>CPU 0: thread 0 of the core 0-1, core id 0, socket 0, NUMA node 0, L3 cache of 24M with 0-19, p-core of \
         capacity 1024, reserved</title>",
        "<title>CPU 21: the only thread of its core, core id 15, socket 0, NUMA node 0, L2 cache of 2M with 20-21, \
         e-core of capacity 520</title>",
        "1024, a &lt;b&gt;</title>",
        ">0#</text>",
        ">3A</text>",
        "class=\"cpu reserved\"",
        "e-core of capacity 520</text>",
        "prefers-color-scheme: dark",
        "@media print",
    ] {
        assert!(svg.contains(text), "{text}: {svg}");
    }
    assert!(!svg.contains("href") && !svg.contains("url("), "self-contained");
    let holes = machine::load("holes").unwrap().topology;
    let svg = Drawing::new(&holes).svg();
    assert_eq!(svg.matches("class=\"cpu off\"").count(), 3);
    assert_eq!(svg.matches("class=\"cpu isolated\"").count(), 3 + 1, "and a sample below");
}
