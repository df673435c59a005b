//! Reading machines from files and drawing them. Four times the CPUs should take at most five times as long: compare
//! the lines of 256 and 1024 CPUs.
//!
//! `l3 of 8 cores` is the usual server; `l3 of a socket` the worst case, where every CPU names half of all CPUs,
//! which are numbered in turns.

use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use dracpu_topology::{Drawing, Overlay, machine, read};
use std::hint::black_box;
use support::Sysfs;

#[path = "../tests/machines/support.rs"]
#[allow(
    dead_code,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    reason = "the tests', which use the rest of it"
)]
mod support;

/// The machines of so many CPUs.
fn shapes(cpus: usize) -> [(&'static str, String); 2] {
    let shape = |inner: String, numbering| {
        format!("shape: socket:2 numa:1(64G) {inner} thread:2\nnumbering: {numbering}\n")
    };
    [
        ("l3 of 8 cores", shape(format!("l3:{} core:8", cpus / 32), "thread *")),
        ("l3 of a socket", shape(format!("l3:1 core:{}", cpus / 4), "thread * socket")),
    ]
}

fn machines(criterion: &mut Criterion) {
    for cpus in [256, 1024] {
        for (name, text) in shapes(cpus) {
            let dir = tempfile::tempdir().expect("a directory can be made");
            let file = dir.path().join("machine.yaml");
            std::fs::write(&file, text).expect("a file can be written");
            let topology = machine::load(&file.display().to_string()).expect("a machine").topology;
            assert_eq!(topology.cpus.len(), cpus);
            Sysfs::of(&topology).write(dir.path());
            let overlay = Overlay::default();
            let mut bench = |what: &str, run: &dyn Fn()| {
                criterion.bench_with_input(
                    BenchmarkId::new(format!("{what}, {name}"), cpus),
                    &(),
                    |bencher, ()| {
                        bencher.iter(run);
                    },
                );
            };
            bench("read", &|| _ = black_box(read(dir.path(), &overlay).expect("a machine")));
            bench("text", &|| _ = black_box(Drawing::new(&topology).to_string()));
            bench("svg", &|| _ = black_box(Drawing::new(&topology).svg()));
        }
    }
}

criterion_group!(benches, machines);
criterion_main!(benches);
