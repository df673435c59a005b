//! Plays the suite: every machine, mix and load to `packed`, `packed` without its preference for caches, and
//! `llc-first`, all the same sequences; and checks each decision of `llc-first`.

use crate::churn::{Measures, Moment, Player, fewest};
use crate::load::{Load, Mix, Scheduler};
use crate::machines::{Family, GroupBy, Server, suite};
use dracpu_strategy_llc_first::LlcFirst;
use dracpu_strategy_packed::Packed;
use dracpu_strategy_sdk::CpuSet;

pub(crate) const LOADS: [u32; 3] = [60, 80, 90];

/// How much is played.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Effort {
    pub(crate) seeds: u64,
    /// Counted claims of each sequence.
    pub(crate) claims: usize,
    /// Claims before them, until the machine is as full as it gets.
    pub(crate) before: usize,
}

/// The measures of one machine, mix and load.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Cell {
    pub(crate) name: &'static str,
    pub(crate) family: Family,
    pub(crate) group_by: GroupBy,
    pub(crate) mix: Mix,
    pub(crate) percent: u32,
    /// Without the preference for caches.
    pub(crate) plain: Measures,
    /// As it is by default.
    pub(crate) packed: Measures,
    pub(crate) llc_first: Measures,
}

/// What was found by checking each decision of `llc-first`.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Checks {
    pub(crate) decisions: usize,
    /// More caches than the largest free counts that add up to the claim.
    pub(crate) not_fewest: usize,
    /// Claims of whole cores in one NUMA node for which whole cores were free in as few caches.
    pub(crate) even: usize,
    /// Those of them that split a core.
    pub(crate) split: usize,
    /// Decisions where all claims are of whole cores, and the cores that claims shared nevertheless.
    pub(crate) whole_only: usize,
    pub(crate) shared: usize,
    /// Demands of `align: required` that were refused, and answers that were not what they should be.
    pub(crate) refused: usize,
    pub(crate) wrong: usize,
}

/// Every cell of the suite, with devices chosen at random.
pub(crate) fn play_suite(effort: Effort, checks: &mut Checks) -> Vec<Cell> {
    suite().iter().flat_map(|server| play(server, Scheduler::Random, effort, checks)).collect()
}

/// Those machines of which the scheduler fills the first device first.
pub(crate) fn play_first_fit(effort: Effort, checks: &mut Checks) -> Vec<Cell> {
    let servers = suite().into_iter().filter(|server| ["Rome NPS1", "Milan NPS1"].contains(&server.name));
    let servers = servers.filter(|server| server.family == Family::Nps1);
    servers.flat_map(|server| play(&server, Scheduler::FirstFit, effort, checks)).collect()
}

fn play(server: &Server, scheduler: Scheduler, effort: Effort, checks: &mut Checks) -> Vec<Cell> {
    let plain = Player::<Packed>::new(server, r#"{"prefer-align-cpus-by-uncorecache":false}"#);
    let packed = Player::<Packed>::new(server, "{}");
    let llc_first = Player::<LlcFirst>::new(server, "{}");
    let required = Player::<LlcFirst>::new(server, r#"{"align":"required"}"#);
    let groups: Vec<u32> = server.groups.iter().map(|group| group.cpus.len() as u32).collect();
    let mut cells = Vec::new();
    for (mix, percent) in Mix::ALL.into_iter().flat_map(|mix| LOADS.map(|percent| (mix, percent))) {
        let mut cell = Cell {
            name: server.name,
            family: server.family,
            group_by: server.group_by,
            mix,
            percent,
            plain: Measures::default(),
            packed: Measures::default(),
            llc_first: Measures::default(),
        };
        for seed in 0..effort.seeds {
            let load = Load { mix, percent, scheduler };
            let events = load.events(&groups, seed, effort.before + effort.claims);
            cell.plain.add(plain.play(server, &events, effort.before, &mut |_, _| ()));
            cell.packed.add(packed.play(server, &events, effort.before, &mut |_, _| ()));
            cell.llc_first.add(llc_first.play(server, &events, effort.before, &mut |moment, cpus| {
                checks.look_at(moment, cpus, mix, &required);
            }));
        }
        if mix == Mix::Even {
            checks.whole_only += cell.llc_first.claims;
            checks.shared += cell.llc_first.shared_cores;
        }
        cells.push(cell);
    }
    eprintln!("played {} by {:?}, {scheduler:?}", server.name, server.group_by);
    cells
}

impl Checks {
    fn look_at(&mut self, moment: &Moment<'_>, cpus: &CpuSet, mix: Mix, required: &Player<LlcFirst>) {
        let machine = &moment.server.machine;
        let touched = moment.rooms(cpus).iter().filter(|amount| **amount > 0).count();
        let least = fewest(&moment.rooms(moment.free), moment.count);
        let idle = fewest(&moment.sizes().caches, moment.count);
        self.decisions += 1;
        self.not_fewest += usize::from(touched != least);
        let is_refused = required.ask(moment).is_err();
        self.refused += usize::from(is_refused);
        self.wrong += usize::from(is_refused != (least > idle));
        let in_one_node = moment.sizes().nodes.iter().filter(|cpus| **cpus > 0).count() == 1;
        if mix == Mix::Even || !in_one_node || moment.count % 2 == 1 {
            return;
        }
        let whole = machine.whole_cores(&moment.free.intersection(&moment.sizes().cpus));
        if whole.len() >= moment.count && fewest(&moment.rooms(&whole), moment.count) <= least {
            self.even += 1;
            self.split += usize::from(machine.whole_cores(cpus) != *cpus);
        }
    }
}
