//! The exact online optimum of small machines: of all rules that know how large claims are and how they go, but not
//! the future, the one that needs the fewest caches per claim in the long run. Found by value iteration over all
//! ways in which claims can lie in caches; the same sums with the strategy's own choices tell how far it is above.

use crate::churn::{Moment, Player, fewest};
use crate::machines::plain;
use dracpu_strategy_llc_first::LlcFirst;
use dracpu_strategy_sdk::CpuSet;
use std::collections::{HashMap, HashSet};

/// Caches of so many CPUs, and claims of these sizes with their weights.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Model {
    pub(crate) caches: usize,
    pub(crate) cpus: usize,
    pub(crate) sizes: &'static [(usize, f64)],
    /// In CPUs: claims go, whichever, until the next one fits below.
    pub(crate) loads: &'static [usize],
}

/// The machines and loads that are looked at.
pub(crate) const MODELS: [Model; 5] = [
    Model {
        caches: 4,
        cpus: 4,
        sizes: &[(1, 2.0), (2, 3.0), (3, 1.0), (4, 2.0), (6, 1.0)],
        loads: &[12, 13, 14, 15],
    },
    Model {
        caches: 4,
        cpus: 4,
        sizes: &[(2, 3.0), (3, 1.0), (4, 2.0), (6, 1.0), (8, 1.0)],
        loads: &[13, 14, 15],
    },
    Model { caches: 3, cpus: 8, sizes: &[(2, 3.0), (4, 3.0), (6, 2.0), (8, 1.0)], loads: &[19, 21, 23] },
    Model {
        caches: 3,
        cpus: 8,
        sizes: &[(3, 2.0), (5, 2.0), (6, 2.0), (7, 1.0), (10, 1.0)],
        loads: &[19, 21, 22],
    },
    Model {
        caches: 3,
        cpus: 4,
        sizes: &[(1, 1.0), (2, 2.0), (3, 1.0), (4, 1.0), (6, 1.0)],
        loads: &[10, 11, 12],
    },
];

/// Caches per claim, by what they would be on the idle machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outcome {
    pub(crate) load: usize,
    pub(crate) optimum: f64,
    pub(crate) strategy: f64,
    pub(crate) packings: usize,
}

/// How many CPUs a claim has in each cache, four bits for each.
type Claim = u32;

/// Claims in ascending order; of packings that differ in the order of caches only, one stands for all.
type Packing = Box<[Claim]>;

fn amount(claim: Claim, cache: usize) -> usize {
    (claim >> (4 * cache) & 15) as usize
}

/// The weight of each size, so that all add up to 1.
fn laws(model: &Model) -> impl Iterator<Item = f64> {
    let all: f64 = model.sizes.iter().map(|(_, weight)| weight).sum();
    model.sizes.iter().map(move |(_, weight)| weight / all)
}

/// Every packing, and what it can become.
struct Graph {
    /// By used CPUs.
    packings: Vec<Packing>,
    used: Vec<usize>,
    /// By packing: what it is without each of its claims.
    without: Vec<Vec<u32>>,
    /// By packing and size: what it is with one claim more, and how many caches that one touches. None where it
    /// does not fit below the highest load.
    with: Vec<Vec<Vec<(u32, u8)>>>,
}

/// The optimum and the strategy at each load of the model.
pub(crate) fn solve(model: &Model) -> Vec<Outcome> {
    let graph = Graph::of(model);
    let chosen = graph.choices(model);
    let rooms = vec![model.cpus; model.caches];
    let ideal: f64 =
        model.sizes.iter().zip(laws(model)).map(|((size, _), law)| law * fewest(&rooms, *size) as f64).sum();
    let outcome = |load: &usize| Outcome {
        load: *load,
        optimum: graph.gain(model, *load, None) / ideal,
        strategy: graph.gain(model, *load, Some(&chosen)) / ideal,
        packings: graph.used.partition_point(|used| used <= load),
    };
    model.loads.iter().map(outcome).collect()
}

impl Graph {
    fn of(model: &Model) -> Self {
        let orders = orders(model.caches);
        let most = model.loads.iter().copied().max().unwrap();
        // By used CPUs, so that positions are in that order: a packing is found from those with fewer.
        let mut levels: Vec<HashSet<Packing>> = vec![HashSet::new(); most + 1];
        levels[0].insert(Packing::default());
        for used in 0..=most {
            let here: Vec<Packing> = levels[used].iter().cloned().collect();
            for (packing, (size, _)) in
                here.iter().flat_map(|packing| model.sizes.iter().map(move |size| (packing, size)))
            {
                if used + size <= most {
                    for claim in ways(&rooms(packing, model), *size) {
                        levels[used + size].insert(canonical(packing, claim, model, &orders));
                    }
                }
            }
        }
        let mut packings = Vec::new();
        let mut used = Vec::new();
        for (level, found) in levels.into_iter().enumerate() {
            let mut found: Vec<Packing> = found.into_iter().collect();
            found.sort_unstable();
            used.resize(used.len() + found.len(), level);
            packings.extend(found);
        }
        let at = positions(&packings);
        let without = |packing: &Packing| {
            let without = |left: usize| {
                let rest: Vec<Claim> =
                    (0..packing.len()).filter(|claim| *claim != left).map(|claim| packing[claim]).collect();
                at[&canonical(&rest, 0, model, &orders)[..]]
            };
            (0..packing.len()).map(without).collect()
        };
        let with = |packing: &Packing, used: usize| {
            let of_size = |(size, _): &(usize, f64)| {
                if used + size > most {
                    return Vec::new();
                }
                let mut next: Vec<(u32, u8)> = ways(&rooms(packing, model), *size)
                    .map(|claim| (at[&canonical(packing, claim, model, &orders)[..]], touched(claim)))
                    .collect();
                next.sort_unstable();
                next.dedup_by_key(|(packing, _)| *packing);
                next
            };
            model.sizes.iter().map(of_size).collect()
        };
        let without = packings.iter().map(without).collect();
        let with = packings.iter().zip(&used).map(|(packing, used)| with(packing, *used)).collect();
        Self { packings, used, without, with }
    }

    /// What the strategy does, by packing and size.
    fn choices(&self, model: &Model) -> Vec<Vec<Option<(u32, u8)>>> {
        let server = plain(model.caches as u32, model.cpus as u32);
        let player = Player::<LlcFirst>::new(&server, "{}");
        let orders = orders(model.caches);
        let at = positions(&self.packings);
        let mut answers: HashMap<(Vec<usize>, usize), Claim> = HashMap::new();
        let mut choice = |packing: &Packing, size: usize| {
            let rooms = rooms(packing, model);
            let claim = *answers.entry((rooms.clone(), size)).or_insert_with(|| {
                let free = |cache: &CpuSet, room: usize| cache.iter().take(room).collect::<Vec<_>>();
                let free: CpuSet =
                    server.caches.iter().zip(rooms).flat_map(|(cache, room)| free(cache, room)).collect();
                let moment = Moment { server: &server, group: 0, count: size, free: &free };
                let cpus = player.ask(&moment).unwrap().grants.remove(0).cpus;
                moment.rooms(&cpus).iter().rev().fold(0, |claim, amount| claim << 4 | *amount as Claim)
            });
            (at[&canonical(packing, claim, model, &orders)[..]], touched(claim))
        };
        let mut of_packing = |(packing, with): (&Packing, &Vec<Vec<(u32, u8)>>)| {
            let of_size = |((size, _), next): (&(usize, f64), &Vec<_>)| {
                (!next.is_empty()).then(|| choice(packing, *size))
            };
            model.sizes.iter().zip(with).map(of_size).collect()
        };
        self.packings.iter().zip(&self.with).map(&mut of_packing).collect()
    }

    /// Caches per claim in the long run, with these choices or else the best ones. The least and the greatest
    /// growth of a value in one step are bounds; they are brought together to a ten-thousandth of a percent.
    fn gain(&self, model: &Model, load: usize, chosen: Option<&[Vec<Option<(u32, u8)>>]>) -> f64 {
        let laws: Vec<f64> = laws(model).collect();
        let count = self.used.partition_point(|used| *used <= load);
        let mut values = vec![0.0; count];
        // What it costs from here on, by packing and by the size of the claim that waits.
        let mut waiting = vec![vec![0.0; count]; laws.len()];
        loop {
            for ((at, (size, _)), waiting) in model.sizes.iter().enumerate().zip(&mut waiting) {
                for packing in 0..count {
                    let cost = |(next, touched): &(u32, u8)| f64::from(*touched) + values[*next as usize];
                    waiting[packing] = if self.used[packing] + size > load {
                        let without = &self.without[packing];
                        without.iter().map(|next| waiting[*next as usize]).sum::<f64>() / without.len() as f64
                    } else if let Some(chosen) = chosen {
                        chosen[packing][at].as_ref().map(cost).unwrap()
                    } else {
                        self.with[packing][at].iter().map(cost).fold(f64::INFINITY, f64::min)
                    };
                }
            }
            let (mut least, mut greatest) = (f64::INFINITY, 0.0_f64);
            for (packing, value) in values.iter_mut().enumerate() {
                let new: f64 = waiting.iter().zip(&laws).map(|(waiting, law)| law * waiting[packing]).sum();
                least = least.min(new - *value);
                greatest = greatest.max(new - *value);
                *value = new;
            }
            if greatest - least < 1e-6 * least {
                return (least + greatest) / 2.0;
            }
            // Only differences between values matter.
            let base = values[0];
            values.iter_mut().for_each(|value| *value -= base);
        }
    }
}

fn positions(packings: &[Packing]) -> HashMap<&[Claim], u32> {
    packings.iter().zip(0..).map(|(packing, at)| (&packing[..], at)).collect()
}

fn touched(claim: Claim) -> u8 {
    (0..8).filter(|cache| amount(claim, *cache) > 0).count() as u8
}

fn rooms(packing: &[Claim], model: &Model) -> Vec<usize> {
    let used = |cache| packing.iter().map(|claim| amount(*claim, cache)).sum::<usize>();
    (0..model.caches).map(|cache| model.cpus - used(cache)).collect()
}

/// Every way to take so many CPUs.
fn ways(rooms: &[usize], count: usize) -> impl Iterator<Item = Claim> + use<> {
    let mut ways = vec![(0, count)];
    for (cache, room) in rooms.iter().enumerate() {
        let more = |(claim, rest): (Claim, usize)| {
            (0..=rest.min(*room)).map(move |taken| (claim | (taken as Claim) << (4 * cache), rest - taken))
        };
        ways = ways.into_iter().flat_map(more).collect();
    }
    ways.into_iter().filter(|(_, rest)| *rest == 0).map(|(claim, _)| claim)
}

/// Every order of the caches.
fn orders(caches: usize) -> Vec<Vec<usize>> {
    let mut orders = vec![Vec::new()];
    for _ in 0..caches {
        let longer = |order: &Vec<usize>| {
            let order = order.clone();
            let next = (0..caches).filter(|cache| !order.contains(cache)).collect::<Vec<_>>();
            next.into_iter().map(move |cache| [&order[..], &[cache]].concat())
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    orders
}

/// The packing with one claim more (0 = none): of all orders of its caches the least.
fn canonical(packing: &[Claim], more: Claim, model: &Model, orders: &[Vec<usize>]) -> Packing {
    let claims = || packing.iter().copied().chain((more > 0).then_some(more));
    // A number that tells caches apart by what lies in them, whatever their order: only equals need trying.
    let mut keys = [0_u64; 8];
    for claim in claims() {
        let (mut sum, mut squares) = (0, 0);
        for cache in 0..model.caches {
            sum += amount(claim, cache) as u64;
            squares += (amount(claim, cache) * amount(claim, cache)) as u64;
        }
        for (cache, key) in keys.iter_mut().enumerate().take(model.caches) {
            let here = amount(claim, cache) as u64;
            let mixed = (here << 16 | sum << 8 | squares).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            *key = key.wrapping_add(if here > 0 { mixed ^ mixed >> 29 } else { 0 });
        }
    }
    let sorted = orders.iter().filter(|order| order.windows(2).all(|pair| keys[pair[0]] >= keys[pair[1]]));
    let reordered = |order: &Vec<usize>| {
        let claim = |claim: Claim| {
            order.iter().rev().fold(0, |reordered, cache| reordered << 4 | (claim >> (4 * cache) & 15))
        };
        let mut packing: Packing = claims().map(claim).collect();
        packing.sort_unstable();
        packing
    };
    sorted.map(reordered).min().unwrap_or_default()
}
