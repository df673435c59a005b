//! Claims that come and go. What comes, when it goes and which device it gets depends on numbers of CPUs alone,
//! not on which ones: so every strategy is played the same sequence.

use dracpu_strategy_sdk::testkit::Draw;

/// How large claims are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mix {
    /// Mostly small ones.
    General,
    /// The same sizes, each as often.
    Uniform,
    /// The same without single CPUs, so whole cores only.
    Even,
}

impl Mix {
    pub(crate) const ALL: [Self; 3] = [Self::General, Self::Uniform, Self::Even];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::General => "general",
            Self::Uniform => "uniform",
            Self::Even => "even",
        }
    }

    /// Sizes in CPUs with their weights.
    pub(crate) fn sizes(self) -> &'static [(u32, u32)] {
        match self {
            Self::General => {
                &[(1, 10), (2, 24), (4, 24), (6, 10), (8, 14), (12, 6), (16, 6), (24, 3), (32, 3)]
            }
            Self::Uniform => &[(1, 1), (2, 1), (4, 1), (6, 1), (8, 1), (12, 1), (16, 1), (24, 1), (32, 1)],
            Self::Even => &[(2, 24), (4, 24), (6, 10), (8, 14), (12, 6), (16, 6), (24, 3), (32, 3)],
        }
    }
}

/// Which device with room a claim gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scheduler {
    /// Any.
    Random,
    /// The first, as the scheduler's allocator does.
    FirstFit,
}

/// What happens to claims, which are numbered in the order in which they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Event {
    Comes { group: usize, count: u32 },
    Goes { claim: usize },
}

/// What a sequence is drawn from.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) mix: Mix,
    /// Of the usable CPUs, in percent: claims go, whichever, until the next one fits below.
    pub(crate) percent: u32,
    pub(crate) scheduler: Scheduler,
}

struct Live {
    claim: usize,
    group: usize,
    count: u32,
}

impl Load {
    /// So many claims on groups of these sizes. One larger than any group, or than the load, is drawn again.
    pub(crate) fn events(self, groups: &[u32], seed: u64, claims: usize) -> Vec<Event> {
        let most = groups.iter().sum::<u32>() * self.percent / 100;
        let largest = groups.iter().copied().max().unwrap_or(0).min(most);
        let mut draw = Draw::of(seed);
        let mut room = groups.to_vec();
        let mut live: Vec<Live> = Vec::new();
        let mut used = 0;
        let mut events = Vec::new();
        for claim in 0..claims {
            let count = self.size(&mut draw, largest);
            let group = loop {
                let fitting: Vec<usize> = (0..room.len()).filter(|group| room[*group] >= count).collect();
                let chosen = match self.scheduler {
                    Scheduler::Random => draw.pick(&fitting),
                    Scheduler::FirstFit => fitting.first(),
                };
                if let Some(group) = chosen.filter(|_| used + count <= most) {
                    break *group;
                }
                let gone = live.swap_remove(draw.below(live.len() as u32) as usize);
                used -= gone.count;
                room[gone.group] += gone.count;
                events.push(Event::Goes { claim: gone.claim });
            };
            used += count;
            room[group] -= count;
            live.push(Live { claim, group, count });
            events.push(Event::Comes { group, count });
        }
        events
    }

    fn size(self, draw: &mut Draw, largest: u32) -> u32 {
        let sizes = self.mix.sizes();
        loop {
            let mut at = draw.below(sizes.iter().map(|(_, weight)| weight).sum());
            let drawn = sizes.iter().find(|(_, weight)| {
                let here = at < *weight;
                at = at.saturating_sub(*weight);
                here
            });
            match drawn {
                Some((size, _)) if *size <= largest => return *size,
                _ => {}
            }
        }
    }
}
