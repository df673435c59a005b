use super::Failure;
use crate::cli::machine::load_reserved;
use crate::config::Config;
use crate::words::quoted;
use anyhow::{Context as _, bail};
use dracpu_cpuset::CpuSet;
use dracpu_topology::machine::Machine;
use dracpu_topology::{machine, machines};
use std::borrow::Cow;
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
    /// This host; by name those that ship with the program, made when they are first asked for.
    HostOrExample(Box<Machine>, BTreeMap<String, Machine>),
}

impl Machines {
    /// The machines that were named, or this host. What the configuration says of a machine is of the one, or of this
    /// host.
    ///
    /// # Errors
    /// Bad usage when they are none; a failure when this host cannot be read.
    pub(super) fn open(one: Option<&str>, many: Option<&str>, config: &Config) -> Result<Self, Failure> {
        if let Some(many) = many {
            return Self::of_many(many).map_err(Failure::Usage);
        }
        let machine = Box::new(load_reserved(one, config)?);
        Ok(match one {
            Some(_) => Self::One(machine),
            None => Self::HostOrExample(machine, BTreeMap::new()),
        })
    }

    pub(super) fn of_many(many: &str) -> anyhow::Result<Self> {
        let path = Path::new(many);
        if path.is_dir() {
            return Ok(Self::Directory(path.to_owned(), BTreeMap::new()));
        }
        let machines = machines::read_jsonl(path)?
            .into_iter()
            .map(|(name, topology)| (name.clone(), Machine { name, topology, reserved: CpuSet::new() }));
        Ok(Self::Many(machines.collect()))
    }

    /// Some of the machines: those that there are, or that the first entries of the directory are.
    pub(super) fn some(&self, most: usize) -> Vec<Cow<'_, Machine>> {
        match self {
            Self::One(machine) | Self::HostOrExample(machine, _) => vec![Cow::Borrowed(&**machine)],
            Self::Many(machines) => machines.values().take(most).map(Cow::Borrowed).collect(),
            Self::Directory(directory, _) => {
                // What is none is said when it is asked for.
                let machines =
                    paths(directory).into_iter().filter_map(|path| machine::load(path.to_str()?).ok());
                machines.take(most).map(Cow::Owned).collect()
            }
        }
    }

    /// Every machine, by the name that a question chooses it by.
    ///
    /// # Errors
    /// When an entry of the directory is none.
    pub(super) fn all(self) -> anyhow::Result<Vec<Machine>> {
        match self {
            Self::One(machine) | Self::HostOrExample(machine, _) => Ok(vec![*machine]),
            Self::Many(machines) => Ok(machines.into_values().collect()),
            Self::Directory(directory, _) => {
                let load = |path: &PathBuf| {
                    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default().to_owned();
                    Ok(Machine { name, ..machine::load(&path.display().to_string())? })
                };
                paths(&directory).iter().map(load).collect()
            }
        }
    }

    /// The machine of a question.
    pub(super) fn of(&mut self, name: Option<&str>) -> anyhow::Result<&Machine> {
        let named = || name.context("`topology` is missing: it names one of the machines of --machines");
        match self {
            Self::One(machine) => match name {
                Some(name) if name != machine.name => bail!(
                    "topology `{}`: there is only the machine {}; leave `topology` out, or give the machines with \
                     --machines",
                    quoted(name),
                    machine.name
                ),
                _ => Ok(machine),
            },
            Self::HostOrExample(host, read) => match name {
                Some(name) if name != host.name => {
                    if !read.contains_key(name) {
                        let machine = machine::example(name).with_context(|| {
                            format!(
                                "topology `{}` is no example of `dracpu topology --list`; give other machines with \
                                 --machine or --machines",
                                quoted(name)
                            )
                        })?;
                        read.insert(name.to_owned(), machine);
                    }
                    read.get(name).with_context(|| format!("topology `{name}` was not made"))
                }
                _ => Ok(host),
            },
            Self::Many(machines) => {
                let name = named()?;
                let known = machines.len();
                machines
                    .get(name)
                    .with_context(|| format!("topology `{}` is not among the {known} machines", quoted(name)))
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

/// The entries of a directory, by name.
fn paths(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
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
    bail!("topology `{}`: there is no such machine in {}", quoted(name), directory.display())
}
