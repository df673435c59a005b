use crate::CpuSet;

/// A small source of numbers that look random and are the same every time (xorshift64*): for tests that
/// try many machines and states.
#[derive(Debug, Clone)]
pub struct Draw(pub u64);

impl Draw {
    /// The source of a number, of which the next ones draw nothing alike.
    #[must_use]
    pub fn of(number: u64) -> Self {
        // Odd and without a pattern: small numbers become large ones, each another (Weyl sequence).
        Self(number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A number below the limit; 0 when the limit is 0.
    pub fn below(&mut self, limit: u32) -> u32 {
        self.0 = self.0.max(0x9e37_79b9_7f4a_7c15 & !self.0);
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33;
        u32::try_from(high % u64::from(limit.max(1))).unwrap_or_default()
    }

    /// Yes, with a chance of one in `of`.
    pub fn one_in(&mut self, of: u32) -> bool {
        self.below(of) == 0
    }

    /// One of the items; none when there are none.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> Option<&'a T> {
        let count = u32::try_from(items.len()).unwrap_or(u32::MAX);
        items.get(usize::try_from(self.below(count)).unwrap_or_default())
    }

    /// Some of the CPUs of a set, each with a chance of one in `of`.
    pub fn some(&mut self, cpus: &CpuSet, of: u32) -> CpuSet {
        cpus.iter().filter(|_| self.one_in(of)).collect()
    }

    /// Puts the items into another order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let limit = u32::try_from(last + 1).unwrap_or(u32::MAX);
            items.swap(last, usize::try_from(self.below(limit)).unwrap_or_default());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_draws_the_same() {
        let drawn = |seed| {
            let mut draw = Draw(seed);
            let mut items: Vec<u32> = (0..20).collect();
            draw.shuffle(&mut items);
            (items, draw.below(1000), draw.pick(&[1, 2, 3]).copied(), draw.some(&(0..40).collect(), 2))
        };
        assert_eq!(drawn(7), drawn(7));
        assert_ne!(drawn(7), drawn(8));
    }

    #[test]
    fn neighbouring_numbers_draw_nothing_alike() {
        let firsts: Vec<u32> = (0..200).map(|number| Draw::of(number).below(5)).collect();
        assert!(
            (0..5).all(|value| (20..60).contains(&firsts.iter().filter(|first| **first == value).count()))
        );
    }

    #[test]
    fn limits_are_kept() {
        let mut draw = Draw(0);
        assert!((0..1000).all(|_| draw.below(3) < 3));
        assert_eq!((draw.below(0), draw.pick::<u32>(&[])), (0, None));
        let mut items: Vec<u32> = (0..9).collect();
        draw.shuffle(&mut items);
        items.sort_unstable();
        assert_eq!(items, (0..9).collect::<Vec<_>>());
    }
}
