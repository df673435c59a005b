//! Reads CDI specs and applies them to a container, by the rules of the Go library that runtimes use.
//!
//! Sources: `SPEC.md` and `pkg/cdi` of the Container Device Interface at 1.1; containerd's `WithCDI`.

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// `vendor/class=device`
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct QualifiedName {
    /// `vendor/class`
    pub kind: String,
    /// The device.
    pub device: String,
}

impl QualifiedName {
    /// Reads a fully qualified name.
    ///
    /// # Errors
    /// When it is not one.
    pub fn parse(text: &str) -> Result<Self> {
        ensure!(!text.starts_with('/'), "`{text}` is a path, not a qualified device name");
        let (kind, device) = text.split_once('=').with_context(|| format!("no `=` in `{text}`"))?;
        check_kind(kind)?;
        check_device_name(device)?;
        Ok(Self { kind: kind.to_owned(), device: device.to_owned() })
    }
}

fn check_kind(kind: &str) -> Result<()> {
    let (vendor, class) = kind.split_once('/').with_context(|| format!("kind `{kind}` has no `/`"))?;
    for (what, word) in [("vendor", vendor), ("class", class)] {
        let inner = |b: u8| b.is_ascii_alphanumeric() || b"_-.".contains(&b);
        ensure!(
            word.bytes().next().is_some_and(|b| b.is_ascii_alphabetic())
                && word.bytes().last().is_some_and(|b| b.is_ascii_alphanumeric())
                && word.bytes().all(inner),
            "`{word}` in `{kind}` is not a {what}"
        );
    }
    Ok(())
}

fn check_device_name(name: &str) -> Result<()> {
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"_-.:".contains(&b);
    ensure!(
        name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric())
            && name.bytes().last().is_some_and(|b| b.is_ascii_alphanumeric())
            && name.bytes().all(inner),
        "`{name}` is not a device name"
    );
    Ok(())
}

/// A spec file; unknown keys make it invalid.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The version that the content is written for.
    pub cdi_version: String,
    /// `vendor/class`
    pub kind: String,
    /// Free notes; nothing reads them but their writer.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// At least one.
    #[serde(default)]
    pub devices: Vec<SpecDevice>,
    /// Applied once for all devices of the file.
    #[serde(default)]
    pub container_edits: Edits,
}

/// A device of a spec.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SpecDevice {
    /// Unique in the file.
    pub name: String,
    /// Free notes.
    #[serde(default)]
    pub annotations: BTreeMap<String, String>,
    /// Not empty.
    pub container_edits: Edits,
}

/// What a device changes in a container. Of the other kinds of edits only the names are known here.
#[derive(Debug, Clone, PartialEq, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Edits {
    /// `KEY=VALUE`
    #[serde(default)]
    pub env: Vec<String>,
    /// Bind mounts.
    #[serde(default)]
    pub mounts: Vec<Mount>,
    #[serde(default)]
    pub(crate) device_nodes: Vec<serde_json::Value>,
    #[serde(default)]
    pub(crate) hooks: Vec<serde_json::Value>,
    #[serde(default)]
    pub(crate) net_devices: Vec<serde_json::Value>,
    #[serde(default)]
    pub(crate) intel_rdt: Option<serde_json::Value>,
    #[serde(default)]
    pub(crate) additional_gids: Vec<u32>,
}

/// A mount of a device.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Mount {
    /// On the host.
    pub host_path: String,
    /// In the container.
    pub container_path: String,
    /// File system type; since 0.4.0.
    #[serde(default)]
    pub r#type: Option<String>,
    /// Mount options.
    #[serde(default)]
    pub options: Vec<String>,
}

const VERSIONS: [&str; 10] =
    ["0.1.0", "0.2.0", "0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0", "1.1.0"];

/// Place in the list of versions; a leading `v` is ignored.
fn version(text: &str) -> Option<usize> {
    let text = text.strip_prefix('v').unwrap_or(text);
    VERSIONS.iter().position(|version| *version == text)
}

impl Edits {
    fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn check(&self) -> Result<()> {
        for entry in &self.env {
            ensure!(entry.find('=').is_some_and(|at| at > 0), "env entry `{entry}` is not KEY=VALUE");
        }
        for mount in &self.mounts {
            ensure!(!mount.host_path.is_empty() && !mount.container_path.is_empty(), "a mount without path");
        }
        Ok(())
    }

    fn needs(&self) -> &'static str {
        let net = !self.net_devices.is_empty();
        let seven = self.intel_rdt.is_some() || !self.additional_gids.is_empty();
        let host_paths = self.device_nodes.iter().any(|node| node.get("hostPath").is_some());
        let types = self.mounts.iter().any(|mount| mount.r#type.is_some());
        match (net, seven, host_paths, types) {
            (true, ..) => "1.1.0",
            (_, true, ..) => "0.7.0",
            (_, _, true, _) => "0.5.0",
            (_, _, _, true) => "0.4.0",
            _ => "0.3.0",
        }
    }
}

impl Spec {
    /// Reads and checks one file as a runtime does that knows versions up to `newest`.
    ///
    /// # Errors
    /// Whatever makes the file invalid.
    pub fn read(path: &Path, newest: &str) -> Result<Self> {
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        // Go reads YAML, of which JSON is a part; the driver writes JSON.
        let spec: Self = serde_json::from_str(&text).with_context(|| format!("{}", path.display()))?;
        spec.check(newest).with_context(|| format!("{}", path.display()))?;
        Ok(spec)
    }

    fn check(&self, newest: &str) -> Result<()> {
        let declared = version(&self.cdi_version);
        let Some(declared) = declared.filter(|declared| Some(*declared) <= version(newest)) else {
            bail!("unknown cdiVersion `{}` (newest known: {newest})", self.cdi_version);
        };
        check_kind(&self.kind)?;
        ensure!(!self.devices.is_empty(), "a spec without devices");
        let mut needed = vec![self.container_edits.needs()];
        self.container_edits.check()?;
        let class_has_dot = self.kind.split_once('/').is_some_and(|(_, class)| class.contains('.'));
        if !self.annotations.is_empty() || class_has_dot {
            needed.push("0.6.0");
        }
        check_annotations(&self.annotations)?;
        let mut names = BTreeSet::new();
        for device in &self.devices {
            check_device_name(&device.name)?;
            ensure!(names.insert(&device.name), "device `{}` is there twice", device.name);
            ensure!(!device.container_edits.is_empty(), "device `{}` changes nothing", device.name);
            device.container_edits.check().with_context(|| format!("device `{}`", device.name))?;
            check_annotations(&device.annotations)?;
            needed.push(device.container_edits.needs());
            if device.name.starts_with(|c: char| c.is_ascii_digit()) {
                needed.push("0.5.0");
            }
            if !device.annotations.is_empty() {
                needed.push("0.6.0");
            }
        }
        for needed in needed {
            ensure!(
                Some(declared) >= version(needed),
                "the spec needs cdiVersion {needed} at least and declares {}",
                self.cdi_version
            );
        }
        Ok(())
    }
}

fn check_annotations(annotations: &BTreeMap<String, String>) -> Result<()> {
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    ensure!(bytes <= 256 * 1024, "annotations of {bytes} bytes; at most 262144");
    Ok(())
}

/// All devices of some directories, as a runtime's cache has them.
#[derive(Debug, Default)]
pub struct Registry {
    devices: BTreeMap<QualifiedName, (SpecDevice, Spec)>,
    /// Files that were left out, and why; devices that are there twice, too.
    pub errors: BTreeMap<PathBuf, String>,
}

impl Registry {
    /// Scans directories; later ones have priority.
    #[must_use]
    pub fn scan(directories: &[PathBuf], newest: &str) -> Self {
        let mut registry = Self::default();
        for directory in directories {
            let mut here: BTreeMap<QualifiedName, (SpecDevice, Spec)> = BTreeMap::new();
            let mut conflicts = BTreeSet::new();
            let files = fs::read_dir(directory).into_iter().flatten().flatten();
            let mut files: Vec<_> = files.map(|entry| entry.path()).filter(|path| path.is_file()).collect();
            files.retain(|path| path.extension().is_some_and(|ext| ext == "json" || ext == "yaml"));
            files.sort();
            for path in files {
                let spec = match Spec::read(&path, newest) {
                    Ok(spec) => spec,
                    // removed since the directory was listed
                    Err(_) if !path.exists() => continue,
                    Err(error) => {
                        registry.errors.insert(path, format!("{error:#}"));
                        continue;
                    }
                };
                for device in &spec.devices {
                    let name = QualifiedName { kind: spec.kind.clone(), device: device.name.clone() };
                    if here.insert(name.clone(), (device.clone(), spec.clone())).is_some() {
                        registry
                            .errors
                            .insert(path.clone(), format!("conflict: {} is there twice", device.name));
                        conflicts.insert(name);
                    }
                }
            }
            registry.devices.extend(here);
            registry.devices.retain(|name, _| !conflicts.contains(name));
        }
        registry
    }

    /// The edits for some devices, in their order; spec-level edits once a spec.
    ///
    /// # Errors
    /// When a device is unknown: then nothing is injected at all.
    pub fn edits(&self, names: &[String]) -> Result<Vec<Edits>> {
        let mut unresolvable = Vec::new();
        let mut edits = Vec::new();
        let mut specs: Vec<&Spec> = Vec::new();
        let mut seen = BTreeSet::new();
        for name in names.iter().filter(|name| seen.insert(name.as_str())) {
            let known = QualifiedName::parse(name).ok().and_then(|name| self.devices.get(&name));
            let Some((device, spec)) = known else {
                unresolvable.push(name.as_str());
                continue;
            };
            if !specs.contains(&spec) {
                specs.push(spec);
                edits.push(spec.container_edits.clone());
            }
            edits.push(device.container_edits.clone());
        }
        ensure!(
            unresolvable.is_empty(),
            "CDI device injection failed: unresolvable CDI devices {}",
            unresolvable.join(", ")
        );
        Ok(edits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(directory: &Path, name: &str, text: &str) {
        fs::write(directory.join(name), text).unwrap();
    }

    fn spec(device: &str, env: &str) -> String {
        format!(
            r#"{{"cdiVersion":"0.6.0","kind":"example.org/cpu","devices":[{{"name":"{device}","annotations":{{"a":"b"}},"containerEdits":{{"env":["{env}"]}}}}]}}"#
        )
    }

    #[test]
    fn an_invalid_file_loses_only_its_own_devices() {
        let directory = tempfile::tempdir().unwrap();
        write(directory.path(), "good.json", &spec("claim-a", "A=1"));
        let bad = [
            ("unknown-key.json", spec("b", "B=1").replace("\"kind\"", "\"extra\":1,\"kind\"")),
            ("truncated.json", spec("c", "C=1")[..40].to_owned()),
            ("no-equals.json", spec("d", "D")),
            ("too-new.json", spec("e", "E=1").replace("0.6.0", "1.1.0")),
            ("annotations-too-old.json", spec("f", "F=1").replace("0.6.0", "0.5.0")),
            ("empty-edits.json", spec("g", "G=1").replace("\"env\":[\"G=1\"]", "")),
        ];
        for (name, text) in &bad {
            write(directory.path(), name, text);
        }
        write(directory.path(), "not-read.JSON", "{");
        write(directory.path(), "half-written.tmp", "{");
        let registry = Registry::scan(&[directory.path().to_owned()], "1.0.0");
        assert_eq!(registry.errors.len(), bad.len(), "{:#?}", registry.errors);
        let edits = registry.edits(&["example.org/cpu=claim-a".to_owned()]).unwrap();
        assert_eq!(edits.last().unwrap().env, ["A=1"]);
        let refusal = registry.edits(&["example.org/cpu=b".to_owned()]).unwrap_err();
        assert!(refusal.to_string().contains("unresolvable CDI devices example.org/cpu=b"), "{refusal}");
    }

    #[test]
    fn the_same_device_twice_in_a_directory_is_unusable_and_a_later_directory_wins() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        write(first.path(), "one.json", &spec("x", "X=old"));
        write(second.path(), "one.json", &spec("x", "X=new"));
        write(second.path(), "two.json", &spec("y", "Y=1"));
        write(second.path(), "three.json", &spec("y", "Y=2"));
        let registry = Registry::scan(&[first.path().to_owned(), second.path().to_owned()], "1.0.0");
        assert_eq!(registry.edits(&["example.org/cpu=x".to_owned()]).unwrap()[1].env, ["X=new"]);
        assert!(registry.edits(&["example.org/cpu=y".to_owned()]).is_err());
    }
}
