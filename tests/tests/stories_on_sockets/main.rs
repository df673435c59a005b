//! Random stories on the embedded node: the real daemon between a kubelet, a runtime and an API server, each step held
//! against the model. `STORIES_ON_SOCKETS` is how many are told, `SEED` the first one's.
//!
//! Reading order: this file, `sockets` (claims and containers), `surroundings` (all else that happens to a driver).

mod sockets;
mod surroundings;

use anyhow::{Result, anyhow};
use dracpu_model::configuration::CONFIGURATIONS;
use dracpu_model::machine::Machine as Model;
use dracpu_model::run::{Stage, Told, new_node, play_seed};
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::own_mounts;
use sockets::Sockets;

/// Operations of the longest story.
const LONGEST: usize = 100;

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |text| text.parse().expect("a number"))
}

fn tell(seed: u64, own_mounts: bool) -> Result<Told> {
    let shape = Shape { sockets: 2, numa_per_socket: 1, l3_per_numa: 1, cores_per_l3: 4, threads: 2 };
    let directory = tempfile::tempdir()?;
    let machine = Machine::of(shape);
    machine.write_sysfs(directory.path())?;
    let model = Model::named(&directory.path().display().to_string());
    let mut truth = new_node(&model, u8::try_from(seed % u64::from(CONFIGURATIONS))?);
    truth.nri = if seed % 2 == 1 { (0, 12, 3) } else { (0, 8, 0) };
    (truth.injects_as_containerd, truth.looks_after_files) = (true, true);
    let start = || Ok(Box::new(Sockets::start(&machine, own_mounts, &truth)?) as Box<dyn Stage>);
    play_seed(seed, LONGEST, &truth, start).map_err(|failure| anyhow!("{failure}"))
}

#[test]
fn no_story_breaks_a_rule_between_kubelet_and_runtime() -> Result<()> {
    const TEST: &str = "no_story_breaks_a_rule_between_kubelet_and_runtime";
    let inside = own_mounts::inside(TEST);
    if !inside && own_mounts::possible() {
        print!("{}", own_mounts::again(TEST)?);
        return Ok(());
    }
    if !inside {
        eprintln!("{TEST}: directories never become read-only, which needs root");
    }
    let (first, count) = (number("SEED", 1), number("STORIES_ON_SOCKETS", 3));
    for seed in first..first + count {
        let told = tell(seed, inside)?;
        println!("seed {seed}: {} events, {} of them done", told.script.len(), told.done);
    }
    Ok(())
}
