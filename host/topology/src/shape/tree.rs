//! The shape's text into logical CPUs, and their order.

use crate::cache::size;
use dracpu_cpuset::MAX_CPU_ID;
use std::collections::BTreeMap;
use std::iter::Peekable;
use std::str::FromStr;

/// How deep unlike parts may be nested in each other.
const MAX_DEPTH: usize = 16;

/// What contains CPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Socket,
    Die,
    Cluster,
    Numa,
    L1,
    L2,
    L3,
    L4,
    Core,
    Thread,
}

impl Level {
    pub(super) const ALL: [Self; 10] = [
        Self::Socket,
        Self::Die,
        Self::Cluster,
        Self::Numa,
        Self::L1,
        Self::L2,
        Self::L3,
        Self::L4,
        Self::Core,
        Self::Thread,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::Die => "die",
            Self::Cluster => "cluster",
            Self::Numa => "numa",
            Self::L1 => "l1",
            Self::L2 => "l2",
            Self::L3 => "l3",
            Self::L4 => "l4",
            Self::Core => "core",
            Self::Thread => "thread",
        }
    }

    /// The cache's level, of those that are caches.
    pub(super) fn cache(self) -> Option<u32> {
        match self {
            Self::L1 => Some(1),
            Self::L2 => Some(2),
            Self::L3 => Some(3),
            Self::L4 => Some(4),
            _ => None,
        }
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = Self::ALL.into_iter().find(|level| level.name() == text);
        named.ok_or_else(|| format!("`{text}` is no level: {}", Self::ALL.map(Self::name).join(", ")))
    }
}

/// A logical CPU by what it is in.
#[derive(Debug, Clone, Default)]
pub(super) struct Leaf {
    of: BTreeMap<Level, Place>,
    /// Positions from the outside in; unlike parts count as a level without a name.
    path: Vec<(Option<Level>, usize)>,
    pub(super) kind: Option<String>,
    pub(super) capacity: Option<u32>,
}

#[derive(Debug, Clone, Copy)]
struct Place {
    /// A number of its own for each thing of a level in the machine.
    instance: usize,
    size: Option<u64>,
}

impl Leaf {
    pub(super) fn instance(&self, level: Level) -> Option<usize> {
        self.of.get(&level).map(|place| place.instance)
    }

    pub(super) fn instances(&self) -> impl Iterator<Item = (Level, usize)> + '_ {
        self.of.iter().map(|(level, place)| (*level, place.instance))
    }

    pub(super) fn size(&self, level: Level) -> Option<u64> {
        self.of.get(&level)?.size
    }
}

/// A word of a shape, or unlike parts.
#[derive(Debug)]
enum Item {
    Level { level: Level, count: usize, size: Option<u64> },
    Kind(String),
    Capacity(u32),
    Parts(Vec<Vec<Item>>),
}

impl FromStr for Item {
    type Err = String;

    fn from_str(word: &str) -> Result<Self, String> {
        let fault =
            || format!("`{word}` is not LEVEL:COUNT, LEVEL:COUNT(SIZE), kind=NAME or capacity=NUMBER");
        if let Some((key, value)) = word.split_once('=') {
            return match key {
                "kind" if !value.is_empty() => Ok(Self::Kind(value.to_owned())),
                "capacity" => {
                    value.parse().ok().filter(|value| *value > 0).map(Self::Capacity).ok_or_else(fault)
                }
                _ => Err(fault()),
            };
        }
        let (name, rest) = word.split_once(':').ok_or_else(fault)?;
        let (count, bytes) = match rest.split_once('(') {
            Some((count, rest)) => (count, Some(rest.strip_suffix(')').and_then(size).ok_or_else(fault)?)),
            None => (rest, None),
        };
        let count = count.parse().ok().filter(|count| *count > 0).ok_or_else(fault)?;
        let level = name.parse().map_err(|_| fault())?;
        Ok(Self::Level { level, count, size: bytes })
    }
}

/// Expands a shape into its logical CPUs, from the outside in.
///
/// # Errors
/// Text that says what is wrong with the shape.
pub(super) fn expand(shape: &str) -> Result<Vec<Leaf>, String> {
    let spaced = shape.replace('[', " [ ").replace('|', " | ").replace(']', " ] ");
    let mut words = spaced.split_whitespace().peekable();
    let items = parse(&mut words, 0)?;
    if let Some(word) = words.next() {
        return Err(format!("`{word}` in the shape without a `[` before it"));
    }
    if items.is_empty() {
        return Err("the shape is empty; `core:1` is one CPU".to_owned());
    }
    let mut expansion = Expansion::default();
    expansion.add(&items.iter().collect::<Vec<_>>(), &Leaf::default())?;
    Ok(expansion.leaves)
}

/// Items up to the end of a part.
fn parse<'a>(words: &mut Peekable<impl Iterator<Item = &'a str>>, depth: usize) -> Result<Vec<Item>, String> {
    if depth > MAX_DEPTH {
        return Err(format!("parts in the shape are more than {MAX_DEPTH} deep"));
    }
    let mut items = Vec::new();
    while let Some(word) = words.next_if(|word| !matches!(*word, "|" | "]")) {
        if word != "[" {
            items.push(word.parse()?);
            continue;
        }
        let mut parts = vec![parse(words, depth + 1)?];
        while words.next_if_eq(&"|").is_some() {
            parts.push(parse(words, depth + 1)?);
        }
        if words.next() != Some("]") {
            return Err("`[` in the shape without its `]`".to_owned());
        }
        items.push(Item::Parts(parts));
    }
    Ok(items)
}

#[derive(Debug, Default)]
struct Expansion {
    leaves: Vec<Leaf>,
    instances: BTreeMap<Level, usize>,
}

impl Expansion {
    fn add(&mut self, items: &[&Item], at: &Leaf) -> Result<(), String> {
        let Some((first, rest)) = items.split_first() else {
            if u32::try_from(self.leaves.len()).is_ok_and(|count| count > MAX_CPU_ID) {
                return Err(format!("the shape has more than {} CPUs", MAX_CPU_ID + 1));
            }
            self.leaves.push(at.clone());
            return Ok(());
        };
        let mut inside = at.clone();
        match first {
            Item::Kind(name) => inside.kind = Some(name.clone()),
            Item::Capacity(capacity) => inside.capacity = Some(*capacity),
            Item::Level { level, count, size } => {
                if at.of.contains_key(level) {
                    return Err(format!("{} is there twice, one inside the other", level.name()));
                }
                for position in 0..*count {
                    let instances = self.instances.entry(*level).or_default();
                    let place = Place { instance: *instances, size: *size };
                    *instances += 1;
                    let mut inside = at.clone();
                    inside.of.insert(*level, place);
                    inside.path.push((Some(*level), position));
                    self.add(rest, &inside)?;
                }
                return Ok(());
            }
            Item::Parts(parts) => {
                for (part, position) in parts.iter().zip(0..) {
                    let mut inside = at.clone();
                    inside.path.push((None, position));
                    let items: Vec<&Item> = part.iter().chain(rest.iter().copied()).collect();
                    self.add(&items, &inside)?;
                }
                return Ok(());
            }
        }
        self.add(rest, &inside)
    }
}

/// The CPUs in the order of their numbers: nested loops over the levels that `numbering` names, the slowest
/// first; `*` stands for all others.
///
/// # Errors
/// Text that says what is wrong with the numbering.
pub(super) fn number(mut leaves: Vec<Leaf>, numbering: &str) -> Result<Vec<Leaf>, String> {
    let text = if numbering.is_empty() { "*" } else { numbering };
    let loops: Vec<Option<Level>> = text
        .split_whitespace()
        .map(|word| if word == "*" { Ok(None) } else { word.parse().map(Some) })
        .collect::<Result<_, String>>()?;
    if loops.iter().filter(|level| level.is_none()).count() != 1 {
        return Err(format!("numbering is `{text}`, without one `*` for the levels that it does not name"));
    }
    let key = |leaf: &Leaf| -> Vec<usize> {
        let mut key = Vec::new();
        for level in &loops {
            let of_loop = |(of, _): &&(Option<Level>, usize)| match level {
                Some(_) => of == level,
                None => of.is_none() || !loops.contains(of),
            };
            let before = key.len();
            key.extend(leaf.path.iter().filter(of_loop).map(|(_, position)| *position));
            if level.is_some() && key.len() == before {
                key.push(0);
            }
        }
        key
    };
    leaves.sort_by_cached_key(key);
    Ok(leaves)
}
