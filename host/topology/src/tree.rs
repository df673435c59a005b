use crate::error::ReadError;
use crate::overlay::Overlay;
use crate::printable::printable;
use crate::regular::read_regular;
use dracpu_cpuset::{CpuSet, MAX_CPU_ID};
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// How many symbolic links a path may lead through: the kernel's own limit.
const MAX_LINKS: usize = 40;

/// The most that one file may hold; sysfs's own end at a few pages.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 20;

/// Files below `/sys`, wherever they are kept, with an overlay over them. Paths are relative to `/sys`
/// and written with `/`.
#[derive(Debug)]
pub(crate) struct Tree<'a> {
    base: Base,
    overlay: &'a Overlay,
    /// What has been looked at, where that is to be known: files with their content, and directories.
    seen: Option<RefCell<BTreeMap<String, Option<String>>>>,
    /// CPU lists by their text: every CPU of a cache has the same list, which may be long.
    lists: RefCell<BTreeMap<String, CpuSet>>,
}

/// Where the files are.
#[derive(Debug)]
enum Base {
    /// A directory of this machine.
    Dir(PathBuf),
    /// An unpacked archive.
    Memory(MemoryFiles),
}

impl<'a> Tree<'a> {
    /// The tree below a directory, which stands for `/sys`.
    pub(crate) fn of_directory(root: &Path, overlay: &'a Overlay) -> Self {
        Self { base: Base::Dir(root.to_owned()), overlay, seen: None, lists: RefCell::default() }
    }

    /// The tree below a directory, which remembers what is read of it.
    pub(crate) fn recording(root: &Path, overlay: &'a Overlay) -> Self {
        Self { seen: Some(RefCell::default()), ..Self::of_directory(root, overlay) }
    }

    /// The files that have been read, with their content, and the directories (without) that have been counted.
    pub(crate) fn into_seen(self) -> BTreeMap<String, Option<String>> {
        self.seen.map(RefCell::into_inner).unwrap_or_default()
    }

    fn saw(&self, path: &str, content: Option<&String>) {
        if let Some(seen) = &self.seen {
            let mut seen = seen.borrow_mut();
            let known = seen.entry(path.to_owned()).or_default();
            *known = content.cloned().or(known.take());
        }
    }

    /// The tree in files held in memory.
    pub(crate) fn of_memory(files: MemoryFiles, overlay: &'a Overlay) -> Self {
        Self { base: Base::Memory(files), overlay, seen: None, lists: RefCell::default() }
    }

    /// What a person would look up: the path as it is called in messages.
    pub(crate) fn display(&self, path: &str) -> String {
        match &self.base {
            Base::Dir(root) if !self.overlay.contains(path) => root.join(path).display().to_string(),
            Base::Dir(_) => format!("/sys/{path} (overlay)"),
            Base::Memory(_) => format!("/sys/{path}"),
        }
    }

    /// The content of a file without surrounding blanks and NUL bytes; none where there is no such file.
    pub(crate) fn text(&self, path: &str) -> Result<Option<String>, ReadError> {
        let text = match (self.overlay.get(path), &self.base) {
            (Some(text), _) => Some(clean(text)),
            (None, Base::Memory(files)) => files.get(path).map(clean),
            (None, Base::Dir(root)) => match read_regular(&root.join(path), MAX_FILE_BYTES) {
                Ok(bytes) => Some(clean(&String::from_utf8_lossy(&bytes))),
                Err(error) if is_absent(&error) => None,
                Err(source) => return Err(ReadError::Io { path: self.display(path), source }),
            },
        };
        if text.is_some() {
            self.saw(path, text.as_ref());
        }
        Ok(text)
    }

    /// The names in a directory, in no special order; none where there is no such directory.
    pub(crate) fn names(&self, dir: &str) -> Result<BTreeSet<String>, ReadError> {
        let mut names = self.overlay.names(dir);
        match &self.base {
            Base::Memory(files) => names.extend(files.names(dir)),
            Base::Dir(root) => {
                let failed = |source| ReadError::Io { path: self.display(dir), source };
                match std::fs::read_dir(root.join(dir)) {
                    Ok(entries) => {
                        for entry in entries {
                            names.extend(entry.map_err(failed)?.file_name().into_string());
                        }
                    }
                    Err(error) if is_absent(&error) => {}
                    Err(source) => return Err(failed(source)),
                }
            }
        }
        Ok(names)
    }

    /// The numbers N of the entries `<prefix>N` of a directory, ascending.
    pub(crate) fn numbered(&self, dir: &str, prefix: &str) -> Result<Vec<u32>, ReadError> {
        let mut numbers: Vec<u32> = self
            .names(dir)?
            .iter()
            .filter_map(|name| name.strip_prefix(prefix))
            .filter(|rest| rest.bytes().all(|byte| byte.is_ascii_digit()))
            .filter_map(|rest| rest.parse().ok())
            .collect();
        numbers.sort_unstable();
        for number in &numbers {
            self.saw(&format!("{dir}/{prefix}{number}"), None);
        }
        Ok(numbers)
    }

    /// The CPUs of the entries `cpuN` of a directory.
    pub(crate) fn cpu_entries(&self, dir: &str) -> Result<CpuSet, ReadError> {
        let mut cpus = CpuSet::new();
        for id in self.numbered(dir, "cpu")? {
            if id > MAX_CPU_ID {
                return Err(self.malformed(dir, &format!("cpu{id}"), "a CPU id above 8191"));
            }
            cpus.insert(id);
        }
        Ok(cpus)
    }

    /// A file with one number; none where there is no such file, or nothing in it.
    pub(crate) fn number(&self, path: &str) -> Result<Option<i64>, ReadError> {
        let Some(text) = self.text(path)?.filter(|text| !text.is_empty()) else { return Ok(None) };
        match text.parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(self.malformed(path, &text, "not a whole number")),
        }
    }

    /// A file with one number, which does not matter enough to fail for: whatever is wrong with it, none.
    pub(crate) fn hint(&self, path: &str) -> Option<u64> {
        self.text(path).ok().flatten()?.parse().ok()
    }

    /// A file with a CPU list; none where there is no such file.
    pub(crate) fn cpu_list(&self, path: &str) -> Result<Option<CpuSet>, ReadError> {
        let Some(text) = self.text(path)? else { return Ok(None) };
        if let Some(cpus) = self.lists.borrow().get(&text) {
            return Ok(Some(cpus.clone()));
        }
        match text.parse::<CpuSet>() {
            Ok(cpus) => {
                self.lists.borrow_mut().insert(text, cpus.clone());
                Ok(Some(cpus))
            }
            Err(error) => Err(self.malformed(path, &text, &error.to_string())),
        }
    }

    /// The CPU set of the first file that exists: lists (`0-3,8`) first, then bit maps (`0000010f`), which
    /// is all that kernels before 2.6.26 have for some.
    pub(crate) fn first_cpu_set(
        &self,
        dir: &str,
        lists: &[&str],
        maps: &[&str],
    ) -> Result<Option<CpuSet>, ReadError> {
        for name in lists {
            if let Some(cpus) = self.cpu_list(&format!("{dir}/{name}"))? {
                return Ok(Some(cpus));
            }
        }
        for name in maps {
            let path = format!("{dir}/{name}");
            if let Some(text) = self.text(&path)? {
                let cpus = cpu_map(&text);
                return cpus.map(Some).ok_or_else(|| self.malformed(&path, &text, "not a CPU bit map"));
            }
        }
        Ok(None)
    }

    pub(crate) fn malformed(&self, path: &str, text: &str, fault: &str) -> ReadError {
        let text = printable(&text.chars().take(80).collect::<String>());
        ReadError::Malformed { path: self.display(path), text, fault: printable(fault) }
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

/// Old kernels pad files with NUL bytes, and print a null pointer for a set that nobody configured.
fn clean(text: &str) -> String {
    let text = text.trim_matches(|c: char| c.is_whitespace() || c == '\0');
    if text == "(null)" { String::new() } else { text.to_owned() }
}

/// The kernel's bit map form: words of eight hexadecimal digits, the highest first (Linux
/// `Documentation/admin-guide/cputopology.rst`).
fn cpu_map(text: &str) -> Option<CpuSet> {
    let mut cpus = CpuSet::new();
    let mut base = 0;
    for word in text.split(',').rev() {
        let mut bits = u32::from_str_radix(word.trim(), 16).ok()?;
        while bits != 0 {
            let cpu = base + bits.trailing_zeros();
            if cpu > MAX_CPU_ID {
                return None;
            }
            cpus.insert(cpu);
            bits &= bits - 1;
        }
        base += u32::BITS;
    }
    Some(cpus)
}

/// Files, links and directories of an archive. Nothing of it is ever written to a disk.
#[derive(Debug, Default)]
pub(crate) struct MemoryFiles {
    root: String,
    entries: BTreeMap<String, Entry>,
}

#[derive(Debug)]
enum Entry {
    File(String),
    Link(String),
    Dir(BTreeSet<String>),
}

impl MemoryFiles {
    /// Adds a file. The path is normalized already: no empty, `.` or `..` part.
    pub(crate) fn insert_file(&mut self, path: &str, text: String) {
        self.insert(path, Entry::File(text));
    }

    /// Adds a directory; one that is there keeps what is in it.
    pub(crate) fn insert_directory(&mut self, path: &str) {
        if !self.entries.contains_key(path) {
            self.insert(path, Entry::Dir(BTreeSet::new()));
        }
    }

    /// The content of a file by its path in the archive, links aside.
    pub(crate) fn file(&self, path: &str) -> Option<String> {
        match self.entries.get(path) {
            Some(Entry::File(text)) => Some(text.clone()),
            _ => None,
        }
    }

    /// Adds a symbolic link with its target as recorded.
    pub(crate) fn insert_link(&mut self, path: &str, target: String) {
        self.insert(path, Entry::Link(target));
    }

    fn insert(&mut self, path: &str, entry: Entry) {
        self.entries.insert(path.to_owned(), entry);
        let mut child = path;
        loop {
            let (dir, name) = child.rsplit_once('/').unwrap_or(("", child));
            let parent = self.entries.entry(dir.to_owned()).or_insert_with(|| Entry::Dir(BTreeSet::new()));
            let Entry::Dir(names) = parent else { return };
            if !names.insert(name.to_owned()) || dir.is_empty() {
                return;
            }
            child = dir;
        }
    }

    /// Makes a directory of the archive the one that stands for `/sys`.
    pub(crate) fn set_root(&mut self, root: String) {
        self.root = root;
    }

    /// Whether there is such a directory, below the top of the archive.
    pub(crate) fn has_dir(&self, path: &str) -> bool {
        matches!(self.entries.get(path), Some(Entry::Dir(_)))
    }

    /// The names at the top of the archive.
    pub(crate) fn top(&self) -> Vec<String> {
        match self.entries.get("") {
            Some(Entry::Dir(names)) => names.iter().cloned().collect(),
            _ => Vec::new(),
        }
    }

    fn get(&self, path: &str) -> Option<&str> {
        match self.resolve(path)? {
            Entry::File(text) => Some(text),
            _ => None,
        }
    }

    fn names(&self, dir: &str) -> Vec<String> {
        match self.resolve(dir) {
            Some(Entry::Dir(names)) => names.iter().cloned().collect(),
            _ => Vec::new(),
        }
    }

    /// The entry at a path below the root, through the links on the way. An absolute link starts at
    /// `/sys`; one that leaves the archive leads nowhere.
    fn resolve(&self, path: &str) -> Option<&Entry> {
        let mut at = self.root.clone();
        let mut rest: Vec<String> = parts(path).rev().collect();
        let mut links = 0;
        while let Some(part) = rest.pop() {
            match part.as_str() {
                "." => continue,
                ".." => {
                    let parent = at.rsplit_once('/').map_or("", |(dir, _)| dir).to_owned();
                    at = parent;
                    continue;
                }
                name => {
                    let next = if at.is_empty() { name.to_owned() } else { format!("{at}/{name}") };
                    match self.entries.get(&next)? {
                        Entry::Link(target) => {
                            links += 1;
                            if links > MAX_LINKS {
                                return None;
                            }
                            let below = target.strip_prefix("/sys/");
                            if below.is_some() {
                                at.clone_from(&self.root);
                            } else if target.starts_with('/') {
                                return None;
                            }
                            rest.extend(parts(below.unwrap_or(target)).rev());
                        }
                        _ => at = next,
                    }
                }
            }
        }
        self.entries.get(&at)
    }
}

fn parts(path: &str) -> impl DoubleEndedIterator<Item = String> + '_ {
    path.split('/').filter(|part| !part.is_empty()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bit_maps_are_read_from_the_highest_word_down() {
        assert_eq!(cpu_map("f"), Some(CpuSet::from([0, 1, 2, 3])));
        assert_eq!(cpu_map("00000001,00000002"), Some(CpuSet::from([1, 32])));
        assert_eq!(cpu_map("0"), Some(CpuSet::new()));
        assert_eq!(cpu_map(""), None);
        assert_eq!(cpu_map("xyz"), None);
        let too_high = format!("1{}", ",00000000".repeat(256));
        assert_eq!(cpu_map(&too_high), None);
    }

    #[test]
    fn links_are_followed_inside_the_archive_only() {
        let mut files = MemoryFiles::default();
        files.insert_file("sys/devices/node/node1/cpulist", "0-3".to_owned());
        files.insert_link("sys/devices/cpu/cpu0/node1", "../../node/node1".to_owned());
        files.insert_link("sys/absolute", "/sys/devices/node".to_owned());
        files.insert_link("sys/outside", "/etc".to_owned());
        files.insert_link("sys/loop", "loop".to_owned());
        files.set_root("sys".to_owned());
        assert_eq!(files.get("devices/cpu/cpu0/node1/cpulist"), Some("0-3"));
        assert_eq!(files.get("absolute/node1/cpulist"), Some("0-3"));
        assert_eq!(files.get("outside/passwd"), None);
        assert_eq!(files.get("loop"), None);
        assert_eq!(files.names("devices/node"), ["node1"]);
        assert!(files.has_dir("sys/devices"));
    }

    #[test]
    fn padding_and_null_pointers_are_no_content() {
        assert_eq!(clean("0-3\n\0\0\0"), "0-3");
        assert_eq!(clean("  (null)\n"), "");
    }
}
