//! The kernel's ids of things by level.

use super::tree::{Leaf, Level};
use std::collections::BTreeMap;

/// The rules of a machine; those that it does not give are the usual ones.
#[derive(Debug)]
pub(super) struct Ids(BTreeMap<Level, Rule>);

#[derive(Debug)]
enum Rule {
    None,
    /// A running number in each of the level (in the machine), times the step.
    Running(Option<Level>, i64),
    /// These in turn, by the usual running number.
    List(Vec<i64>),
}

impl Ids {
    /// # Errors
    /// Text that says what is wrong with a rule.
    pub(super) fn parse(rules: &BTreeMap<String, String>) -> Result<Self, String> {
        let rule = |(level, rule): (&String, &String)| Ok((level.parse()?, Rule::parse(rule)?));
        rules.iter().map(rule).collect::<Result<_, String>>().map(Self)
    }

    /// The id of each thing of a level; none for things that have none.
    pub(super) fn of<'a>(
        &self,
        level: Level,
        leaves: impl Iterator<Item = &'a Leaf>,
    ) -> BTreeMap<usize, i64> {
        // Core and die ids start again in every socket.
        let usual = matches!(level, Level::Core | Level::Die).then_some(Level::Socket);
        let within = match self.0.get(&level) {
            Some(Rule::None) => return BTreeMap::new(),
            Some(Rule::Running(within, _)) => *within,
            _ => usual,
        };
        let mut known: BTreeMap<Option<usize>, usize> = BTreeMap::new();
        let mut ids = BTreeMap::new();
        let mut things: Vec<(usize, Option<usize>)> = leaves
            .filter_map(|leaf| Some((leaf.instance(level)?, within.and_then(|within| leaf.instance(within)))))
            .collect();
        things.sort_unstable();
        things.dedup_by_key(|(thing, _)| *thing);
        for (thing, outer) in things {
            let next = known.entry(outer).or_default();
            let number = *next;
            *next += 1;
            let id = match self.0.get(&level) {
                Some(Rule::Running(_, step)) => i64::try_from(number).ok().map(|number| number * step),
                Some(Rule::List(list)) => list.get(number % list.len()).copied(),
                _ => i64::try_from(number).ok(),
            };
            ids.extend(id.map(|id| (thing, id)));
        }
        ids
    }
}

impl Rule {
    fn parse(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let within = |word: &str| match word {
            "machine" => Ok(None),
            level => level.parse().map(Some),
        };
        let fault = || format!("`{text}` is no rule for ids: none, per LEVEL, per LEVEL step N, or a list");
        match words[..] {
            ["none"] => Ok(Self::None),
            ["per", level] => within(level).map(|level| Self::Running(level, 1)).map_err(|_| fault()),
            ["per", level, "step", step] => {
                let step = step.parse::<u16>().map_err(|_| fault())?;
                within(level).map(|level| Self::Running(level, step.into())).map_err(|_| fault())
            }
            [list] => list
                .split(',')
                .map(range)
                .collect::<Option<Vec<_>>>()
                .ok_or_else(fault)
                .map(|ranges| Self::List(ranges.concat())),
            _ => Err(fault()),
        }
    }
}

/// `-1`, `36` or `0-7`.
fn range(text: &str) -> Option<Vec<i64>> {
    if let Ok(id) = text.parse() {
        return Some(vec![id]);
    }
    let (first, last) = text.split_once('-')?;
    let (first, last) = (first.parse::<u16>().ok()?, last.parse::<u16>().ok()?);
    (first <= last).then(|| (first..=last).map(i64::from).collect())
}
