//! Where the container runtime looks for CDI specs: of its configuration files, the two settings that matter. Their whole
//! grammar is not read; a setting that does not stand in them has the runtime's default.
//! Source: `docs/cri/config.md` of containerd, crio.conf(5).

use super::MAX_CONFIG_BYTES;
use dracpu_topology::read_regular;
use std::path::{Path, PathBuf};

/// Files, relative to `/etc`; a directory stands for the `.conf` files in it.
const FILES: [&str; 3] = ["containerd/config.toml", "crio/crio.conf", "crio/crio.conf.d"];

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
    /// The last word of all files; none where there is no file.
    pub(super) fn look(etc: &Path) -> Option<Self> {
        let mut config = None;
        for file in FILES.into_iter().flat_map(|name| files(etc.join(name))) {
            let Some(text) = text(&file) else { continue };
            let config = config.get_or_insert_default();
            Self::read(config, &file, &text);
            // containerd: what it imports counts over the file itself.
            for file in value(&text, "imports").and_then(strings).unwrap_or_default() {
                for file in imported(etc, &file) {
                    if let Some(text) = self::text(&file) {
                        Self::read(config, &file, &text);
                    }
                }
            }
        }
        config
    }

    fn read(&mut self, file: &Path, text: &str) {
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

/// Without comments.
fn text(file: &Path) -> Option<String> {
    let bytes = read_regular(file, MAX_CONFIG_BYTES).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let uncommented = text.lines().map(|line| line.split('#').next().unwrap_or_default());
    Some(uncommented.collect::<Vec<_>>().join("\n"))
}

/// What stands behind a key.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let mut places = text.match_indices(key).map(|(at, _)| at);
    places.find_map(|at| text.get(at + key.len()..)?.trim_start().strip_prefix('=').map(str::trim_start))
}

/// The files that an import of containerd means: a path, with one `*` in its last part at most, from `/etc/containerd`
/// where it is no absolute one.
fn imported(etc: &Path, import: &Path) -> Vec<PathBuf> {
    let path = match import.strip_prefix("/etc") {
        Ok(path) => etc.join(path),
        Err(_) => etc.join("containerd").join(import),
    };
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    match (name.split_once('*'), path.parent()) {
        (Some((begin, end)), Some(directory)) => listed(directory, |name| {
            name.len() >= begin.len() + end.len() && name.starts_with(begin) && name.ends_with(end)
        }),
        _ => vec![path],
    }
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
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let RuntimeConfig { cdi, spec_dirs } = RuntimeConfig::look(dir.path())?;
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
    fn a_file_without_a_word_about_it_says_nothing() {
        assert_eq!(etc(&[]), None);
        let file =
            ("containerd/config.toml", "version = 3\n# enable_cdi = false\nimports = ['/etc/none/*']\n");
        assert_eq!(etc(&[file]), Some((None, None)));
    }
}
