//! Configurations of the driver that stories use.

use crate::truth::Truth;
use dracpu_cpuset::CpuSet;
use serde_json::{Map, Value, json};

/// How many there are.
pub const CONFIGURATIONS: u8 = 20;

/// One of the configurations, each valid on every machine.
#[must_use]
pub fn config(truth: &Truth, which: u8) -> Map<String, Value> {
    let cpus = |count| truth.machine.cpus.iter().take(count).collect::<CpuSet>().to_string();
    let (mut reserved, mut group_by, mut allocator, mut options) = (0, "numanode", "cpumanager", json!({}));
    let (mut mode, mut floor) = ("grouped", None);
    match which % CONFIGURATIONS {
        0 | 1 => {}
        2 => reserved = 1,
        3 => reserved = 2,
        4 => group_by = "socket",
        5 => allocator = "llc-first",
        6 => options = json!({"isolate": "core"}),
        7 => options = json!({"threads": "one"}),
        8 => options = json!({"mixed": true}),
        9 => options = json!({"full-pcpus-only": true}),
        10 => floor = Some(3),
        11 => (group_by, allocator) = ("machine", "llc-first"),
        12 => allocator = "external",
        13 => options = json!({"distribute-cpus-across-numa": true}),
        14 => options = json!({"isolated": "include"}),
        15 => (reserved, group_by, floor) = (1, "socket", Some(1)),
        16 => group_by = "llc",
        17 => (reserved, group_by, allocator) = (2, "llc", "llc-first"),
        18 => mode = "individual",
        _ => (mode, reserved, floor) = ("individual", 1, Some(2)),
    }
    let config = json!({
        "cpuDeviceMode": mode, "groupBy": group_by, "reservedCPUs": cpus(reserved), "allocator": allocator,
        "strategyOptions": options,
    });
    let mut config = config.as_object().unwrap().clone();
    config.extend(floor.map(|floor| ("minSharedCPUs".to_owned(), json!(floor))));
    config
}

/// What a configuration says of strategies: all that can change without a restart.
pub(crate) fn of_strategies(mut config: Map<String, Value>) -> Map<String, Value> {
    config.retain(|key, _| ["allocator", "strategyOptions"].contains(&key.as_str()));
    config
}
