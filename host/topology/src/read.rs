use crate::assemble::{Draft, DraftCpu};
use crate::error::ReadError;
use crate::facts::Topology;
use crate::overlay::Overlay;
use crate::tree::Tree;
use crate::warnings::Warnings;
use crate::{cache, kind, numa, pcie};
use dracpu_cpuset::CpuSet;
use std::path::Path;

/// Where the kernel describes CPUs (Linux `Documentation/admin-guide/cputopology.rst` and
/// `Documentation/ABI/stable/sysfs-devices-system-cpu`).
pub(crate) const CPU: &str = "devices/system/cpu";

/// `cluster_id` of a machine that has no clusters: 16 bits of ones, from firmware tables.
const NO_CLUSTER: i64 = 65535;

/// Reads the machine below a sysfs root (the directory that holds `devices/system/cpu`), with the overlay
/// over it.
///
/// A missing file is no error: the next best fact counts, and a [`Warning`](crate::Warning) says so.
///
/// | missing | instead |
/// |---|---|
/// | `cpu/online` | the `cpuN` directories whose own `online` does not say 0, else `cpu/present` |
/// | `cpu/present` | the `cpuN` directories; `cpu/possible` and `cpu/offline` do not count, they name CPUs that are not there |
/// | `cpu/isolated`, `cpu/nohz_full` | no CPU |
/// | `thread_siblings_list` | `core_cpus_list`, the bit maps, else CPUs of the same package, die, cluster and core id, else the CPU alone |
/// | `physical_package_id` | -1: one socket |
/// | `die_id`, `cluster_id` | no die of its own, no cluster |
/// | `cache/index*/shared_cpu_list` | `shared_cpu_map`, else that cache is not there |
/// | `node/nodeN/cpulist` | `cpumap`, else the links between nodes and CPUs |
/// | `devices/cpu_core`, `cpu_atom`, `cpu_lowpower` | kind `standard` |
/// | `pci_bus/*/cpulistaffinity` | `cpuaffinity`, else that root is not there |
///
/// # Errors
/// [`ReadError`] for a file that cannot be read or holds nonsense (the error names it), and for a tree
/// without CPUs.
pub fn read(root: &Path, overlay: &Overlay) -> Result<Topology, ReadError> {
    read_tree(&Tree::of_directory(root, overlay))
}

/// The online CPUs below a sysfs root, with the overlay over it: what [`read`] would find, at the price of a file.
///
/// # Errors
/// As [`read`].
pub fn online(root: &Path, overlay: &Overlay) -> Result<CpuSet, ReadError> {
    online_of(&Tree::of_directory(root, overlay), &mut Warnings::default())
}

pub(crate) fn read_tree(tree: &Tree<'_>) -> Result<Topology, ReadError> {
    let mut draft = Draft::default();
    let online = online_of(tree, &mut draft.warnings)?;
    for id in &online {
        draft.cpus.push(cpu(tree, id, &online, &mut draft.warnings)?);
    }
    numa::read(tree, &online, &mut draft)?;
    kind::read(tree, &online, &mut draft)?;
    draft.pcie_roots = pcie::read(tree)?;
    draft.offline = offline(tree, &online, &mut draft.warnings)?;
    draft.isolated = tree.cpu_list(&format!("{CPU}/isolated"))?.unwrap_or_default();
    draft.nohz_full = tree.cpu_list(&format!("{CPU}/nohz_full"))?.unwrap_or_default();
    draft.assemble(&tree.display(""))
}

fn online_of(tree: &Tree<'_>, warnings: &mut Warnings) -> Result<CpuSet, ReadError> {
    if let Some(online) = tree.cpu_list(&format!("{CPU}/online"))?.filter(|online| !online.is_empty()) {
        for id in &online {
            if tree.hint(&format!("{CPU}/cpu{id}/online")) == Some(0) {
                warnings.note("online-disagrees", id);
            }
        }
        return Ok(online);
    }
    let mut online = CpuSet::new();
    let directories = tree.cpu_entries(CPU)?;
    for id in &directories {
        if tree.number(&format!("{CPU}/cpu{id}/online"))? != Some(0) {
            online.insert(id);
        }
    }
    if directories.is_empty() {
        online = tree.cpu_list(&format!("{CPU}/present"))?.unwrap_or_default();
    }
    warnings.note_all("no-online-file", &online);
    Ok(online)
}

/// Present CPUs that are not online. `cpu/offline` alone does not do: it also names CPUs that are only
/// possible.
fn offline(tree: &Tree<'_>, online: &CpuSet, warnings: &mut Warnings) -> Result<CpuSet, ReadError> {
    let present = match tree.cpu_list(&format!("{CPU}/present"))?.filter(|present| !present.is_empty()) {
        Some(present) => present,
        None => return Ok(tree.cpu_entries(CPU)?.difference(online)),
    };
    warnings.note_all("not-present", &online.difference(&present));
    Ok(present.difference(online))
}

fn cpu(tree: &Tree<'_>, id: u32, online: &CpuSet, warnings: &mut Warnings) -> Result<DraftCpu, ReadError> {
    let topology = format!("{CPU}/cpu{id}/topology");
    let number = |name: &str| tree.number(&format!("{topology}/{name}"));
    let some_id = |name: &str| Ok::<_, ReadError>(number(name)?.filter(|id| *id >= 0));

    let socket = number("physical_package_id")?;
    let core = number("core_id")?.filter(|id| *id != -1);
    let core_id = core.and_then(|id| u32::try_from(id).ok());
    if core.is_some() && core_id.is_none() {
        warnings.note("core-id-out-of-range", id);
    }
    let siblings = tree
        .first_cpu_set(
            &topology,
            &["thread_siblings_list", "core_cpus_list"],
            &["thread_siblings", "core_cpus"],
        )?
        .map(|siblings| siblings.intersection(online))
        .filter(|siblings| !siblings.is_empty());
    if socket.is_none() && core.is_none() && siblings.is_none() {
        warnings.note("no-topology", id);
    } else {
        if siblings.is_none() {
            warnings.note("no-siblings", id);
        }
        if socket.is_none_or(|socket| socket == -1) {
            warnings.note("no-package-id", id);
        }
    }
    let llc = cache::last_level(tree, id, online)?;
    if llc.is_none() {
        warnings.note("no-cache", id);
    }
    Ok(DraftCpu {
        id,
        socket,
        die: some_id("die_id")?,
        cluster: some_id("cluster_id")?.filter(|id| *id != NO_CLUSTER),
        core_id,
        siblings,
        numa_node: None,
        llc,
        kind: Default::default(),
    })
}
