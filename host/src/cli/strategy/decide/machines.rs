use anyhow::{Context as _, bail};
use dracpu_cpuset::CpuSet;
use dracpu_topology::machine::Machine;
use dracpu_topology::{Overlay, machine, machines};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The machines that questions are about.
pub(super) enum Machines {
    /// One for all questions.
    One(Box<Machine>),
    /// Chosen by name.
    Many(BTreeMap<String, Machine>),
    /// Entries of a directory, read when they are first asked for.
    Directory(PathBuf, BTreeMap<String, Machine>),
}

impl Machines {
    pub(super) fn open(one: Option<&str>, many: Option<&str>) -> anyhow::Result<Self> {
        let Some(many) = many else {
            let machine = match one {
                Some(what) => machine::load(what)?,
                None => machine::host(Path::new("/sys"), &Overlay::default())?,
            };
            return Ok(Self::One(Box::new(machine)));
        };
        let path = Path::new(many);
        if path.is_dir() {
            return Ok(Self::Directory(path.to_owned(), BTreeMap::new()));
        }
        let machines = machines::read_jsonl(path)?
            .into_iter()
            .map(|(name, topology)| (name.clone(), Machine { name, topology, reserved: CpuSet::new() }));
        Ok(Self::Many(machines.collect()))
    }

    /// The machine of a question.
    pub(super) fn of(&mut self, name: Option<&str>) -> anyhow::Result<&Machine> {
        let named = || name.context("`topology` is missing: it names one of the machines of --machines");
        match self {
            // The name is the asker's own; there is only one machine.
            Self::One(machine) => Ok(machine),
            Self::Many(machines) => {
                let name = named()?;
                let known = machines.len();
                machines
                    .get(name)
                    .with_context(|| format!("topology `{name}` is not among the {known} machines"))
            }
            Self::Directory(directory, read) => {
                let name = named()?;
                if !read.contains_key(name) {
                    let machine = machine::load(&entry(directory, name)?)?;
                    read.insert(name.to_owned(), Machine { name: name.to_owned(), ..machine });
                }
                read.get(name).with_context(|| format!("topology `{name}` was not read"))
            }
        }
    }
}

/// The entry of this name, with or without what follows its first dot.
fn entry(directory: &Path, name: &str) -> anyhow::Result<String> {
    let list = || format!("cannot list {}", directory.display());
    for entry in std::fs::read_dir(directory).with_context(list)? {
        let file = entry.with_context(list)?.file_name();
        let Some(file) = file.to_str() else { continue };
        if file == name || file.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')) {
            return Ok(directory.join(file).display().to_string());
        }
    }
    bail!("topology `{name}`: there is no such machine in {}", directory.display())
}
