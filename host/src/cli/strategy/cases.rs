//! Questions to try a strategy with: machines, each in every grouping, and on each many states and claims.
//! Drawn from a seed, so that the same seed asks the same.

use super::question::{Held, Question, Wanted};
use crate::config::{DeviceMode, GroupBy};
use crate::device::{self, Group};
use crate::strategy::{Description, ExplicitCpuset, Loaded};
use dracpu_codec::strategy::subschemas::{Property, properties, subschemas};
use dracpu_cpuset::{CpuSet, Draw};
use dracpu_topology::machine::{self, Machine};
use dracpu_topology::{examples, random_name};
use serde_json::{Map, Value, json};

/// What a strategy is opened with, but for the node's options: a machine in one of its groupings.
pub(super) struct Setting {
    pub(super) machine: Machine,
    pub(super) by: GroupBy,
    pub(super) groups: Vec<Group>,
}

/// The groupings of a machine that have devices.
pub(super) fn settings(machine: &Machine) -> impl Iterator<Item = Setting> {
    GroupBy::ALL
        .into_iter()
        .map(|by| Setting {
            machine: machine.clone(),
            by,
            groups: device::groups(&machine.topology, DeviceMode::Grouped(by), &machine.reserved),
        })
        .filter(|setting| !setting.groups.is_empty())
}

/// The machines that ship with the program.
pub(super) fn shipped() -> impl Iterator<Item = Machine> {
    examples().iter().filter_map(|example| machine::example(example.name))
}

/// An option and the values of it that are tried.
#[derive(Debug, PartialEq)]
struct Tried {
    key: String,
    values: Vec<Value>,
    /// Whether the schema demands it.
    required: bool,
}

/// What questions are drawn from.
pub(super) struct Cases<'a> {
    description: &'a Description,
    options: Vec<Tried>,
    draw: Draw,
    /// How many questions were drawn: sizes go on from one setting to the next.
    drawn: usize,
}

/// So many sizes are asked in turn, beside those that are drawn.
const SIZES_IN_TURN: usize = 32;

impl<'a> Cases<'a> {
    pub(super) fn new(loaded: &'a Loaded, seed: u64) -> Self {
        let description = loaded.description();
        let mut options = option_values(&description.options_schema);
        for tried in &mut options {
            tried.values.retain(|value| !loaded.is_misfit(&tried.key, value));
        }
        options.retain(|tried| !tried.values.is_empty());
        Self { description, options, draw: Draw::of(seed), drawn: 0 }
    }

    /// The source of all this.
    pub(super) fn draw(&mut self) -> &mut Draw {
        &mut self.draw
    }

    /// A machine that is like no other.
    pub(super) fn machine(&mut self) -> Option<Machine> {
        machine::example(&random_name(self.draw.below(u32::MAX)))
    }

    /// Options: half of the time none but those that must be, else one more, sometimes several.
    pub(super) fn options(&mut self) -> Map<String, Value> {
        let (none, several) = (self.draw.one_in(2), self.draw.one_in(3));
        let only = index(&mut self.draw, self.options.len());
        let mut options = Map::new();
        for (at, tried) in self.options.iter().enumerate() {
            if tried.required || !none && (at == only || several && self.draw.one_in(2)) {
                let value = self.draw.pick(&tried.values).cloned();
                options.extend(value.map(|value| (tried.key.clone(), value)));
            }
        }
        options
    }

    /// Questions about one setting.
    pub(super) fn questions(&mut self, setting: &Setting, count: usize) -> Vec<Question> {
        (0..count).map(|_| self.question(setting)).collect()
    }

    fn question(&mut self, setting: &Setting) -> Question {
        let nth = self.drawn;
        self.drawn += 1;
        let machine = &setting.machine;
        let usable = machine.topology.online().difference(&machine.reserved);
        let free = self.free(machine, &usable);
        let others = match self.description.needs.is_empty() {
            true => Vec::new(),
            false => self.others(&usable.difference(&free)),
        };
        let number = if self.draw.one_in(3) { 2 + self.draw.below(3) } else { 1 };
        let requests =
            (0..number).map(|request| self.request(setting, &free, nth, request, number)).collect();
        Question {
            topology: Some(machine.name.clone()),
            group_by: Some(setting.by.name().to_owned()),
            available: free.to_string(),
            options: self.options(),
            requests,
            others,
            ..Question::default()
        }
    }

    /// Free CPUs: all, or without single ones, whole cores, whole caches, or most of them.
    fn free(&mut self, machine: &Machine, usable: &CpuSet) -> CpuSet {
        let caches: Vec<CpuSet> = machine.topology.caches.iter().map(|cache| cache.cpus.clone()).collect();
        let held = match self.draw.below(8) {
            0..=2 => CpuSet::new(),
            3 => self.draw.some(usable, 8),
            4 => self.draw.some(usable, 2),
            5 => self.some_of(&machine.topology.cores),
            6 => self.some_of(&caches),
            _ => usable.difference(&self.draw.some(usable, 4)),
        };
        usable.difference(&held)
    }

    fn some_of(&mut self, sets: &[CpuSet]) -> CpuSet {
        let mut all = CpuSet::new();
        for set in sets.iter().filter(|_| self.draw.one_in(2)) {
            all.extend_from(set);
        }
        all
    }

    /// Held CPUs as the claims of others.
    fn others(&mut self, held: &CpuSet) -> Vec<Held> {
        let mut others = vec![(CpuSet::new(), CpuSet::new()); 3];
        for cpu in held {
            let at = index(&mut self.draw, others.len());
            if let Some((cpus, blocked)) = others.get_mut(at) {
                let set = if self.draw.one_in(6) { blocked } else { cpus };
                set.insert(cpu);
            }
        }
        others.retain(|(cpus, _)| !cpus.is_empty());
        others.sort_by_key(|(cpus, _)| cpus.first());
        let held =
            |(cpus, blocked): (CpuSet, CpuSet)| Held { cpus: cpus.to_string(), blocked: blocked.to_string() };
        others.into_iter().map(held).collect()
    }

    /// One of so many requests of a claim. Sizes that fit, those up to [`SIZES_IN_TURN`] in turn, sometimes
    /// one more than there is.
    fn request(
        &mut self,
        setting: &Setting,
        free: &CpuSet,
        nth: usize,
        position: u32,
        requests: u32,
    ) -> Wanted {
        let group = self.draw.pick(&setting.groups);
        let (device, cpus) =
            group.map(|group| (group.device.clone(), group.cpus.clone())).unwrap_or_default();
        let size = cpus.len().max(1);
        let count = match (nth % 2, self.draw.below(10)) {
            (0, _) if position == 0 => nth / 2 % size.min(SIZES_IN_TURN),
            (_, 0) => size,
            (_, 1..=3) => index(&mut self.draw, size),
            _ => index(&mut self.draw, size.div_ceil(usize::try_from(requests).unwrap_or(1))),
        };
        let count = u32::try_from(count).unwrap_or_default() + 1;
        let candidates = free.intersection(&cpus);
        let named = match self.description.explicit_cpuset {
            ExplicitCpuset::Refused => false,
            ExplicitCpuset::Accepted => self.draw.one_in(2),
            ExplicitCpuset::Required => true,
        };
        let roots = &setting.machine.topology.pcie_roots;
        let pcie_roots = roots.iter().filter(|_| self.draw.one_in(3)).map(|root| root.name.clone()).collect();
        Wanted {
            // Several results may be of one request.
            name: if self.draw.one_in(8) { "r".to_owned() } else { format!("r{position}") },
            count,
            group: Some(device),
            cpuset: named.then(|| {
                self.cpuset(if candidates.is_empty() { &cpus } else { &candidates }, count).to_string()
            }),
            pcie_roots,
            ..Wanted::default()
        }
    }

    /// A claim's own set: so many of the candidates, sometimes any.
    fn cpuset(&mut self, candidates: &CpuSet, count: u32) -> CpuSet {
        if self.draw.one_in(6) {
            return self.draw.some(candidates, 3);
        }
        let mut cpus: Vec<u32> = candidates.iter().collect();
        if self.draw.one_in(2) {
            self.draw.shuffle(&mut cpus);
        }
        cpus.into_iter().take(usize::try_from(count).unwrap_or_default()).collect()
    }
}

/// A position in a list of this length.
fn index(draw: &mut Draw, length: usize) -> usize {
    usize::try_from(draw.below(u32::try_from(length).unwrap_or(u32::MAX))).unwrap_or_default()
}

/// What a schema says that its options may be: see [`Shown::values`].
fn option_values(schema: &Value) -> Vec<Tried> {
    let mut shown = Shown { document: schema, left: MOST_SHOWN };
    let tried = |property: Property<'_>| Tried {
        values: shown.values(&property.schemas, 0),
        key: property.key.to_owned(),
        required: property.required,
    };
    properties(schema, schema).into_iter().map(tried).filter(|tried| !tried.values.is_empty()).collect()
}

/// Objects and lists in each other that are tried.
const DEEPEST: u32 = 3;
/// Values of what is inside another one.
const MOST_INSIDE: usize = 4;
/// Values of one that is shown with more.
const MOST_VALUES: usize = 64;
/// Schemas that are looked at, in each other and of each other, and values that they show.
const MOST_SHOWN: usize = 10_000;

/// Values that a schema shows.
struct Shown<'a> {
    document: &'a Value,
    /// So many schemas and values are still looked at.
    left: usize,
}

impl Shown<'_> {
    /// What schemas say that a value may be: booleans, enumerations, constants, bounds, and values that they show; lists of
    /// one item, and objects. Also behind references, and in branches.
    fn values(&mut self, schemas: &[&Value], depth: u32) -> Vec<Value> {
        let document = self.document;
        let mut values: Vec<Value> = Vec::new();
        if self.left == 0 {
            return values;
        }
        for schema in schemas.iter().flat_map(|schema| subschemas(document, schema)).map(|sub| sub.schema) {
            self.left = self.left.saturating_sub(1);
            let lists = ["enum", "examples"].iter().filter_map(|list| schema.get(list)?.as_array());
            let single = ["const", "default", "minimum", "maximum"].iter().filter_map(|one| schema.get(one));
            values.extend(lists.flatten().chain(single).take(MOST_VALUES).cloned());
            if schema.get("type").is_some_and(|of| of == "boolean") {
                values.extend([json!(true), json!(false)]);
            }
            if let Some(items) = schema.get("items").filter(|_| depth < DEEPEST) {
                let items = self.values(&[items], depth + 1).into_iter().take(MOST_INSIDE);
                values.extend(items.map(|item| json!([item])));
            }
        }
        for schema in schemas.iter().filter(|_| depth < DEEPEST) {
            values.extend(self.objects(schema, depth));
        }
        values.truncate(MOST_VALUES.min(self.left));
        self.left -= values.len();
        values
    }

    /// Objects with each of the keys and those that must be there.
    fn objects(&mut self, schema: &Value, depth: u32) -> Vec<Value> {
        let mut needed = Map::new();
        let mut members = Vec::new();
        for property in properties(self.document, schema).into_iter().take(MOST_VALUES) {
            let mut values = self.values(&property.schemas, depth + 1);
            values.truncate(MOST_INSIDE);
            if let Some(first) = values.first().filter(|_| property.required) {
                needed.insert(property.key.to_owned(), first.clone());
            }
            members.extend(values.into_iter().map(|value| (property.key.to_owned(), value)));
        }
        let object = |member| Value::Object(needed.clone().into_iter().chain([member]).collect());
        members.into_iter().map(object).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::Catalogue;

    #[test]
    fn every_question_that_is_drawn_fits_its_machine() {
        let catalogue = Catalogue::new(&[]).unwrap();
        for strategy in ["packed", "external"] {
            let loaded = catalogue.load(strategy).unwrap();
            let mut cases = Cases::new(&loaded, 3);
            for number in 0..30 {
                let machine = machine::example(&random_name(number)).unwrap();
                for setting in settings(&machine) {
                    for question in cases.questions(&setting, 10) {
                        let line = serde_json::to_string(&question).unwrap();
                        let read: Question = serde_json::from_str(&line).unwrap();
                        assert_eq!(read.asked(&machine).unwrap().groups, setting.groups, "{line}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_same_seed_asks_the_same() {
        let catalogue = Catalogue::new(&[]).unwrap();
        let loaded = catalogue.load("packed").unwrap();
        let asked = |seed| {
            let mut cases = Cases::new(&loaded, seed);
            let machine = cases.machine().unwrap();
            let setting = settings(&machine).next().unwrap();
            format!("{:?}", cases.questions(&setting, 20))
        };
        assert_eq!(asked(1), asked(1));
        assert_ne!(asked(1), asked(2));
    }

    #[test]
    fn options_come_from_the_schema() {
        let schema = json!({ "properties": {
            "whole": { "type": "boolean" },
            "isolated": { "enum": ["include", "only"], "default": "include" },
            "least": { "type": "integer", "minimum": 2 },
            "note": { "type": "string" },
        }, "required": ["least"] });
        let tried = option_values(&schema);
        let tried: Vec<_> = tried.iter().map(|it| (it.key.as_str(), it.values.len(), it.required)).collect();
        assert_eq!(tried, [("whole", 2, false), ("isolated", 3, false), ("least", 1, true)]);
        assert_eq!(option_values(&json!(true)), []);
    }

    #[test]
    fn what_is_shown_of_a_large_schema_is_bounded() {
        let keys =
            |of_key: &Value| (0..3000).map(|n| (format!("k{n}"), of_key.clone())).collect::<Map<_, _>>();
        let shown =
            |schema: Value| -> usize { option_values(&schema).iter().map(|tried| tried.values.len()).sum() };
        let numbers: Vec<usize> = (0..20_000).collect();
        let one = json!({ "$defs": { "n": { "enum": numbers } }, "properties": keys(&json!({ "$ref": "#/$defs/n" })) });
        assert!((1000..=MOST_SHOWN).contains(&shown(one)));
        let names: Vec<String> = (0..3000).map(|n| format!("k{n}")).collect();
        let inside = json!({ "properties": keys(&json!({ "const": 1 })), "required": names });
        let two = json!({ "properties": { "a": inside } });
        assert!((1..=MOST_VALUES).contains(&shown(two)));
    }

    #[test]
    fn options_behind_references_in_branches_and_inside_others_are_tried() {
        let schema = json!({
            "$defs": { "mode": { "enum": ["less", "more"] }, "tree": { "properties": { "next": { "$ref": "#/$defs/tree" } } } },
            "properties": {
                "mode": { "$ref": "#/$defs/mode" },
                "near": {
                    "type": "object",
                    "properties": { "level": { "type": "boolean" }, "name": { "const": "x" } },
                    "required": ["name"],
                },
                "list": { "type": "array", "items": { "enum": [1, 2] } },
                "tree": { "$ref": "#/$defs/tree" },
            },
            "oneOf": [{ "properties": { "mode": { "const": "both" } } }, { "properties": { "other": { "const": 1 } } }],
        });
        let tried: Vec<_> = option_values(&schema).into_iter().map(|it| (it.key, json!(it.values))).collect();
        let of = |key: &str, values: Value| (key.to_owned(), values);
        assert_eq!(
            tried,
            [
                of("mode", json!(["less", "more", "both"])),
                of(
                    "near",
                    json!([{ "name": "x", "level": true }, { "name": "x", "level": false }, { "name": "x" }])
                ),
                of("list", json!([[1], [2]])),
                of("other", json!([1])),
            ]
        );
    }
}
