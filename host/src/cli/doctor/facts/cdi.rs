//! The directory of CDI specs, as a container runtime sees it: every `.json` and `.yaml` in it, whoever wrote it.
//! Source: the CDI specification (`SPEC.md`), and how its library names and reads files.

use super::Seen;
use crate::cdi::NoProbe;
use crate::cdi::SpecDir;
use crate::words::chain;
use dracpu_codec::cdi::name::{claim_of_device, spec_file_name};
use dracpu_codec::cdi::spec::Content;
use dracpu_topology::{read_regular, yaml};
use rustix::fs::{Access, access};
use rustix::io::Errno;
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most that is read of a spec.
const MAX_BYTES: u64 = 4 << 20;

/// The directory.
#[derive(Debug, Clone)]
pub(in super::super) struct CdiDirectory {
    /// Where it is.
    pub(in super::super) path: PathBuf,
    /// Whether new files can be made in it, or why it cannot be looked at.
    pub(in super::super) writable: Seen<bool>,
    /// Claims with a readable record.
    pub(in super::super) records: BTreeSet<String>,
    /// Files with this driver's names that say less than they should, and what is wrong with them.
    pub(in super::super) damaged: BTreeMap<PathBuf, String>,
    /// Of files that are this driver's, by the version that they need: one of them.
    pub(in super::super) versions: BTreeMap<String, PathBuf>,
    /// Files of others that define devices of this driver's claims.
    pub(in super::super) others: Vec<OtherFile>,
}

/// A file that defines devices that are not its to define.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) struct OtherFile {
    /// The file.
    pub(in super::super) path: PathBuf,
    /// One of the devices.
    pub(in super::super) device: String,
}

/// Of a spec, what is looked at. YAML is read as JSON is, which is YAML.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SpecView {
    #[serde(default)]
    cdi_version: String,
    kind: String,
    #[serde(default)]
    devices: Vec<DeviceView>,
}

#[derive(Deserialize)]
struct DeviceView {
    name: String,
}

impl CdiDirectory {
    pub(super) fn look(path: &Path) -> Self {
        let mut found = Self {
            path: path.to_owned(),
            writable: writable(path),
            records: BTreeSet::new(),
            damaged: BTreeMap::new(),
            versions: BTreeMap::new(),
            others: Vec::new(),
        };
        match SpecDir::new(path.to_owned(), Arc::new(NoProbe)).scan() {
            Ok(specs) => {
                for spec in specs {
                    let fault = match (spec.content, spec.uid) {
                        (Err(fault) | Ok(Content::CpusOnly { doubt: Some(fault), .. }), _) => fault,
                        (Ok(_), uid) => {
                            found.records.extend(uid.map(|uid| uid.to_string()));
                            continue;
                        }
                    };
                    found.damaged.insert(spec.path, chain(&fault));
                }
            }
            Err(error) => found.writable = Err(error.to_string()),
        }
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> = entries.filter(|file| is_spec(file)).collect();
        files.sort_unstable();
        for file in files {
            found.look_at(file);
        }
        found
    }

    fn look_at(&mut self, file: PathBuf) {
        let Ok(bytes) = read_regular(&file, MAX_BYTES) else { return };
        let text = String::from_utf8_lossy(&bytes);
        // What cannot be read defines nothing for the runtime either.
        let Ok(spec) = yaml::parse::<Value>(&text) else { return };
        let Ok(spec) = SpecView::deserialize(spec) else { return };
        let devices = spec.devices.into_iter().map(|device| format!("{}={}", spec.kind, device.name));
        let mut claims = devices.filter_map(|device| Some((claim_of_device(&device)?, device)));
        let Some((uid, device)) = claims.next() else { return };
        let name = file.file_name().unwrap_or_default();
        if spec_file_name(&uid).is_ok_and(|own| own.as_str() == name) {
            self.versions.entry(spec.cdi_version).or_insert(file);
        } else {
            self.others.push(OtherFile { path: file, device });
        }
    }
}

/// The names that a runtime reads.
fn is_spec(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "json" || end == "yaml")
}

fn writable(path: &Path) -> Seen<bool> {
    match std::fs::metadata(path) {
        Ok(found) if !found.is_dir() => Err("it is not a directory".to_owned()),
        Ok(_) => match access(path, Access::WRITE_OK | Access::EXEC_OK) {
            // Says nothing about others.
            Err(Errno::ACCESS) => Err("this user may not write there".to_owned()),
            answer => Ok(answer.is_ok()),
        },
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn spec(version: &str, kind: &str, device: &str, env: &str) -> String {
        format!(
            r#"{{"cdiVersion":"{version}","kind":"{kind}","devices":[{{"name":"{device}","containerEdits":{{"env":["{env}"]}}}}]}}"#
        )
    }

    #[test]
    fn own_records_damaged_ones_and_those_of_others_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        let own = |uid: &str| {
            spec("0.6.0", "dra.k8s.io/cpu", &format!("claim-{uid}"), &format!("DRA_CPUSET_{uid}=0-3"))
        };
        write("dra.k8s.io-cpu_claim-a.json", &own("a"));
        write("dra.k8s.io-cpu_claim-b.json", &own("b")[..40]);
        write("dra.k8s.io-cpu_claim-c.json", &own("c").replace("0.6.0", "0.8.0"));
        write("dra.k8s.io-cpu_claim-d.json.tmp", &own("d"));
        write(
            "mine.yaml",
            "cdiVersion: 0.5.0\nkind: dra.k8s.io/cpu\ndevices:\n- name: claim-a\n  containerEdits: {}\n",
        );
        write("gpu.json", &spec("0.6.0", "example.com/gpu", "claim-a", "X=1"));
        write("broken.yaml", "kind: [");
        let found = CdiDirectory::look(dir.path());
        assert_eq!(found.writable, Ok(true));
        assert_eq!(found.records.iter().map(String::as_str).collect::<Vec<_>>(), ["a", "c"]);
        let damaged = dir.path().join("dra.k8s.io-cpu_claim-b.json");
        assert_eq!(found.damaged.keys().collect::<Vec<_>>(), [&damaged]);
        assert_eq!(found.versions.keys().map(String::as_str).collect::<Vec<_>>(), ["0.6.0", "0.8.0"]);
        let other =
            OtherFile { path: dir.path().join("mine.yaml"), device: "dra.k8s.io/cpu=claim-a".to_owned() };
        assert_eq!(found.others, [other]);
    }

    #[test]
    fn a_directory_that_only_this_user_may_not_write_to_is_not_called_read_only() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o555)).unwrap();
        // Root may.
        let expected = if rustix::process::geteuid().is_root() {
            Ok(true)
        } else {
            Err("this user may not write there".to_owned())
        };
        assert_eq!(CdiDirectory::look(dir.path()).writable, expected);
    }

    #[test]
    fn a_directory_that_is_not_there_or_is_a_file_says_so() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("file"), "").unwrap();
        assert!(CdiDirectory::look(&dir.path().join("none")).writable.is_err());
        assert!(CdiDirectory::look(&dir.path().join("file")).writable.is_err());
    }
}
