//! The kubelet's configuration: its command line over drop-in files over its file.
//! Source: `KubeletConfiguration` of kubelet.config.k8s.io/v1beta1 and the kubelet's own flags.

use super::{MAX_CONFIG_BYTES, Seen, processes};
use dracpu_cpuset::CpuSet;
use dracpu_topology::{read_regular, yaml};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{self, DirEntry};
use std::io;
use std::path::{Path, PathBuf};

/// What the kubelet was started with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in super::super) struct Kubelet {
    /// `reservedSystemCPUs`; none when it names none.
    pub(in super::super) reserved_cpus: Option<CpuSet>,
    /// `cpuManagerPolicy`, where it stands anywhere.
    pub(in super::super) cpu_manager_policy: Option<String>,
    /// `featureGates` that are set.
    pub(in super::super) feature_gates: BTreeMap<String, bool>,
}

impl Kubelet {
    /// Of the kubelet that can be seen to run.
    pub(super) fn look(proc: &Path) -> Seen<Self> {
        let is_kubelet = |pid: &u32| processes::name(proc, *pid).is_some_and(|name| name == "kubelet");
        let pid = processes::pids(proc).into_iter().find(is_kubelet);
        let pid = pid.ok_or_else(|| "no process named kubelet can be seen".to_owned())?;
        let process = proc.join(pid.to_string());
        let arguments = std::fs::read(process.join("cmdline"))
            .map_err(|error| format!("the kubelet's command line cannot be read: {error}"))?;
        let flags = Flags::of(&arguments);
        let inside = |path: &str| match path.strip_prefix('/') {
            Some(path) => process.join("root").join(path),
            None => process.join("cwd").join(path),
        };
        let mut kubelet = Self::default();
        let mut files: Vec<PathBuf> = flags.get("config").map(inside).into_iter().collect();
        if let Some(directory) = flags.get("config-dir").map(inside) {
            let found = drop_ins(&directory).map_err(|error| {
                format!("the kubelet's directory {} cannot be read: {error}", directory.display())
            })?;
            files.extend(found);
        }
        for file in files {
            kubelet.read(&file)?;
        }
        kubelet.apply(&flags)?;
        Ok(kubelet)
    }

    fn read(&mut self, file: &Path) -> Seen<()> {
        let fault =
            |why: String| format!("the kubelet's configuration {} cannot be read: {why}", file.display());
        let bytes = read_regular(file, MAX_CONFIG_BYTES).map_err(|error| fault(error.to_string()))?;
        let document: Value = yaml::parse(&String::from_utf8_lossy(&bytes)).map_err(fault)?;
        // Drop-ins are merged as in RFC 7396: null takes away.
        match document.get("reservedSystemCPUs") {
            Some(Value::String(cpus)) => self.reserve(cpus)?,
            Some(Value::Null) => self.reserved_cpus = None,
            _ => {}
        }
        match document.get("cpuManagerPolicy") {
            Some(Value::String(policy)) => self.cpu_manager_policy = Some(policy.clone()),
            Some(Value::Null) => self.cpu_manager_policy = None,
            _ => {}
        }
        match document.get("featureGates") {
            Some(Value::Object(gates)) => {
                for (gate, on) in gates {
                    match on.as_bool() {
                        Some(on) => _ = self.feature_gates.insert(gate.clone(), on),
                        None => _ = self.feature_gates.remove(gate),
                    }
                }
            }
            Some(Value::Null) => self.feature_gates.clear(),
            _ => {}
        }
        Ok(())
    }

    fn apply(&mut self, flags: &Flags) -> Seen<()> {
        if let Some(cpus) = flags.get("reserved-cpus") {
            self.reserve(cpus)?;
        }
        if let Some(policy) = flags.get("cpu-manager-policy") {
            self.cpu_manager_policy = Some(policy.to_owned());
        }
        let gates = flags.all("feature-gates").flat_map(|gates| gates.split(','));
        let gates = gates.filter_map(|gate| gate.split_once('='));
        self.feature_gates
            .extend(gates.filter_map(|(gate, on)| Some((gate.trim().to_owned(), on.trim().parse().ok()?))));
        Ok(())
    }

    fn reserve(&mut self, cpus: &str) -> Seen<()> {
        let set: CpuSet = cpus.parse().map_err(|error| format!("the kubelet's reserved CPUs: {error}"))?;
        self.reserved_cpus = Some(set).filter(|set| !set.is_empty());
        Ok(())
    }
}

/// The policy in the file in which the kubelet's CPU manager keeps its state.
pub(super) fn kept_policy(kubelet_root_dir: &Path) -> Option<String> {
    let bytes = read_regular(&kubelet_root_dir.join("cpu_manager_state"), MAX_CONFIG_BYTES).ok()?;
    let state: Value = serde_json::from_slice(&bytes).ok()?;
    Some(state.get("policyName")?.as_str()?.to_owned())
}

/// Files of a drop-in directory and of those below it, in the order in which they count: the kubelet walks it by names, and
/// follows no link to a directory (`filepath.WalkDir`).
fn drop_ins(directory: &Path) -> io::Result<Vec<PathBuf>> {
    if !fs::symlink_metadata(directory)?.is_dir() {
        return Ok(Vec::new());
    }
    let mut entries = fs::read_dir(directory)?.collect::<io::Result<Vec<_>>>()?;
    entries.sort_unstable_by_key(DirEntry::file_name);
    let mut files = Vec::new();
    for entry in entries {
        if entry.file_type()?.is_dir() {
            files.extend(drop_ins(&entry.path())?);
        } else if entry.file_name().to_string_lossy().ends_with(".conf") {
            files.push(entry.path());
        }
    }
    Ok(files)
}

/// Flags in Go's syntax, with dashes.
struct Flags(BTreeMap<String, Vec<String>>);

impl Flags {
    fn of(command_line: &[u8]) -> Self {
        let text = String::from_utf8_lossy(command_line);
        let mut words = text.split('\0').skip(1).peekable();
        let mut flags: BTreeMap<String, Vec<String>> = BTreeMap::new();
        while let Some(word) = words.next() {
            let Some(name) = word.strip_prefix("--").or_else(|| word.strip_prefix('-')) else { continue };
            let (name, value) = match name.split_once('=') {
                Some((name, value)) => (name, value.to_owned()),
                // A boolean flag stands alone.
                None => (name, words.next_if(|next| !next.starts_with('-')).unwrap_or("true").to_owned()),
            };
            flags.entry(name.replace('_', "-")).or_default().push(value);
        }
        Self(flags)
    }

    /// All values of a flag, in their order.
    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.get(name).into_iter().flatten().map(String::as_str)
    }

    /// The value that counts of a flag that has one.
    fn get(&self, name: &str) -> Option<&str> {
        self.all(name).last()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A `/proc` with a kubelet that was started so, and the files in its root.
    fn proc(command_line: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (pid, name, line) in [("77", "kube-proxy", "kube-proxy\0"), ("812", "kubelet", command_line)] {
            let process = dir.path().join(pid);
            fs::create_dir_all(process.join("root")).unwrap();
            fs::write(process.join("comm"), format!("{name}\n")).unwrap();
            fs::write(process.join("cmdline"), line).unwrap();
        }
        for (name, text) in files {
            let file = dir.path().join("812/root").join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        dir
    }

    const CONFIG: &str = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n\
        cgroupDriver: systemd\ncpuManagerPolicy: none\nfeatureGates:\n  DRAConsumableCapacity: false\n  Other: true\n\
        reservedSystemCPUs: 0-1,8\n";

    #[test]
    fn the_file_counts_drop_ins_go_over_it_and_flags_over_both() {
        let line = "/usr/bin/kubelet\0--kubeconfig=/etc/k\0--config=/etc/kubelet.yaml\0";
        let seen = Kubelet::look(proc(line, &[("etc/kubelet.yaml", CONFIG)]).path()).unwrap();
        assert_eq!(seen.reserved_cpus, Some("0-1,8".parse().unwrap()));
        assert_eq!(seen.cpu_manager_policy.as_deref(), Some("none"));
        assert!(!seen.feature_gates["DRAConsumableCapacity"] && seen.feature_gates["Other"]);

        let line = "kubelet\0--config\0/etc/kubelet.yaml\0--config-dir\0/etc/more\0--v=2\0--reserved-cpus=2\0\
                    --feature_gates=Other=false\0--feature-gates=New=true\0";
        let files = [
            ("etc/kubelet.yaml", CONFIG),
            ("etc/more/.conf", "reservedSystemCPUs: '6'\nfeatureGates: {Gone: true}\n"),
            (
                "etc/more/20/a.conf",
                "cpuManagerPolicy: static\nreservedSystemCPUs: null\nfeatureGates: {Gone: null}\n",
            ),
            ("etc/more/20/b/README", "not: [read"),
            ("etc/more/10.conf", "cpuManagerPolicy: other\nreservedSystemCPUs: '5'\n"),
            ("etc/more/README", "not: [read"),
        ];
        let seen = Kubelet::look(proc(line, &files).path()).unwrap();
        assert_eq!(seen.reserved_cpus, Some("2".parse().unwrap()));
        assert_eq!(seen.cpu_manager_policy.as_deref(), Some("static"));
        let gates: Vec<_> = seen.feature_gates.iter().map(|(gate, on)| (gate.as_str(), *on)).collect();
        assert_eq!(gates, [("DRAConsumableCapacity", false), ("New", true), ("Other", false)]);

        let seen = Kubelet::look(proc(&line.replace("--reserved-cpus=2\0", ""), &files).path()).unwrap();
        assert_eq!(seen.reserved_cpus, None, "a drop-in has taken it away");

        assert_eq!(Kubelet::look(proc("kubelet\0", &[]).path()), Ok(Kubelet::default()));
    }

    #[test]
    fn what_cannot_be_read_is_not_guessed() {
        let none = tempfile::tempdir().unwrap();
        assert!(Kubelet::look(none.path()).unwrap_err().contains("no process named kubelet"));
        for (config, why) in [("a: [", "cannot be read"), ("reservedSystemCPUs: 3-1\n", "reserved CPUs")] {
            let dir = proc("kubelet\0--config=/k.yaml\0", &[("k.yaml", config)]);
            let error = Kubelet::look(dir.path()).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        for flag in ["--config=/k.yaml", "--config-dir=/k.yaml"] {
            let missing = proc(&format!("kubelet\0{flag}\0"), &[]);
            assert!(Kubelet::look(missing.path()).unwrap_err().contains("k.yaml"), "{flag}");
        }
    }

    #[test]
    fn the_kept_state_names_the_policy() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(kept_policy(dir.path()), None);
        let state = r#"{"policyName":"static","defaultCpuSet":"0,4-7","entries":{},"checksum":1}"#;
        fs::write(dir.path().join("cpu_manager_state"), state).unwrap();
        assert_eq!(kept_policy(dir.path()).as_deref(), Some("static"));
    }
}
