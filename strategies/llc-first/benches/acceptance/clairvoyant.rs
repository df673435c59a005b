//! What a rule could do that knows the future: which claims come and when each goes. The true optimum is out of
//! reach, so this is a beam search: it keeps the most promising packings and looks ahead from each.

use crate::load::Event;
use std::collections::{BTreeMap, HashSet};

/// Packings kept after each claim.
const WIDTH: usize = 32;
/// Ways to place a claim that are tried in each.
const WAYS: usize = 24;
/// Events that a look ahead plays.
const AHEAD: usize = 80;

/// What happens, with claims numbered anew: a number is used again when its claim is gone.
#[derive(Debug, Clone, Copy)]
enum Step {
    Comes { slot: usize, count: u8 },
    Goes { slot: usize },
}

#[derive(Debug, Clone)]
struct Packing {
    /// By cache.
    free: Vec<u8>,
    /// By slot and cache.
    held: Vec<u8>,
    /// Caches that counted claims touch.
    cost: usize,
}

/// A choice: caches, and how many CPUs of each.
type Way = Vec<(usize, u8)>;

/// How many caches the claims from number `counted` on touch in all, on a machine of equal caches.
pub(crate) fn fewest_found(events: &[Event], caches: usize, cpus: u8, counted: usize) -> usize {
    let (steps, slots) = steps(events);
    let mut beam = vec![Packing { free: vec![cpus; caches], held: vec![0; slots * caches], cost: 0 }];
    let mut ahead = beam[0].clone();
    let mut claims = 0;
    for (at, step) in steps.iter().enumerate() {
        let Step::Comes { slot, count } = *step else {
            beam.iter_mut().for_each(|packing| packing.apply(*step));
            continue;
        };
        let future = &steps[at + 1..steps.len().min(at + 1 + AHEAD)];
        let is_counted = usize::from(claims >= counted);
        let mut found = Vec::new();
        for (from, packing) in beam.iter().enumerate() {
            for way in ways(&packing.free, cpus, count) {
                ahead.clone_from(packing);
                ahead.place(slot, &way);
                let key = ahead.key();
                let cost = packing.cost + is_counted * way.len();
                let score = cost + ahead.look(future);
                found.push((score, cost, key, from, way));
            }
        }
        // Equal ones once, whatever their caches are called.
        found.sort_unstable_by_key(|(score, cost, key, ..)| (*score, *cost, *key));
        let mut known = HashSet::new();
        let best = found.into_iter().filter(|(_, _, key, ..)| known.insert(*key)).take(WIDTH);
        beam = best
            .map(|(_, cost, _, from, way)| {
                let mut packing = beam[from].clone();
                packing.place(slot, &way);
                packing.cost = cost;
                packing
            })
            .collect();
        claims += 1;
    }
    beam.iter().map(|packing| packing.cost).min().unwrap()
}

/// The events with slots, and how many slots there are.
fn steps(events: &[Event]) -> (Vec<Step>, usize) {
    let (mut slot_of, mut spare, mut slots) = (BTreeMap::new(), Vec::new(), 0);
    let mut claims = 0;
    let step = |event: &Event| match *event {
        Event::Comes { count, .. } => {
            let slot = spare.pop().unwrap_or_else(|| {
                slots += 1;
                slots - 1
            });
            slot_of.insert(claims, slot);
            claims += 1;
            Step::Comes { slot, count: count as u8 }
        }
        Event::Goes { claim } => {
            let slot = slot_of.remove(&claim).unwrap();
            spare.push(slot);
            Step::Goes { slot }
        }
    };
    let steps = events.iter().map(step).collect();
    (steps, slots)
}

impl Packing {
    fn place(&mut self, slot: usize, way: &[(usize, u8)]) {
        let caches = self.free.len();
        for (cache, amount) in way {
            self.free[*cache] -= amount;
            self.held[slot * caches + cache] = *amount;
        }
    }

    /// Plays a step; a claim that comes goes to the tightest of the fewest caches. Says how many it touches.
    fn apply(&mut self, step: Step) {
        match step {
            Step::Goes { slot } => {
                let caches = self.free.len();
                let held = &mut self.held[slot * caches..(slot + 1) * caches];
                for (free, held) in self.free.iter_mut().zip(held) {
                    *free += std::mem::take(held);
                }
            }
            Step::Comes { slot, mut count } => loop {
                let fits = (0..self.free.len()).filter(|cache| self.free[*cache] >= count);
                let tightest = fits.min_by_key(|cache| self.free[*cache]);
                let cache =
                    tightest.or_else(|| (0..self.free.len()).max_by_key(|cache| self.free[*cache])).unwrap();
                let taken = self.free[cache].min(count);
                let caches = self.free.len();
                self.free[cache] -= taken;
                self.held[slot * caches + cache] = taken;
                self.cost += 1;
                count -= taken;
                if count == 0 {
                    break;
                }
            },
        }
    }

    /// What the next claims would cost from here.
    fn look(&mut self, future: &[Step]) -> usize {
        self.cost = 0;
        future.iter().for_each(|step| self.apply(*step));
        self.cost
    }

    /// The same number for packings that differ in the order of caches only.
    fn key(&self) -> u64 {
        let caches = self.free.len();
        let mixed = |number: u64| {
            let mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93)
        };
        let of_cache = |cache: usize| {
            let held = self.held.iter().skip(cache).step_by(caches).enumerate();
            let here = held.filter(|(_, amount)| **amount > 0);
            here.fold(0_u64, |sum, (slot, amount)| {
                sum.wrapping_add(mixed((slot as u64) << 8 | u64::from(*amount)))
            })
        };
        (0..caches).fold(0_u64, |sum, cache| sum.wrapping_add(mixed(of_cache(cache))))
    }
}

/// Ways to place a claim in the fewest caches, those that leave least in them first.
fn ways(free: &[u8], cpus: u8, count: u8) -> Vec<Way> {
    let mut order: Vec<usize> = (0..free.len()).filter(|cache| free[*cache] > 0).collect();
    order.sort_by_key(|cache| std::cmp::Reverse(free[*cache]));
    let (mut room, mut least) = (0, 0);
    while room < count {
        room += free[order[least]];
        least += 1;
    }
    let mut sets: Vec<Vec<usize>> = Vec::new();
    choose(free, cpus, &order, least, u32::from(count), &mut Vec::new(), &mut sets);
    let mut ways: Vec<(u32, Way)> = Vec::new();
    for set in sets {
        let left = set.iter().map(|cache| u32::from(free[*cache])).sum::<u32>() - u32::from(count);
        // What is left stays in one of them: any that still gives something.
        for keeps in set.iter().filter(|cache| left < u32::from(free[**cache])) {
            let amount = |cache: &usize| free[*cache] - if cache == keeps { left as u8 } else { 0 };
            ways.push((left, set.iter().map(|cache| (*cache, amount(cache))).collect()));
            if left == 0 {
                break;
            }
        }
    }
    ways.sort_by_key(|(left, _)| *left);
    ways.into_iter().map(|(_, way)| way).take(WAYS).collect()
}

/// Sets of so many caches with room for the claim. Of unused caches, which are all alike, the first ones.
fn choose(
    free: &[u8],
    cpus: u8,
    order: &[usize],
    more: usize,
    rest: u32,
    set: &mut Vec<usize>,
    sets: &mut Vec<Vec<usize>>,
) {
    if more == 0 {
        if rest == 0 {
            sets.push(set.clone());
        }
        return;
    }
    let largest: u32 = order.iter().take(more).map(|cache| u32::from(free[*cache])).sum();
    let Some((first, others)) = order.split_first().filter(|_| largest >= rest && sets.len() < 2000) else {
        return;
    };
    set.push(*first);
    choose(free, cpus, others, more - 1, rest.saturating_sub(u32::from(free[*first])), set, sets);
    set.pop();
    let others = if free[*first] == cpus {
        let used = others.iter().position(|cache| free[*cache] < cpus).unwrap_or(others.len());
        &others[used..]
    } else {
        others
    };
    choose(free, cpus, others, more, rest, set, sets);
}
