//! Wishes that mean the same in every strategy that takes them: who else may run on a claim's cores and in
//! its caches, which CPUs it may get, where its memory lies.
//!
//! Reading order: this file (the words of the options), `units` (cores and caches as sets of CPUs), `terms`
//! (what a machine can offer under a node's wishes, and what a claim's wishes come to).
//!
//! ```
//! use dracpu_strategy_sdk::{Isolate, Wishes};
//! #[derive(Clone, Default, serde::Deserialize)]
//! #[serde(deny_unknown_fields, default)]
//! struct Options {
//!     tight: bool,
//!     #[serde(flatten)]
//!     wishes: Wishes,
//! }
//! const SCHEMA: &str = concat!(
//!     r#"{"type": "object", "additionalProperties": false, "properties": {"tight": {"type": "boolean"}, "#,
//!     dracpu_strategy_sdk::wish_properties!(),
//!     "}}"
//! );
//! let options: Options = serde_json::from_str(r#"{"isolate": "core"}"#).unwrap();
//! assert_eq!(options.wishes.isolate, Isolate::Core);
//! assert!(serde_json::from_str::<serde_json::Value>(SCHEMA).is_ok());
//! ```

mod terms;
mod units;

pub use terms::Terms;

use crate::order::joined;
use crate::{CpuSet, Denial, Machine, deny};
use serde::Deserialize;

/// The shared options, to be flattened into a strategy's own. [`wish_properties!`](crate::wish_properties)
/// describes them for users.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", default)]
pub struct Wishes {
    /// What a claim shares with nobody.
    pub isolate: Isolate,
    /// How many threads of a core a claim uses.
    pub threads: Threads,
    /// Which kind of cores it gets.
    pub kind: Kind,
    /// What becomes of CPUs that the kernel isolates.
    pub isolated: Isolated,
    /// Whether the container runs on the shared CPUs as well.
    pub mixed: bool,
    /// Where its memory comes from.
    pub memory: Memory,
}

/// What a claim shares with nobody. In the order of how much that is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(try_from = "String")]
pub enum Isolate {
    /// Its CPUs.
    #[default]
    None,
    /// Its cores: threads that it does not use stay idle.
    Core,
    /// Its last-level caches: CPUs that share one with it stay idle.
    Cache,
}

/// How many threads of a core a claim uses.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Threads {
    /// As many as it gets.
    #[default]
    All,
    /// The first; the others stay idle.
    One,
}

/// Which kind of cores a claim gets.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(from = "String")]
pub enum Kind {
    /// No demand.
    #[default]
    Any,
    /// The kind of this name ([`CpuKind::name`](crate::CpuKind::name)).
    Named(String),
}

impl From<String> for Kind {
    fn from(name: String) -> Self {
        if name == "any" { Self::Any } else { Self::Named(name) }
    }
}

/// What becomes of CPUs that the kernel isolates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Isolated {
    /// They are not given out.
    #[default]
    Exclude,
    /// They are given out like others.
    Include,
    /// Only they are given out.
    Only,
}

/// Where a claim's memory comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub enum Memory {
    /// From anywhere.
    #[default]
    None,
    /// From the NUMA nodes of its CPUs.
    Local,
}

/// The properties of a JSON Schema that describe [`Wishes`], comma separated, to be put with `concat!` between
/// those of the strategy's own options.
#[macro_export]
macro_rules! wish_properties {
    () => {
        r#"
    "isolate": {
      "enum": ["none", "core", "cache"],
      "default": "none",
      "description": "Who else may run on the claim's cores and caches. core: nobody on its cores; threads that the claim does not use stay idle. cache: nobody in its last-level caches; it gets whole caches, and CPUs of them that it does not use stay idle. Idle CPUs are charged, so this belongs in the node's strategyOptions: devices then offer whole cores or caches. Elsewhere it is taken for claims that fill whole cores or caches."
    },
    "threads": {
      "enum": ["all", "one"],
      "default": "all",
      "description": "one: the claim gets one thread of each core, and the others stay idle. Belongs in the node's strategyOptions: devices then offer one CPU for each core. Elsewhere it is taken for cores that have one thread."
    },
    "kind": {
      "type": "string",
      "minLength": 1,
      "default": "any",
      "description": "Which kind of cores the claim gets, by its name on the machine: p-core, e-core, … (dracpu topology shows them). any: no demand. A claim cannot ask for another kind than the one that the node's strategyOptions name."
    },
    "isolated": {
      "enum": ["exclude", "include", "only"],
      "default": "exclude",
      "description": "What becomes of CPUs that the kernel isolates (isolcpus): not given out, given out like others, or only these. Belongs in the node's strategyOptions, as it is part of what devices offer; a claim can narrow include, and widen nothing."
    },
    "mixed": {
      "type": "boolean",
      "default": false,
      "description": "The container runs on the node's shared CPUs beside its exclusive ones, for helper threads; DRA_CPUSET_… names the exclusive ones alone. One request with it is enough for the claim."
    },
    "memory": {
      "enum": ["none", "local"],
      "default": "none",
      "description": "local: the container's memory comes from the NUMA nodes of its CPUs (cpuset.mems), as far as they have memory. none: from anywhere."
    }"#
    };
}

impl Wishes {
    /// Those of the CPUs that the claim may get: by `isolated` and `kind`.
    #[must_use]
    pub fn eligible(&self, machine: &Machine, mut cpus: CpuSet) -> CpuSet {
        match self.isolated {
            Isolated::Exclude => cpus.subtract(&machine.isolated),
            Isolated::Include => {}
            Isolated::Only => cpus = cpus.intersection(&machine.isolated),
        }
        match &self.kind {
            Kind::Any => cpus,
            Kind::Named(name) => {
                let mut of_kind = CpuSet::new();
                machine
                    .kinds
                    .iter()
                    .filter(|kind| kind.name == *name)
                    .for_each(|kind| of_kind.extend_from(&kind.cpus));
                cpus.intersection(&of_kind)
            }
        }
    }

    /// What the claim has to itself: one thread a core keeps the core's other threads idle.
    fn exclusive(&self) -> Isolate {
        match self.threads {
            Threads::All => self.isolate,
            Threads::One => self.isolate.max(Isolate::Core),
        }
    }

    /// The demands that may leave free CPUs unused, as they are written in options.
    fn demands(&self) -> Vec<String> {
        let mut demands = Vec::new();
        match self.isolate {
            Isolate::None => {}
            Isolate::Core => demands.push("isolate: core".to_owned()),
            Isolate::Cache => demands.push("isolate: cache".to_owned()),
        }
        if self.threads == Threads::One {
            demands.push("threads: one".to_owned());
        }
        if let Kind::Named(name) = &self.kind {
            demands.push(format!("kind: {name}"));
        }
        demands
    }

    fn check_kind(&self, machine: &Machine) -> Result<(), Denial> {
        let Kind::Named(name) = &self.kind else { return Ok(()) };
        if machine.kinds.iter().any(|kind| kind.name == *name) {
            return Ok(());
        }
        // Kinds of one name may differ in speed.
        let mut known: Vec<String> = Vec::new();
        for kind in &machine.kinds {
            if !known.contains(&kind.name) {
                known.push(kind.name.clone());
            }
        }
        Err(deny!(
            Invalid,
            "kind: {name} is not on this machine, whose kinds of cores are {}; name one of them, or any",
            joined(&known, ", ")
        ))
    }
}

/// Reads a choice from its word. Written out since what serde derives for each is a kilobyte of its own.
macro_rules! words {
    ($($choice:ident: $($word:literal = $variant:ident),+;)+) => {
        $(impl TryFrom<String> for $choice {
            type Error = String;

            fn try_from(word: String) -> Result<Self, String> {
                match word.as_str() {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(not_among(&word, &[$($word),+])),
                }
            }
        })+
    };
}

words! {
    Isolate: "none" = None, "core" = Core, "cache" = Cache;
    Threads: "all" = All, "one" = One;
    Isolated: "exclude" = Exclude, "include" = Include, "only" = Only;
    Memory: "none" = None, "local" = Local;
}

fn not_among(word: &str, words: &[&str]) -> String {
    let mut message = format!("`{word}` is none of ");
    for (at, word) in words.iter().enumerate() {
        message.push_str(if at == 0 { "" } else { ", " });
        message.push_str(word);
    }
    message
}

impl Isolated {
    fn word(self) -> &'static str {
        match self {
            Self::Exclude => "exclude",
            Self::Include => "include",
            Self::Only => "only",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    #[derive(Debug, Default, PartialEq, Deserialize)]
    #[serde(deny_unknown_fields, default)]
    struct Options {
        own: bool,
        #[serde(flatten)]
        wishes: Wishes,
    }

    const SCHEMA: &str = concat!("{", wish_properties!(), "}");

    #[test]
    fn the_schema_names_every_wish_and_value_and_the_default() {
        let properties: serde_json::Map<String, Value> = serde_json::from_str(SCHEMA).unwrap();
        assert_eq!(properties.len(), 6);
        let mut meanings = Vec::new();
        for (name, property) in &properties {
            assert!(property["description"].as_str().is_some_and(|text| text.len() > 40), "{name}");
            let default = json!({name: property["default"]});
            assert_eq!(serde_json::from_value::<Options>(default).unwrap(), Options::default(), "{name}");
            let values = property["enum"].as_array().cloned();
            for value in values.unwrap_or_else(|| vec![json!(true), json!("lp-e-core")]) {
                meanings.extend(serde_json::from_value::<Options>(json!({name: value})));
            }
        }
        // Three times three values, threads twice, two of mixed and kind (of which one each is no value).
        assert_eq!(meanings.len(), 3 + 2 + 3 + 2 + 2);
    }

    #[test]
    fn unknown_words_are_refused_beside_flattened_ones() {
        let parse = |options: Value| serde_json::from_value::<Options>(options);
        let both = parse(json!({"own": true, "kind": "e-core"})).unwrap();
        assert_eq!(
            (both.own, both.wishes.kind, both.wishes.mixed),
            (true, Kind::Named("e-core".to_owned()), false)
        );
        for wrong in [json!({"isolat": "core"}), json!({"isolate": "socket"}), json!({"mixed": "yes"})] {
            assert!(parse(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
