use crate::error::ReadError;
use crate::facts::Topology;
use crate::overlay::Overlay;
use crate::printable::printable;
use crate::read::{read, read_tree};
use crate::tree::Tree;
use crate::{archive, described, drawn, examples, gatherinfo, machines, shape};
use dracpu_cpuset::CpuSet;
use std::io::{self, Read};
use std::path::Path;

/// The most that is read of one file that describes a machine.
const MAX_BYTES: u64 = 1 << 28;

/// A machine to answer questions about: this host, or one that a file describes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Where it comes from, as the user named it.
    pub name: String,
    /// Its facts.
    pub topology: Topology,
    /// CPUs that the description itself reserves; the configuration may reserve others.
    pub reserved: CpuSet,
}

/// Why a machine cannot be loaded.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MachineError {
    /// The file is there, but cannot be read.
    #[error("cannot read machine {what}")]
    Io {
        /// What the user named.
        what: String,
        /// What the operating system says.
        #[source]
        source: io::Error,
    },
    /// Its sysfs cannot be read.
    #[error("cannot read the topology of machine {what}")]
    Sysfs {
        /// What the user named.
        what: String,
        /// Which file, and why.
        #[source]
        source: ReadError,
    },
    /// The file does not describe a machine.
    #[error("{what} does not describe a machine: {fault}")]
    Described {
        /// What the user named.
        what: String,
        /// What is wrong with it.
        fault: String,
    },
    /// There is no such file and no such example.
    #[error(
        "there is no machine `{what}`: give a directory or .tar.gz of a sysfs tree, a file written by `topology -o \
         json` or `gatherinfo`, one of the examples {}, or `random-N` for a machine drawn from the number N",
        examples::names()
    )]
    NoSuchMachine {
        /// What the user named.
        what: String,
    },
    /// An overlay was configured for a machine that has no sysfs.
    #[error("machine {what} is a description without sysfs files, so a sysfs overlay has no meaning for it")]
    OverlayWithoutSysfs {
        /// What the user named.
        what: String,
    },
}

/// Loads the machine that the text names, told apart by content: a directory (a sysfs root, or with `sys`
/// in it), a `.tar.gz` of one, JSON of `topology -o json`, the YAML of `gatherinfo`, a shape in a few lines
/// (`tests/machines`), or the name of an [example](crate::examples) or of a machine that is drawn from a number
/// ([`random_name`](crate::random_name)).
///
/// # Errors
/// [`MachineError`] for what is none of these, or is one with mistakes.
pub fn load(what: &str) -> Result<Machine, MachineError> {
    load_with(what, &Overlay::default())
}

/// [`load`] with an overlay over the machine's sysfs.
///
/// # Errors
/// As [`load`]; also when the machine is a description and the overlay is not empty.
pub fn load_with(what: &str, overlay: &Overlay) -> Result<Machine, MachineError> {
    let path = Path::new(what);
    let machine = |topology, reserved| Machine { name: what.to_owned(), topology, reserved };
    let described =
        |fault: String| MachineError::Described { what: what.to_owned(), fault: printable(&fault) };
    let sysfs = |source| MachineError::Sysfs { what: what.to_owned(), source };

    if path.is_dir() {
        let below = [path.to_owned(), path.join("sys")];
        let root = below.iter().find(|root| root.join("devices/system/cpu").is_dir()).ok_or_else(|| {
            described("the directory holds no devices/system/cpu, and no sys with it".to_owned())
        })?;
        return Ok(machine(read(root, overlay).map_err(sysfs)?, CpuSet::new()));
    }
    if let Some(example) = example(what).filter(|_| !path.exists()) {
        if !overlay.is_empty() {
            return Err(MachineError::OverlayWithoutSysfs { what: what.to_owned() });
        }
        return Ok(example);
    }
    let bytes = read_bytes(what, path)?;
    if is_gzip(&bytes) {
        let files = archive::unpack(&bytes).map_err(described)?;
        let topology = read_tree(&Tree::of_memory(files, overlay)).map_err(sysfs)?;
        return Ok(machine(topology, CpuSet::new()));
    }
    if !overlay.is_empty() {
        return Err(MachineError::OverlayWithoutSysfs { what: what.to_owned() });
    }
    let text = String::from_utf8(bytes).map_err(|_| described("neither text nor a .tar.gz".to_owned()))?;
    let (topology, reserved) = if shape::is_shape(&text) {
        (shape::expand(&text).map_err(described)?, CpuSet::new())
    } else if !text.trim_start().starts_with('{') {
        let as_yaml = |fault| described(format!("it is no JSON, and as YAML of gatherinfo: {fault}"));
        (gatherinfo::from_yaml(&text).map_err(as_yaml)?, CpuSet::new())
    } else if let Ok(line) = serde_json::from_str::<machines::Line>(&text) {
        (line.build().map_err(described)?, CpuSet::new())
    } else {
        described::from_json(&text).map_err(described)?
    };
    Ok(machine(topology, reserved))
}

/// The machine of this name that ships with the program: an [example](crate::examples), or one that is drawn
/// from a number ([`random_name`](crate::random_name)).
#[must_use]
pub fn example(name: &str) -> Option<Machine> {
    let shaped = || Some((shape::expand(examples::find(name)?).ok()?, CpuSet::new()));
    let (topology, reserved) = shaped().or_else(|| drawn::find(name))?;
    Some(Machine { name: name.to_owned(), topology, reserved })
}

/// The machine below a sysfs root, such as this host below `/sys`.
///
/// # Errors
/// [`MachineError::Sysfs`] as [`read`].
pub fn host(root: &Path, overlay: &Overlay) -> Result<Machine, MachineError> {
    let name = root.display().to_string();
    match read(root, overlay) {
        Ok(topology) => Ok(Machine { name, topology, reserved: CpuSet::new() }),
        Err(source) => Err(MachineError::Sysfs { what: name, source }),
    }
}

pub(crate) fn read_bytes(what: &str, path: &Path) -> Result<Vec<u8>, MachineError> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => MachineError::NoSuchMachine { what: what.to_owned() },
        _ => MachineError::Io { what: what.to_owned(), source },
    };
    std::fs::File::open(path).and_then(read_limited).map_err(failed)
}

/// The bytes, unpacked where they are gzip's.
pub(crate) fn unzipped(what: &str, bytes: Vec<u8>) -> Result<Vec<u8>, MachineError> {
    if !is_gzip(&bytes) {
        return Ok(bytes);
    }
    read_limited(flate2::read::MultiGzDecoder::new(bytes.as_slice()))
        .map_err(|source| MachineError::Io { what: what.to_owned(), source })
}

fn read_limited(reader: impl Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = reader.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if u64::try_from(read).is_ok_and(|read| read <= MAX_BYTES) {
        return Ok(bytes);
    }
    Err(io::Error::other(format!("larger than the {MAX_BYTES} bytes that a machine may have")))
}

fn is_gzip(bytes: &[u8]) -> bool {
    bytes.starts_with(&[0x1f, 0x8b])
}
