use crate::MAX_CPU_ID;
use std::fmt;

const BITS: u32 = u64::BITS;

/// A set of logical CPUs with ids from 0 to [`MAX_CPU_ID`].
///
/// Ids above the limit cannot be members: [`insert`](Self::insert) says so, and iterators that are
/// collected must not hold them.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuSet {
    /// Bit `i` of word `w` is CPU `64 * w + i`; the last word is never zero.
    words: Vec<u64>,
}

impl CpuSet {
    /// The empty set.
    #[must_use]
    pub const fn new() -> Self {
        Self { words: Vec::new() }
    }

    /// The set whose bit `i` of word `w` is CPU `64 * w + i`. Trailing zero words are dropped; `None`
    /// when a CPU above [`MAX_CPU_ID`] is in it.
    #[must_use]
    pub fn from_words(mut words: Vec<u64>) -> Option<Self> {
        trim(&mut words);
        (words.len() <= (MAX_CPU_ID / BITS + 1) as usize).then_some(Self { words })
    }

    /// The words of [`from_words`](Self::from_words), without trailing zero words.
    #[must_use]
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// The words of the set, by value.
    #[must_use]
    pub fn into_words(self) -> Vec<u64> {
        self.words
    }

    /// Adds a CPU. False when it was there already, or is above [`MAX_CPU_ID`] and cannot be.
    pub fn insert(&mut self, cpu: u32) -> bool {
        if cpu > MAX_CPU_ID {
            return false;
        }
        let index = (cpu / BITS) as usize;
        if index >= self.words.len() {
            self.words.resize(index + 1, 0);
        }
        let Some(word) = self.words.get_mut(index) else { return false };
        let bit = 1 << (cpu % BITS);
        let added = *word & bit == 0;
        *word |= bit;
        added
    }

    /// Adds the CPUs of a range, neither end above [`MAX_CPU_ID`], word by word.
    pub(crate) fn insert_range(&mut self, first: u32, last: u32) {
        if first > last || last > MAX_CPU_ID {
            return;
        }
        let (from, to) = ((first / BITS) as usize, (last / BITS) as usize);
        if to >= self.words.len() {
            self.words.resize(to + 1, 0);
        }
        for (at, word) in self.words.iter_mut().enumerate().take(to + 1).skip(from) {
            let low = if at == from { first % BITS } else { 0 };
            let high = if at == to { last % BITS } else { BITS - 1 };
            *word |= (u64::MAX << low) & (u64::MAX >> (BITS - 1 - high));
        }
    }

    /// Adds, of every `step` CPUs of a range, the first `used`, with `1 <= used <= step` and neither end above
    /// [`MAX_CPU_ID`]. What is there is doubled until it reaches the end: narrow strides are not dearer than wide ones.
    pub(crate) fn insert_strided(&mut self, first: u32, last: u32, used: u32, step: u32) {
        let mut strided = Self::new();
        strided.insert_range(first, last.min(first.saturating_add(used - 1)));
        let mut length = step;
        while length <= last.saturating_sub(first) {
            strided.repeat(length, last);
            length = length.saturating_mul(2);
        }
        self.extend_from(&strided);
    }

    /// Adds the same CPUs again, so much higher, as far as `last`.
    fn repeat(&mut self, distance: u32, last: u32) {
        let (words, bits) = ((distance / BITS) as usize, distance % BITS);
        self.words.resize((last / BITS) as usize + 1, 0);
        // From the top, so that what is copied is what was there before.
        for at in (words..self.words.len()).rev() {
            let word = |at: Option<usize>| at.and_then(|at| self.words.get(at)).copied().unwrap_or(0);
            let (same, below) = (word(Some(at - words)), word(at.checked_sub(words + 1)));
            let more = if bits == 0 { same } else { same << bits | below >> (BITS - bits) };
            if let Some(word) = self.words.get_mut(at) {
                *word |= more;
            }
        }
        if let Some(word) = self.words.last_mut() {
            *word &= u64::MAX >> (BITS - 1 - last % BITS);
        }
        trim(&mut self.words);
    }

    /// Takes a CPU out. False when it was not there.
    pub fn remove(&mut self, cpu: u32) -> bool {
        let Some(word) = self.words.get_mut((cpu / BITS) as usize) else { return false };
        let bit = 1 << (cpu % BITS);
        let had = *word & bit != 0;
        *word &= !bit;
        trim(&mut self.words);
        had
    }

    /// Whether the CPU is in the set.
    #[must_use]
    pub fn contains(&self, cpu: u32) -> bool {
        self.words.get((cpu / BITS) as usize).is_some_and(|word| word & (1 << (cpu % BITS)) != 0)
    }

    /// How many CPUs are in the set.
    #[must_use]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether no CPU is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The lowest CPU.
    #[must_use]
    pub fn first(&self) -> Option<u32> {
        self.iter().next()
    }

    /// The highest CPU.
    #[must_use]
    pub fn last(&self) -> Option<u32> {
        let last = self.words.last()?;
        let words = u32::try_from(self.words.len()).ok()?;
        Some(words * BITS - 1 - last.leading_zeros())
    }

    /// The CPUs, ascending.
    #[must_use]
    pub fn iter(&self) -> Iter<'_> {
        Iter { words: &self.words, base: 0, rest: self.words.first().copied().unwrap_or(0) }
    }

    /// CPUs that are in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let mut words: Vec<u64> = self.words.iter().zip(&other.words).map(|(a, b)| a & b).collect();
        trim(&mut words);
        Self { words }
    }

    /// CPUs that are in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let mut union = self.clone();
        union.extend_from(other);
        union
    }

    /// CPUs of this set that are not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut difference = self.clone();
        difference.subtract(other);
        difference
    }

    /// Adds all CPUs of the other set.
    pub fn extend_from(&mut self, other: &Self) {
        if self.words.len() < other.words.len() {
            self.words.resize(other.words.len(), 0);
        }
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
    }

    /// Takes all CPUs of the other set out.
    pub fn subtract(&mut self, other: &Self) {
        for (word, less) in self.words.iter_mut().zip(&other.words) {
            *word &= !less;
        }
        trim(&mut self.words);
    }

    /// Whether every CPU is in the other set too.
    #[must_use]
    pub fn is_subset(&self, other: &Self) -> bool {
        self.words.len() <= other.words.len() && self.words.iter().zip(&other.words).all(|(a, b)| a & !b == 0)
    }

    /// Whether the sets have no CPU in common.
    #[must_use]
    pub fn is_disjoint(&self, other: &Self) -> bool {
        self.words.iter().zip(&other.words).all(|(a, b)| a & b == 0)
    }

    /// How many CPUs are in both sets, without making their intersection.
    #[must_use]
    pub fn intersection_len(&self, other: &Self) -> usize {
        self.words.iter().zip(&other.words).map(|(a, b)| (a & b).count_ones() as usize).sum()
    }
}

fn trim(words: &mut Vec<u64>) {
    while words.last() == Some(&0) {
        words.pop();
    }
}

impl FromIterator<u32> for CpuSet {
    /// # Panics
    /// In debug builds, for an id above [`MAX_CPU_ID`]; release builds leave it out.
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        let mut set = Self::new();
        set.extend(cpus);
        set
    }
}

impl Extend<u32> for CpuSet {
    fn extend<I: IntoIterator<Item = u32>>(&mut self, cpus: I) {
        for cpu in cpus {
            debug_assert!(cpu <= MAX_CPU_ID, "CPU {cpu} is above {MAX_CPU_ID}");
            self.insert(cpu);
        }
    }
}

impl<const N: usize> From<[u32; N]> for CpuSet {
    fn from(cpus: [u32; N]) -> Self {
        cpus.into_iter().collect()
    }
}

impl<'a> IntoIterator for &'a CpuSet {
    type Item = u32;
    type IntoIter = Iter<'a>;

    fn into_iter(self) -> Iter<'a> {
        self.iter()
    }
}

/// The CPUs of a set, ascending.
#[derive(Debug, Clone)]
pub struct Iter<'a> {
    words: &'a [u64],
    base: u32,
    rest: u64,
}

impl Iterator for Iter<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        while self.rest == 0 {
            self.words = self.words.get(1..)?;
            self.rest = *self.words.first()?;
            self.base += BITS;
        }
        let cpu = self.base + self.rest.trailing_zeros();
        self.rest &= self.rest - 1;
        Some(cpu)
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn ids() -> impl Strategy<Value = BTreeSet<u32>> {
        proptest::collection::btree_set(prop_oneof![0..200u32, 0..=MAX_CPU_ID], 0..60)
    }

    fn set(ids: &BTreeSet<u32>) -> CpuSet {
        ids.iter().copied().collect()
    }

    proptest! {
        #[test]
        fn operations_agree_with_those_of_a_tree_set(a in ids(), b in ids()) {
            let (x, y) = (set(&a), set(&b));
            prop_assert_eq!(x.union(&y), set(&(&a | &b)));
            prop_assert_eq!(x.intersection(&y), set(&(&a & &b)));
            prop_assert_eq!(x.intersection_len(&y), (&a & &b).len());
            prop_assert_eq!(x.difference(&y), set(&(&a - &b)));
            prop_assert_eq!(x.is_subset(&y), a.is_subset(&b));
            prop_assert_eq!(x.is_disjoint(&y), a.is_disjoint(&b));
            prop_assert_eq!((x.len(), x.first(), x.last()), (a.len(), a.first().copied(), a.last().copied()));
            prop_assert!(x.iter().eq(a.iter().copied()));
        }

        #[test]
        fn words_are_canonical_and_round_trip(a in ids(), b in ids()) {
            let mut x = set(&a);
            x.subtract(&set(&b));
            prop_assert_ne!(x.words().last(), Some(&0));
            let mut padded = x.words().to_vec();
            padded.resize(128, 0);
            prop_assert_eq!(CpuSet::from_words(padded), Some(x));
        }

        #[test]
        fn insert_and_remove_report_what_they_changed(a in ids(), cpu in 0..=MAX_CPU_ID) {
            let mut x = set(&a);
            prop_assert_eq!(x.insert(cpu), !a.contains(&cpu));
            prop_assert!(x.contains(cpu));
            prop_assert!(x.remove(cpu));
            prop_assert!(!x.remove(cpu));
        }
    }

    #[test]
    fn ids_above_the_limit_are_refused() {
        assert!(!CpuSet::new().insert(MAX_CPU_ID + 1));
        assert!(CpuSet::new().insert(MAX_CPU_ID));
        let mut words = vec![0; 128];
        words.push(1);
        assert_eq!(CpuSet::from_words(words), None);
    }
}
