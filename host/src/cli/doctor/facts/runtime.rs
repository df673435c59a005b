//! Where the container runtime looks for CDI specs: of its configuration files, the two settings that matter. Their whole
//! grammar is not read; a setting that does not stand in them has the runtime's default.
//! Source: `docs/cri/config.md` of containerd, crio.conf(5).

use super::MAX_CONFIG_BYTES;
use dracpu_topology::read_regular;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

const CONTAINERD: &str = "containerd/config.toml";
/// A directory stands for the `.conf` files in it.
const CRIO: [&str; 2] = ["crio/crio.conf", "crio/crio.conf.d"];

/// What the configuration files of a runtime say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct RuntimeConfig {
    /// Specs are used, or not at all.
    pub(in super::super) cdi: Option<Said<bool>>,
    /// Directories of specs.
    pub(in super::super) spec_dirs: Option<Said<Vec<PathBuf>>>,
}

/// A setting, and the file that says so.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct Said<T> {
    pub(in super::super) value: T,
    pub(in super::super) file: PathBuf,
}

impl RuntimeConfig {
    /// The last word of all files of a runtime, or of both that are known; none where there is no file, or one that cannot be
    /// told.
    pub(super) fn look(etc: &Path, runtime: Option<&str>) -> Option<Self> {
        let mut texts = if runtime == Some("cri-o") { Vec::new() } else { containerd(etc)? };
        let crio = CRIO.into_iter().filter(|_| runtime != Some("containerd"));
        let crio = crio.flat_map(|name| files(etc.join(name)));
        texts.extend(crio.filter_map(|file| Some((file.clone(), text(&file)?))));
        let mut config = None;
        for (file, text) in texts {
            Self::read(config.get_or_insert_default(), &file, &text);
        }
        config
    }

    fn read(&mut self, file: &Path, text: &str) {
        // A section in a later file takes the place of the whole section (`mergeConfig` of containerd).
        if SECTIONS.into_iter().any(|section| text.contains(section)) {
            *self = Self::default();
        }
        let file = file.to_owned();
        let cdi = value(text, "enable_cdi").and_then(|value| {
            let word = value.split(|c: char| !c.is_ascii_alphabetic()).next()?;
            word.parse().ok()
        });
        if let Some(value) = cdi {
            self.cdi = Some(Said { value, file: file.clone() });
        }
        if let Some(value) = value(text, "cdi_spec_dirs").and_then(strings) {
            self.spec_dirs = Some(Said { value, file });
        }
    }
}

/// Sections of containerd's configuration that have the two settings, of both versions.
const SECTIONS: [&str; 2] = ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"];

/// containerd's file, then what it imports, which counts over it, and so on. None where it is not known what an import
/// means.
fn containerd(etc: &Path) -> Option<Vec<(PathBuf, String)>> {
    let mut found: Vec<(PathBuf, String)> = Vec::new();
    let mut pending = VecDeque::from([etc.join(CONTAINERD)]);
    while let Some(file) = pending.pop_front() {
        if found.iter().any(|(known, _)| *known == file) {
            continue;
        }
        let Some(text) = text(&file) else { continue };
        for import in value(&text, "imports").and_then(strings).unwrap_or_default() {
            pending.extend(imported(etc, &file, &import)?);
        }
        found.push((file, text));
    }
    Some(found)
}

/// Without comments.
fn text(file: &Path) -> Option<String> {
    let bytes = read_regular(file, MAX_CONFIG_BYTES).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().map(uncommented).collect();
    Some(lines.join("\n"))
}

/// A line up to its comment; a `#` in a string begins none.
fn uncommented(line: &str) -> &str {
    let mut string = None;
    for (at, c) in line.char_indices() {
        match (string, c) {
            (None, '#') => return line.get(..at).unwrap_or_default(),
            (None, '"' | '\'') => string = Some(c),
            (Some(quote), c) if c == quote => string = None,
            _ => {}
        }
    }
    line
}

/// What stands behind a key.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.match_indices(key).find_map(|(at, _)| {
        let before = text.get(..at)?.chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '-') {
            return None;
        }
        let behind = text.get(at + key.len()..)?;
        let behind = behind.strip_prefix(['"', '\'']).unwrap_or(behind);
        behind.trim_start().strip_prefix('=').map(str::trim_start)
    })
}

/// The files that an import of containerd means: a path, with one `*` in its last part at most, from the file's directory
/// where it is no absolute one. None for other patterns.
fn imported(etc: &Path, file: &Path, import: &Path) -> Option<Vec<PathBuf>> {
    let path = match (import.strip_prefix("/etc"), file.parent()) {
        (Ok(path), _) => etc.join(path),
        (Err(_), Some(directory)) => directory.join(import),
        (Err(_), None) => import.to_owned(),
    };
    let (directory, name) = (path.parent()?, path.file_name()?.to_str()?);
    let is_pattern = |part: &str| part.contains(['*', '?', '[', '\\']);
    let Some((begin, end)) = name.split_once('*') else {
        return (!is_pattern(import.to_str()?)).then(|| vec![path.clone()]);
    };
    let plain = !is_pattern(begin) && !is_pattern(end) && !is_pattern(import.parent()?.to_str()?);
    plain.then(|| {
        listed(directory, |name| {
            name.len() >= begin.len() + end.len() && name.starts_with(begin) && name.ends_with(end)
        })
    })
}

/// The strings of a list.
fn strings(value: &str) -> Option<Vec<PathBuf>> {
    let (list, _) = value.strip_prefix('[')?.split_once(']')?;
    Some(list.split(['"', '\'']).skip(1).step_by(2).map(PathBuf::from).collect())
}

fn files(path: PathBuf) -> Vec<PathBuf> {
    match path.is_dir() {
        true => listed(&path, |name| name.ends_with(".conf")),
        false => vec![path],
    }
}

/// The files of a directory with such names, in their order.
fn listed(directory: &Path, is_meant: impl Fn(&str) -> bool) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let meant = entries.filter(|entry| is_meant(&entry.file_name().to_string_lossy()));
    let mut files: Vec<PathBuf> = meant.map(|entry| entry.path()).collect();
    files.sort_unstable();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// Both settings, each with its file.
    type Words = (Option<(bool, PathBuf)>, Option<(Vec<PathBuf>, PathBuf)>);

    fn etc(files: &[(&str, &str)]) -> Option<Words> {
        etc_of(None, files)
    }

    fn etc_of(runtime: Option<&str>, files: &[(&str, &str)]) -> Option<Words> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let RuntimeConfig { cdi, spec_dirs } = RuntimeConfig::look(dir.path(), runtime)?;
        let below = |file: PathBuf| file.strip_prefix(dir.path()).unwrap().to_owned();
        Some((
            cdi.map(|said| (said.value, below(said.file))),
            spec_dirs.map(|said| (said.value, below(said.file))),
        ))
    }

    fn paths(paths: &[&str]) -> Vec<PathBuf> {
        paths.iter().map(PathBuf::from).collect()
    }

    #[test]
    fn what_a_runtime_is_configured_to_is_read() {
        let containerd = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_cdi = false # for now\n  \
                          cdi_spec_dirs = [\"/etc/cdi\", '/run/cdi']\n";
        let file = PathBuf::from("containerd/config.toml");
        let dirs = paths(&["/etc/cdi", "/run/cdi"]);
        let said = (Some((false, file.clone())), Some((dirs, file.clone())));
        assert_eq!(etc(&[("containerd/config.toml", containerd)]), Some(said));

        let crio = "[crio.runtime]\n# cdi_spec_dirs = [\"/no\"]\ncdi_spec_dirs = [\n\t\"/srv/cdi\",\n]\n";
        let found = etc(&[("crio/crio.conf", "[crio]\n"), ("crio/crio.conf.d/10-cdi.conf", crio)]);
        let file = PathBuf::from("crio/crio.conf.d/10-cdi.conf");
        assert_eq!(found, Some((None, Some((paths(&["/srv/cdi"]), file)))));
    }

    #[test]
    fn what_containerd_imports_counts_over_its_own_file() {
        let config = "imports = [\"/etc/containerd/conf.d/*.toml\", 'more.toml']\nenable_cdi = true\n\
                      cdi_spec_dirs = ['/a']\n";
        let found = etc(&[
            ("containerd/config.toml", config),
            ("containerd/conf.d/1.toml", "enable_cdi = false\n"),
            ("containerd/conf.d/2.toml", "cdi_spec_dirs = ['/b']\n"),
            ("containerd/conf.d/3.bak", "cdi_spec_dirs = ['/c']\n"),
            ("containerd/more.toml", "# enable_cdi = true\n"),
        ]);
        let (off, dirs) = ("containerd/conf.d/1.toml".into(), "containerd/conf.d/2.toml".into());
        assert_eq!(found, Some((Some((false, off)), Some((paths(&["/b"]), dirs)))));
    }

    #[test]
    fn imports_import_and_what_is_not_understood_is_not_told() {
        let config = |imports: &str| format!("imports = [{imports}] # [\"/no\"]\nenable_cdi = true\n");
        let found = etc(&[
            ("containerd/config.toml", &config("'a#b.toml'")),
            ("containerd/a#b.toml", "imports = ['sub/c.toml', 'config.toml']\n"),
            ("containerd/sub/c.toml", "[plugins.'io.containerd.cri.v1.runtime']\n\"enable_cdi\" = false\n"),
        ]);
        assert_eq!(found, Some((Some((false, "containerd/sub/c.toml".into())), None)));
        for pattern in ["'*/c.toml'", "'*c*.toml'", "'[a]*.toml'", "'c?.toml'"] {
            assert_eq!(etc(&[("containerd/config.toml", &config(pattern))]), None, "{pattern}");
        }
        // A section that comes again has nothing of the first one.
        let whole = "[plugins.'io.containerd.cri.v1.runtime']\n";
        let found = etc(&[
            ("containerd/config.toml", &format!("imports = ['more.toml']\n{whole}enable_cdi = false\n")),
            ("containerd/more.toml", &format!("{whole}no_enable_cdi = false\n")),
        ]);
        assert_eq!(found, Some((None, None)));
    }

    #[test]
    fn files_that_another_runtime_has_left_do_not_count() {
        let files = [
            ("containerd/config.toml", "enable_cdi = true\n"),
            ("crio/crio.conf.d/1.conf", "cdi_spec_dirs = ['/x']\n"),
        ];
        let of = |runtime| etc_of(Some(runtime), &files).unwrap();
        assert_eq!(of("containerd"), (Some((true, "containerd/config.toml".into())), None));
        assert_eq!(of("cri-o"), (None, Some((paths(&["/x"]), "crio/crio.conf.d/1.conf".into()))));
        assert!(etc(&files).is_some_and(|(cdi, dirs)| cdi.is_some() && dirs.is_some()));
    }

    #[test]
    fn a_file_without_a_word_about_it_says_nothing() {
        assert_eq!(etc(&[]), None);
        let file =
            ("containerd/config.toml", "version = 3\n# enable_cdi = false\nimports = ['/etc/none/*']\n");
        assert_eq!(etc(&[file]), Some((None, None)));
    }
}
