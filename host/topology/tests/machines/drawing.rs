//! Drawings, compared as they are with what a person should see.

use dracpu_cpuset::CpuSet;
use dracpu_topology::{Drawing, Mark, machine};
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
    assert_drawing(&Drawing::new(&machine.topology), "");
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
    assert_drawing(&drawing, "");
}

#[test]
fn a_large_machine_is_a_line_for_each_cache() {
    let machine = machine::load("amd-ccd").unwrap();
    let drawing = Drawing::new(&machine.topology).mark(&cpus("0-3,64-67"), Mark::Claim('A'));
    assert_drawing(&drawing, "");
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
