/// A machine that ships with the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Example {
    /// What `--machine` calls it.
    pub name: &'static str,
    /// What it is like, in one line.
    pub description: &'static str,
    json: &'static str,
}

macro_rules! example {
    ($name:literal, $description:literal) => {
        Example {
            name: $name,
            description: $description,
            json: include_str!(concat!("../../../tests/machines/", $name, ".json")),
        }
    };
}

const EXAMPLES: [Example; 7] = [
    example!("small", "8 CPUs: one socket without SMT"),
    example!("desktop-smt", "16 CPUs: one socket, two-way SMT with siblings next to each other"),
    example!(
        "two-socket",
        "64 CPUs: two sockets take turns in numbering, siblings far apart, four L3 caches each"
    ),
    example!("amd-ccd", "128 CPUs: one socket in four NUMA nodes of two L3 caches each, two-way SMT"),
    example!("hybrid", "32 CPUs: 8 P-cores with two threads beside 16 E-cores"),
    example!("smt4", "64 CPUs: two sockets of 8 cores with four threads, NUMA nodes 0 and 8"),
    example!("holes", "21 CPUs: some offline or isolated, unequal caches, a NUMA node of memory only"),
];

/// The machines that ship with the program.
#[must_use]
pub fn examples() -> &'static [Example] {
    &EXAMPLES
}

pub(crate) fn find(name: &str) -> Option<&'static str> {
    EXAMPLES.iter().find(|example| example.name == name).map(|example| example.json)
}

pub(crate) fn names() -> String {
    EXAMPLES.map(|example| example.name).join(", ")
}
