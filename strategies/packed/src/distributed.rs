//! An even split over the fewest NUMA nodes that can hold it, leaving the nodes as even as possible.

use crate::algorithm::{Placement, packed};
use crate::layout::{Layout, sorted};
use dracpu_strategy_sdk::CpuSet;

/// How many node subsets are looked at for one claim.
///
/// The search is exponential in the number of NUMA nodes. Up to 8 nodes it always ends within the budget
/// (3^8 subsets of subsets). When the budget is used up, the best split found so far is taken, or the
/// one over the nodes with the most free CPUs: as even, over as few nodes, but perhaps not the one that
/// leaves the nodes most even.
pub const SEARCH_BUDGET: u32 = 60_000;

/// Chooses `count` of the available CPUs, split evenly in multiples of `group` over as few NUMA nodes as
/// hold them; packed where no even split exists. None when fewer are available.
///
/// `budget` is what is left of [`SEARCH_BUDGET`]; several requests of a claim share it.
#[must_use]
pub fn distributed(
    layout: &Layout,
    available: &CpuSet,
    count: usize,
    group: usize,
    placement: Placement,
    budget: &mut u32,
) -> Option<CpuSet> {
    let free = available.intersection(&layout.online);
    if count > free.len() {
        return None;
    }
    let nodes: Vec<CpuSet> =
        layout.numa_order(&free).into_iter().map(|node| node.cpus.intersection(&free)).collect();
    if group > 0 && count % group == 0 {
        let sizes = nodes.iter().map(CpuSet::len).collect();
        if let Some(split) = (Search { free: sizes, count, group }).split(budget) {
            return split.take(layout, nodes, placement);
        }
    }
    packed(layout, &free, count, placement, false)
}

/// How many CPUs to take from which nodes, by their position.
#[derive(Debug, PartialEq, Eq)]
struct Split {
    nodes: Vec<usize>,
    /// From each node.
    each: usize,
    /// What is left then is handed out by the group to these, round and round.
    rest: usize,
    rest_nodes: Vec<usize>,
    group: usize,
}

impl Split {
    fn take(&self, layout: &Layout, mut free: Vec<CpuSet>, placement: Placement) -> Option<CpuSet> {
        let mut taken = CpuSet::new();
        let mut take = |node: usize, count: usize| {
            let free = free.get_mut(node)?;
            if free.len() < count {
                return Some(0);
            }
            let cpus = packed(layout, free, count, placement, false)?;
            free.subtract(&cpus);
            taken.extend_from(&cpus);
            Some(count)
        };
        for node in &self.nodes {
            take(*node, self.each)?;
        }
        let mut rest = self.rest;
        while rest > 0 {
            let before = rest;
            for node in &self.rest_nodes {
                if rest > 0 {
                    rest -= take(*node, self.group)?;
                }
            }
            if rest == before {
                return None; // never: the search counted whole groups
            }
        }
        Some(taken)
    }
}

/// The search for a split. Numbers of CPUs throughout, nodes by position.
struct Search {
    free: Vec<usize>,
    count: usize,
    group: usize,
}

/// The best split of one size so far.
#[derive(Default)]
struct Best {
    split: Option<Split>,
    score: u64,
    squares: usize,
}

impl Search {
    fn split(&self, budget: &mut u32) -> Option<Split> {
        let most = self.count.div_ceil(self.group).min(self.free.len());
        (1..=most).find_map(|nodes| self.split_over(nodes, budget))
    }

    /// CPUs in whole groups.
    fn grouped(&self, cpus: usize) -> usize {
        cpus / self.group * self.group
    }

    /// The best split over so many nodes: lowest score, the first in lexicographic order on a tie.
    fn split_over(&self, nodes: usize, budget: &mut u32) -> Option<Split> {
        let each = self.grouped(self.count / nodes);
        let eligible: Vec<usize> =
            self.free.iter().enumerate().filter(|(_, free)| **free >= each).map(|(node, _)| node).collect();
        let widest = self.widest(&eligible, nodes)?;

        let mut best = Best::default();
        let mut combination = Combination::first(nodes, eligible.len());
        while best.split.is_none() || best.score > 0 {
            let Some(positions) = combination.as_mut().filter(|_| *budget > 0) else { break };
            *budget -= 1;
            let subset: Vec<usize> =
                positions.chosen.iter().filter_map(|at| eligible.get(*at)).copied().collect();
            if self.holds_all(&subset) {
                self.consider(subset, each, &mut best, budget);
            }
            if !positions.advance() {
                break;
            }
        }
        if best.split.is_none() {
            self.consider(widest, each, &mut best, &mut 1);
        }
        best.split
    }

    fn free_of(&self, node: usize) -> usize {
        self.free.get(node).copied().unwrap_or(0)
    }

    fn holds_all(&self, subset: &[usize]) -> bool {
        subset.iter().map(|node| self.grouped(self.free_of(*node))).sum::<usize>() >= self.count
    }

    /// The nodes that hold most, in order; none when even they do not hold what is asked, so that no
    /// subset of this size does.
    fn widest(&self, eligible: &[usize], nodes: usize) -> Option<Vec<usize>> {
        let held = |node: usize| wide(self.grouped(self.free_of(node)));
        let by_size = sorted(eligible.iter().map(|node| (!held(*node), *node))); // most first
        let widest = sorted(by_size.into_iter().take(nodes).map(|node| (0, node)));
        (widest.len() == nodes && self.holds_all(&widest)).then_some(widest)
    }

    /// Scores a subset with each way to hand out the rest, and keeps what is better than the best.
    fn consider(&self, subset: Vec<usize>, each: usize, best: &mut Best, budget: &mut u32) {
        let rest = self.count - each * subset.len();
        let mut left = self.free.clone();
        for node in &subset {
            if let Some(left) = left.get_mut(*node) {
                *left -= each;
            }
        }
        let squares = left.iter().map(|left| left * left).sum();
        if rest == 0 {
            if let Some(score) = self.better(squares, best) {
                let split = Split { nodes: subset, each, rest, rest_nodes: Vec::new(), group: self.group };
                *best = Best { split: Some(split), score, squares };
            }
            return;
        }
        let left_of = |node: usize| left.get(node).copied().unwrap_or(0);
        let candidates: Vec<usize> =
            subset.iter().copied().filter(|node| left_of(*node) >= self.group).collect();
        let held = |node: usize| self.grouped(left_of(node));
        let widest = sorted(candidates.iter().map(|node| (!wide(held(*node)), *node)));
        for nodes in (1..=candidates.len()).rev() {
            if widest.iter().take(nodes).map(|node| held(*node)).sum::<usize>() < rest {
                break; // and fewer nodes hold less
            }
            let mut combination = Combination::first(nodes, candidates.len());
            while let Some(positions) = combination.as_mut().filter(|_| *budget > 0) {
                *budget -= 1;
                let chosen = || positions.chosen.iter().filter_map(|at| candidates.get(*at)).copied();
                if let Some(squares) = self.squares_after(chosen().map(left_of), rest, squares)
                    && let Some(score) = self.better(squares, best)
                {
                    let split = Split {
                        nodes: subset.clone(),
                        each,
                        rest,
                        rest_nodes: chosen().collect(),
                        group: self.group,
                    };
                    *best = Best { split: Some(split), score, squares };
                    if score == 0 {
                        return;
                    }
                }
                if !positions.advance() {
                    break;
                }
            }
        }
    }

    /// The sum of squares once the rest is handed out by the group to these nodes, round and round; none
    /// when they do not hold it.
    fn squares_after(
        &self,
        left: impl Iterator<Item = usize>,
        mut rest: usize,
        mut squares: usize,
    ) -> Option<usize> {
        let mut left: Vec<usize> = left.collect();
        if left.iter().map(|left| self.grouped(*left)).sum::<usize>() < rest {
            return None;
        }
        while rest > 0 {
            for left in left.iter_mut().filter(|left| **left >= self.group) {
                if rest > 0 {
                    squares -= *left * *left;
                    *left -= self.group;
                    squares += *left * *left;
                    rest -= self.group;
                }
            }
        }
        Some(squares)
    }

    /// The score of a sum of squares, when it is lower than the best one.
    fn better(&self, squares: usize, best: &Best) -> Option<u64> {
        if best.split.is_some() && squares >= best.squares {
            return None; // the score grows with the squares
        }
        let score = self.score(squares);
        (best.split.is_none() || score < best.score).then_some(score)
    }

    /// The standard deviation of the CPUs left in the nodes, in thousandths. The mean is rounded to
    /// thousandths first, as the original does: that makes ties, and the first of them wins.
    fn score(&self, squares: usize) -> u64 {
        let (nodes, squares) = (wide(self.free.len()), wide(squares));
        let sum = wide(self.free.iter().sum::<usize>() - self.count);
        let mean = (2000 * sum + nodes) / (2 * nodes);
        let deviations = 1_000_000 * squares + nodes * mean * mean - 2000 * mean * sum;
        let root = (deviations / nodes).isqrt();
        root + u64::from(4 * deviations >= nodes * (2 * root + 1).pow(2))
    }
}

fn wide(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

/// Subsets of a fixed size, in lexicographic order.
struct Combination {
    chosen: Vec<usize>,
    of: usize,
}

impl Combination {
    fn first(size: usize, of: usize) -> Option<Self> {
        (size <= of).then(|| Self { chosen: (0..size).collect(), of })
    }

    /// Goes to the next subset; false when this was the last.
    fn advance(&mut self) -> bool {
        let size = self.chosen.len();
        let movable = |(at, position): &(usize, &usize)| **position + (size - at) < self.of;
        let Some((at, position)) = self.chosen.iter().enumerate().rev().find(movable) else { return false };
        let next = position + 1..;
        for (position, next) in self.chosen.iter_mut().skip(at).zip(next) {
            *position = next;
        }
        true
    }
}
