//! Where the container runtime looks for CDI specs: of its configuration files, the two settings that matter. Their whole
//! grammar is not read; a setting that does not stand in them has the runtime's default.
//! Source: `docs/cri/config.md` of containerd, crio.conf(5).

use super::MAX_CONFIG_BYTES;
use dracpu_topology::read_regular;
use std::path::{Path, PathBuf};

/// Files, relative to `/etc`; a directory stands for the `.conf` files in it.
const FILES: [&str; 3] = ["containerd/config.toml", "crio/crio.conf", "crio/crio.conf.d"];

/// What a configuration file of a runtime says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct RuntimeConfig {
    /// The file.
    pub(in super::super) file: PathBuf,
    /// Specs are not used at all.
    pub(in super::super) cdi_off: bool,
    /// Directories of specs.
    pub(in super::super) spec_dirs: Option<Vec<PathBuf>>,
}

impl RuntimeConfig {
    /// The last file with a word about specs.
    pub(super) fn look(etc: &Path) -> Option<Self> {
        let files = FILES.into_iter().flat_map(|name| files(etc.join(name)));
        files.filter_map(|file| Self::read(&file)).next_back()
    }

    fn read(file: &Path) -> Option<Self> {
        let bytes = read_regular(file, MAX_CONFIG_BYTES).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let uncommented = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let text = uncommented.collect::<Vec<_>>().join("\n");
        let value = |key: &str| {
            let mut places = text.match_indices(key).map(|(at, _)| at);
            places.find_map(|at| {
                text.get(at + key.len()..)?.trim_start().strip_prefix('=').map(str::trim_start)
            })
        };
        let cdi_off = value("enable_cdi").is_some_and(|value| value.starts_with("false"));
        let spec_dirs = value("cdi_spec_dirs").and_then(strings);
        (cdi_off || spec_dirs.is_some()).then(|| Self { file: file.to_owned(), cdi_off, spec_dirs })
    }
}

/// The strings of a list.
fn strings(value: &str) -> Option<Vec<PathBuf>> {
    let (list, _) = value.strip_prefix('[')?.split_once(']')?;
    Some(list.split(['"', '\'']).skip(1).step_by(2).map(PathBuf::from).collect())
}

fn files(path: PathBuf) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(&path) else { return vec![path] };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|file| file.extension().is_some_and(|end| end == "conf"));
    files.sort_unstable();
    files
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn etc(files: &[(&str, &str)]) -> Option<(PathBuf, bool, Option<Vec<PathBuf>>)> {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in files {
            let file = dir.path().join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let RuntimeConfig { file, cdi_off, spec_dirs } = RuntimeConfig::look(dir.path())?;
        Some((file.strip_prefix(dir.path()).unwrap().to_owned(), cdi_off, spec_dirs))
    }

    #[test]
    fn what_a_runtime_is_configured_to_is_read() {
        let containerd = "version = 2\n[plugins.\"io.containerd.grpc.v1.cri\"]\n  enable_cdi = false # for now\n  \
                          cdi_spec_dirs = [\"/etc/cdi\", '/run/cdi']\n";
        let dirs = Some(vec![PathBuf::from("/etc/cdi"), PathBuf::from("/run/cdi")]);
        let file = PathBuf::from("containerd/config.toml");
        assert_eq!(etc(&[("containerd/config.toml", containerd)]), Some((file, true, dirs)));

        let crio = "[crio.runtime]\n# cdi_spec_dirs = [\"/no\"]\ncdi_spec_dirs = [\n\t\"/srv/cdi\",\n]\n";
        let found = etc(&[("crio/crio.conf", "[crio]\n"), ("crio/crio.conf.d/10-cdi.conf", crio)]);
        let expected =
            (PathBuf::from("crio/crio.conf.d/10-cdi.conf"), false, Some(vec![PathBuf::from("/srv/cdi")]));
        assert_eq!(found, Some(expected));
    }

    #[test]
    fn a_file_without_a_word_about_it_says_nothing() {
        for files in [&[][..], &[("containerd/config.toml", "version = 3\n# enable_cdi = false\n")]] {
            assert_eq!(etc(files), None);
        }
    }
}
