use crate::assemble::{Draft, DraftCpu};
use crate::facts::{Cache, Topology};
use crate::machine::{MachineError, read_bytes, unzipped};
use crate::printable::printable;
use dracpu_cpuset::{CpuSet, MAX_CPU_ID};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// A machine as one line of a table of machines: rows of `[cpu, core, socket, numa, l3]`, -1 for "none".
/// A core is the CPUs of the same core and socket, a cache those of the same `l3` and socket.
#[derive(Debug, Deserialize)]
pub(crate) struct Line {
    id: String,
    cpus: Vec<(u32, i64, i64, i64, i64)>,
}

/// Reads a file with one machine a line (JSON Lines, also compressed with gzip) into machines by id.
///
/// # Errors
/// [`MachineError`] for a file that cannot be read, or the first line that is no machine.
pub fn read_jsonl(path: &Path) -> Result<BTreeMap<String, Topology>, MachineError> {
    let name = path.display().to_string();
    let bytes = unzipped(&name, read_bytes(&name, path)?)?;
    let text = String::from_utf8_lossy(&bytes);
    let mut machines = BTreeMap::new();
    for (line, number) in text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty()) {
        let failed = |fault: String| MachineError::Described {
            what: format!("{name} line {number}"),
            fault: printable(&fault),
        };
        let line: Line = serde_json::from_str(line).map_err(|error| failed(error.to_string()))?;
        let id = line.id.clone();
        let topology = line.build().map_err(failed)?;
        if machines.insert(id.clone(), topology).is_some() {
            return Err(failed(format!("machine `{id}` is there twice")));
        }
    }
    Ok(machines)
}

impl Line {
    /// # Errors
    /// Text that says what is wrong with the rows.
    pub(crate) fn build(self) -> Result<Topology, String> {
        let mut online = CpuSet::new();
        let mut caches: BTreeMap<(i64, i64), CpuSet> = BTreeMap::new();
        for (cpu, _, socket, _, l3) in &self.cpus {
            if *cpu > MAX_CPU_ID || !online.insert(*cpu) {
                return Err(format!("cpu {cpu} is above {MAX_CPU_ID} or there twice"));
            }
            caches.entry((*socket, *l3)).or_default().insert(*cpu);
        }
        let mut draft = Draft::default();
        for (id, core, socket, numa, l3) in self.cpus {
            let shared = caches.get(&(socket, l3)).filter(|_| l3 >= 0);
            draft.cpus.push(DraftCpu {
                id,
                socket: Some(socket),
                core_id: u32::try_from(core).ok(),
                numa_node: u32::try_from(numa).ok(),
                llc: shared.map(|cpus| Cache {
                    level: 3,
                    id: u32::try_from(l3).ok(),
                    size_bytes: 0,
                    cpus: cpus.clone(),
                }),
                ..DraftCpu::default()
            });
        }
        draft.cpus.sort_by_key(|cpu| cpu.id);
        draft.assemble("the line").map_err(|_| "cpus is empty".to_owned())
    }
}
