//! An even split over the fewest NUMA nodes that can hold it, leaving the nodes as even as possible.

use crate::algorithm::{Placement, packed};
use crate::free::Free;
use crate::layout::{Layout, wide};
use dracpu_strategy_sdk::{CpuSet, ascending};

/// What is left of the work that the searches of one claim may do.
///
/// A search is exponential in the number of NUMA nodes. It ends early when nothing can be better, as on a
/// machine whose nodes are equally used, and within the budget on any machine of up to 10 nodes. Where the
/// budget ends it, the split is as even and over as few nodes as always, but perhaps not the one that
/// leaves the nodes most even: the better one of the best found so far and the one over the nodes with
/// most free CPUs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SearchBudget {
    /// One step = one node looked at, or one group handed to a node; preparing a subset counts as some more.
    steps: usize,
}

impl Default for SearchBudget {
    fn default() -> Self {
        Self { steps: 400_000 }
    }
}

impl SearchBudget {
    /// How many steps are left.
    #[must_use]
    pub fn steps(&self) -> usize {
        self.steps
    }

    /// Takes steps off; false when they are not there.
    fn spend(&mut self, steps: usize) -> bool {
        let enough = steps <= self.steps;
        self.steps = self.steps.saturating_sub(steps);
        enough
    }
}

/// Chooses `count` of the available CPUs, split evenly in multiples of `group` over as few NUMA nodes as
/// hold them; packed where no even split exists. None when fewer are available.
///
/// Several requests of a claim share the budget.
#[must_use]
pub fn distributed(
    layout: &Layout,
    available: &CpuSet,
    count: usize,
    group: usize,
    placement: Placement,
    budget: &mut SearchBudget,
) -> Option<CpuSet> {
    let free = Free::of(layout, available);
    if count > free.len() {
        return None;
    }
    let nodes: Vec<CpuSet> = free.numa_order().into_iter().map(|(_, node)| free.of_unit(node)).collect();
    let split = (group > 0 && count.is_multiple_of(group))
        .then(|| Search::new(&nodes, count, group).split(budget))
        .flatten();
    split
        .and_then(|split| split.take(layout, nodes, placement))
        .or_else(|| packed(layout, available, count, placement, false))
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
    /// The free CPUs of each node in whole groups.
    held: Vec<usize>,
    /// The sum of squares of the free CPUs.
    squares: usize,
}

/// The best split of one size so far.
#[derive(Default)]
struct Best {
    split: Option<Split>,
    score: u64,
    squares: usize,
}

impl Search {
    fn new(nodes: &[CpuSet], count: usize, group: usize) -> Self {
        let free: Vec<usize> = nodes.iter().map(CpuSet::len).collect();
        let held = free.iter().map(|free| free / group * group).collect();
        let squares = free.iter().map(|free| free * free).sum();
        Self { free, count, group, held, squares }
    }

    fn split(&self, budget: &mut SearchBudget) -> Option<Split> {
        let most = self.count.div_ceil(self.group).min(self.free.len());
        (1..=most).find_map(|nodes| self.split_over(nodes, budget))
    }

    fn free_of(&self, node: usize) -> usize {
        self.free.get(node).copied().unwrap_or(0)
    }

    /// In whole groups.
    fn held_by(&self, node: usize) -> usize {
        self.held.get(node).copied().unwrap_or(0)
    }

    /// The best split over so many nodes: lowest score, the first in lexicographic order on a tie.
    fn split_over(&self, nodes: usize, budget: &mut SearchBudget) -> Option<Split> {
        let each = self.count / nodes / self.group * self.group;
        let eligible: Vec<usize> =
            self.free.iter().enumerate().filter(|(_, free)| **free >= each).map(|(node, _)| node).collect();
        let widest = self.widest(&eligible, nodes)?;
        let lowest = self.lowest_score(&eligible, nodes, each);

        let mut best = Best::default();
        let mut combination = Combination::first(nodes, eligible.len());
        while let Some(positions) = combination.as_mut().filter(|_| budget.spend(4 * nodes + 16)) {
            let subset: Vec<usize> = positions.chosen_of(&eligible).collect();
            if self.holds_all(&subset) {
                self.consider(subset, each, lowest, &mut best, budget);
            }
            if best.split.is_some() && best.score <= lowest {
                return best.split;
            }
            if !positions.advance() {
                return best.split;
            }
        }
        // The budget is used up: a last look, with a little of its own, at the most promising nodes.
        self.consider(widest, each, lowest, &mut best, &mut SearchBudget { steps: 2 * nodes });
        best.split
    }

    fn holds_all(&self, subset: &[usize]) -> bool {
        subset.iter().map(|node| self.held_by(*node)).sum::<usize>() >= self.count
    }

    /// The nodes that hold most, in order; none when even they do not hold what is asked, so that no
    /// subset of this size does.
    fn widest(&self, eligible: &[usize], nodes: usize) -> Option<Vec<usize>> {
        let by_held = ascending(eligible.iter().map(|node| (!wide(self.held_by(*node)), *node)).collect()); // most first
        let widest = ascending(by_held.into_iter().take(nodes).map(|node| (0, node)).collect());
        (widest.len() == nodes && self.holds_all(&widest)).then_some(widest)
    }

    /// A score that no split over so many nodes can be below. Taking from the nodes with most free CPUs,
    /// and each further group from the node that has most left, would leave the nodes most even; whether a
    /// split can do that is another matter.
    fn lowest_score(&self, eligible: &[usize], nodes: usize, each: usize) -> u64 {
        let by_free = ascending(eligible.iter().map(|node| (!wide(self.free_of(*node)), *node)).collect()); // most first
        let mut squares = self.squares;
        let mut left: Vec<usize> = Vec::with_capacity(nodes);
        for node in by_free.into_iter().take(nodes) {
            let free = self.free_of(node);
            squares -= free * free - (free - each) * (free - each);
            left.push(free - each);
        }
        for _ in 0..(self.count - each * nodes) / self.group {
            let Some(most) = left.iter_mut().max() else { break };
            let less = most.saturating_sub(self.group);
            squares -= *most * *most - less * less;
            *most = less;
        }
        self.score(squares)
    }

    /// Scores a subset with each way to hand out the rest, and keeps what is better than the best.
    fn consider(
        &self,
        subset: Vec<usize>,
        each: usize,
        lowest: u64,
        best: &mut Best,
        budget: &mut SearchBudget,
    ) {
        let rest = self.count - each * subset.len();
        let left_of = |node: usize| self.free_of(node) - each;
        let given = |node: usize| self.free_of(node).pow(2) - left_of(node).pow(2);
        let squares = self.squares - subset.iter().map(|node| given(*node)).sum::<usize>();
        if rest == 0 {
            if let Some(score) = self.better(squares, best) {
                let split = Split { nodes: subset, each, rest, rest_nodes: Vec::new(), group: self.group };
                *best = Best { split: Some(split), score, squares };
            }
            return;
        }
        let candidates: Vec<usize> =
            subset.iter().copied().filter(|node| left_of(*node) >= self.group).collect();
        let held = |node: usize| self.held_by(node) - each; // `each` is whole groups too
        let widest = ascending(candidates.iter().map(|node| (!wide(held(*node)), *node)).collect()); // most first
        let mut left = Vec::with_capacity(candidates.len());
        for nodes in (1..=candidates.len()).rev() {
            if widest.iter().take(nodes).map(|node| held(*node)).sum::<usize>() < rest {
                return; // and fewer nodes hold less
            }
            let mut combination = Combination::first(nodes, candidates.len());
            while let Some(positions) =
                combination.as_mut().filter(|_| budget.spend(nodes + rest / self.group))
            {
                left.clear();
                left.extend(positions.chosen_of(&candidates).map(left_of));
                if positions.chosen_of(&candidates).map(held).sum::<usize>() >= rest
                    && let squares = self.squares_after(&mut left, rest, squares)
                    && let Some(score) = self.better(squares, best)
                {
                    let rest_nodes = positions.chosen_of(&candidates).collect();
                    let split = Split { nodes: subset.clone(), each, rest, rest_nodes, group: self.group };
                    *best = Best { split: Some(split), score, squares };
                    if score <= lowest {
                        return;
                    }
                }
                if !positions.advance() {
                    break;
                }
            }
        }
    }

    /// The sum of squares once the rest is handed out by the group to nodes with so many left, round and
    /// round. They must hold it.
    fn squares_after(&self, left: &mut [usize], mut rest: usize, mut squares: usize) -> usize {
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
        squares
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

/// Subsets of a fixed size, in lexicographic order.
struct Combination {
    chosen: Vec<usize>,
    of: usize,
}

impl Combination {
    fn first(size: usize, of: usize) -> Option<Self> {
        (size <= of).then(|| Self { chosen: (0..size).collect(), of })
    }

    /// The members of a list that are in the subset.
    fn chosen_of<'a>(&'a self, list: &'a [usize]) -> impl Iterator<Item = usize> + 'a {
        self.chosen.iter().filter_map(|at| list.get(*at)).copied()
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

#[cfg(test)]
mod tests {
    use super::*;

    fn search(free: &[usize], count: usize, group: usize) -> Search {
        let mut next = 0;
        let mut node = |size: usize| {
            let cpus = (next..next + u32::try_from(size).unwrap()).collect();
            next += 100;
            cpus
        };
        let nodes: Vec<CpuSet> = free.iter().map(|size| node(*size)).collect();
        Search::new(&nodes, count, group)
    }

    #[test]
    fn subsets_come_in_lexicographic_order() {
        let mut combination = Combination::first(2, 4).unwrap();
        let mut all = vec![combination.chosen.clone()];
        while combination.advance() {
            all.push(combination.chosen.clone());
        }
        assert_eq!(all, [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]);
        assert!(Combination::first(3, 2).is_none());
    }

    #[test]
    fn the_rest_goes_where_it_leaves_the_nodes_most_even() {
        let split = search(&[4, 6, 5], 7, 1).split(&mut SearchBudget::default()).unwrap();
        assert_eq!((split.nodes.as_slice(), split.each, split.rest), ([1, 2].as_slice(), 3, 1));
        assert_eq!(split.rest_nodes, [1, 2]);
    }

    #[test]
    fn without_budget_the_split_is_still_even_over_the_fewest_nodes() {
        let free = [3, 8, 5, 8, 9, 7, 8, 4];
        for (count, group) in [(10, 1), (23, 1), (24, 2), (40, 1), (50, 1)] {
            let bounded = search(&free, count, group).split(&mut SearchBudget { steps: 0 });
            let full = search(&free, count, group).split(&mut SearchBudget::default());
            let shape = |split: &Split| (split.nodes.len(), split.each, split.rest);
            assert_eq!(bounded.as_ref().map(shape), full.as_ref().map(shape), "{count}");
        }
        assert_eq!(search(&[3, 3], 4, 4).split(&mut SearchBudget { steps: 0 }), None);
    }
}
