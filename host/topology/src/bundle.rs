use crate::error::ReadError;
use crate::facts::Topology;
use crate::overlay::Overlay;
use crate::read::read_tree;
use crate::tree::Tree;
use flate2::{Compression, write::GzEncoder};
use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use tar::{Builder, EntryType, Header};

/// A machine together with the sysfs files that it was read from, to be taken elsewhere.
#[derive(Debug)]
pub struct Bundle {
    /// What the files say.
    pub topology: Topology,
    /// Files below `/sys` with their content, the overlay's in place of sysfs's own, and directories.
    files: BTreeMap<String, Option<String>>,
}

impl Bundle {
    /// Reads the machine below a sysfs root as [`read`](crate::read()) does, and keeps what was read.
    ///
    /// # Errors
    /// As [`read`](crate::read()).
    pub fn read(root: &Path, overlay: &Overlay) -> Result<Self, ReadError> {
        let tree = Tree::recording(root, overlay);
        let topology = read_tree(&tree)?;
        Ok(Self { topology, files: tree.into_seen() })
    }

    /// The files as a `.tar.gz` that [`load`](crate::machine::load) reads as the same machine, below `sys`, with
    /// others beside it. The same files give the same bytes.
    ///
    /// # Errors
    /// What the writer of archives says.
    pub fn pack(&self, beside: &[(&str, &str)]) -> io::Result<Vec<u8>> {
        let mut archive = Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
        for (path, content) in beside {
            append(&mut archive, path, Some(content))?;
        }
        for (path, content) in &self.files {
            append(&mut archive, &format!("sys/{path}"), content.as_deref())?;
        }
        archive.into_inner()?.finish()
    }
}

/// Adds a file, or a directory where there is no content.
fn append(archive: &mut Builder<impl io::Write>, path: &str, content: Option<&str>) -> io::Result<()> {
    let text = content.map(|content| format!("{}\n", content.trim_end_matches('\n'))).unwrap_or_default();
    let mut header = Header::new_gnu();
    header.set_entry_type(if content.is_some() { EntryType::Regular } else { EntryType::Directory });
    header.set_mode(if content.is_some() { 0o644 } else { 0o755 });
    header.set_size(u64::try_from(text.len()).unwrap_or(u64::MAX));
    archive.append_data(&mut header, path, text.as_bytes())
}
