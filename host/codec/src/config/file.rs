//! The configuration file: flat YAML. Every mistake is found before anything is refused.

use super::{ConfigError, LimitsConfig, StrategyConfig};
use crate::config::values;
use crate::words::{names, quoted, sentence};
use serde_json::{Map, Value};
use std::collections::HashSet;
use std::path::PathBuf;
use std::time::Duration;

const API_VERSION: &str = "v1alpha1";

/// The keys that a file may have.
const KEYS: [&str; 16] = [
    "apiVersion",
    "cpuDeviceMode",
    "groupBy",
    "allocator",
    "strategies",
    "strategyOptions",
    "allowedStrategies",
    "reservedCPUs",
    "reservedCPUCount",
    "minSharedCPUs",
    "cfsQuota",
    "hostnameOverride",
    "kubeconfig",
    "sysfsOverlay",
    "publishNodeAllocatableResourceMapping",
    "claimStatus",
];

/// Settings that exist only as flags, as someone would write them in a file.
const FLAG_ONLY: [(&str, &str); 8] = [
    ("bindAddress", "--bind-address"),
    ("exposePCIeRoots", "--expose-pcie-roots"),
    ("kubeletRootDir", "--kubelet-root-dir"),
    ("sysfsRoot", "--sysfs-root"),
    ("nriSocket", "--nri-socket"),
    ("cdiDir", "--cdi-dir"),
    ("cacheDir", "--cache-dir"),
    ("lockTimeout", "--lock-timeout"),
];

const STRATEGY_KEYS: [&str; 5] = ["name", "path", "digest", "limits", "options"];
const LIMIT_KEYS: [&str; 5] = ["fuel", "deadlineMillis", "memoryBytes", "transferBytes", "componentBytes"];

/// What a file says; none = it says nothing about that.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct FileConfig {
    pub(super) cpu_device_mode: Option<String>,
    pub(super) group_by: Option<String>,
    pub(super) allocator: Option<String>,
    pub(super) strategies: Vec<StrategyConfig>,
    pub(super) strategy_options: Map<String, Value>,
    pub(super) allowed_strategies: Vec<String>,
    pub(super) reserved_cpus: Option<String>,
    pub(super) reserved_cpu_count: Option<u64>,
    pub(super) min_shared_cpus: Option<u64>,
    pub(super) cfs_quota: Option<String>,
    pub(super) hostname_override: Option<String>,
    pub(super) kubeconfig: Option<String>,
    pub(super) sysfs_overlay: Option<String>,
    pub(super) publish_node_allocatable_resource_mapping: Option<bool>,
    pub(super) claim_status: Option<bool>,
}

/// The keys and values of a file, before anybody asked what they mean.
///
/// # Errors
/// [`ConfigError::Refused`] when the text is no YAML mapping, or has a key twice.
pub fn parse(text: &str) -> Result<Map<String, Value>, ConfigError> {
    let refused = |problem: String| ConfigError::Refused { problems: vec![problem] };
    let options = serde_saphyr::options! {
        with_snippet: false,
        // `reservedCPUs: 08` is a CPU list, not a number.
        leading_zero_numbers_as_strings: true,
        underscored_numbers_as_strings: true,
    };
    let document: Option<Value> = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let why = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
        refused(format!("the file is not valid YAML: {}", sentence(&why)))
    })?;
    match document {
        None | Some(Value::Null) => Ok(Map::new()),
        Some(Value::Object(map)) => Ok(map),
        Some(other) => Err(refused(format!("the file must be a mapping of keys, is {}", kind(&other)))),
    }
}

/// Reads the values of a file's keys. Mistakes are added to `problems`; what is wrong is left out.
pub(super) fn read(map: Map<String, Value>, problems: &mut Vec<String>) -> FileConfig {
    check_keys(&map, problems);
    let mut fields = Fields { map, prefix: String::new(), problems };
    match fields.text("apiVersion") {
        Some(version) if version != API_VERSION => {
            fields.problem(
                "apiVersion",
                &format!("`{}` is not known; write {API_VERSION} or leave it out", quoted(&version)),
            );
        }
        _ => {}
    }
    FileConfig {
        cpu_device_mode: fields.text("cpuDeviceMode"),
        group_by: fields.text("groupBy"),
        allocator: fields.text("allocator"),
        strategies: fields.strategies(),
        strategy_options: fields.object("strategyOptions"),
        allowed_strategies: fields.texts("allowedStrategies"),
        reserved_cpus: fields.text("reservedCPUs"),
        reserved_cpu_count: fields.count("reservedCPUCount"),
        min_shared_cpus: fields.count("minSharedCPUs"),
        cfs_quota: fields.text("cfsQuota"),
        hostname_override: fields.text("hostnameOverride"),
        kubeconfig: fields.text("kubeconfig"),
        sysfs_overlay: fields.text("sysfsOverlay"),
        publish_node_allocatable_resource_mapping: fields.flag("publishNodeAllocatableResourceMapping"),
        claim_status: fields.flag("claimStatus"),
    }
}

fn check_keys(map: &Map<String, Value>, problems: &mut Vec<String>) {
    let mut strange = Vec::new();
    for key in map.keys().filter(|key| !KEYS.contains(&key.as_str())) {
        let lower = key.to_lowercase();
        let flag = FLAG_ONLY.iter().find(|(name, _)| name.to_lowercase() == lower);
        if let Some((_, flag)) = flag {
            problems.push(format!("`{key}` is not a key of the file; use the flag {flag}"));
        } else {
            strange.push(key.as_str());
        }
    }
    unknown(&strange, "", &KEYS, problems);
}

/// Says that keys are unknown, and which ones were probably meant. What may be is said once for all that are
/// like nothing.
fn unknown(keys: &[&str], prefix: &str, known: &[&str], problems: &mut Vec<String>) {
    let mut like_nothing = Vec::new();
    for key in keys {
        match closest(key, known) {
            Some(name) => {
                problems.push(format!("unknown key `{prefix}{}`; did you mean `{name}`?", quoted(key)));
            }
            None => like_nothing.push(format!("{prefix}{key}")),
        }
    }
    let like_nothing: Vec<&str> = like_nothing.iter().map(String::as_str).collect();
    let subject = match like_nothing.len() {
        0 => return,
        1 => "unknown key",
        _ => "unknown keys",
    };
    problems.push(format!("{subject} {}; known are {}", names(&like_nothing), known.join(", ")));
}

/// The key that was probably meant.
fn closest<'a>(key: &str, known: &[&'a str]) -> Option<&'a str> {
    // What is much longer than every key is like none of them, and comparing takes its time.
    let key = Some(key).filter(|key| key.len() <= 100)?.to_lowercase();
    let likeness = |name: &str| strsim::jaro_winkler(&key, &name.to_lowercase());
    let closest = known.iter().map(|name| (likeness(name), *name)).max_by(|(a, _), (b, _)| a.total_cmp(b));
    closest.filter(|(likeness, _)| *likeness > 0.8).map(|(_, name)| name)
}

/// Takes typed values out of a mapping, one key after the other.
struct Fields<'a> {
    map: Map<String, Value>,
    /// What stands before a key in messages, e.g. `strategies[0].`.
    prefix: String,
    problems: &'a mut Vec<String>,
}

impl Fields<'_> {
    fn problem(&mut self, key: &str, what: &str) {
        self.problems.push(format!("`{}{key}`: {what}", self.prefix));
    }

    /// The value of a key; null counts as left out.
    fn take(&mut self, key: &str) -> Option<Value> {
        self.map.remove(key).filter(|value| !value.is_null())
    }

    fn mismatch(&mut self, key: &str, wanted: &str, value: &Value) {
        self.problem(key, &format!("must be {wanted}, is {}", kind(value)));
    }

    /// Text. A plain whole number is the text that it looks like: `reservedCPUs: 0` needs no quotes.
    fn text(&mut self, key: &str) -> Option<String> {
        match self.take(key)? {
            Value::String(text) => Some(text),
            Value::Number(number) if number.is_u64() => Some(number.to_string()),
            other => {
                self.mismatch(key, "text", &other);
                None
            }
        }
    }

    fn flag(&mut self, key: &str) -> Option<bool> {
        match self.take(key)? {
            Value::Bool(flag) => Some(flag),
            other => {
                self.mismatch(key, "true or false", &other);
                None
            }
        }
    }

    /// A whole number above zero.
    fn count(&mut self, key: &str) -> Option<u64> {
        let value = self.take(key)?;
        let count = value.as_u64().filter(|count| *count > 0);
        if count.is_none() {
            let number =
                value.as_str().is_some_and(|text| text.parse::<u64>().is_ok_and(|number| number > 0));
            let wanted = if number { "a whole number without quotes" } else { "a whole number above 0" };
            self.mismatch(key, wanted, &value);
        }
        count
    }

    /// A list of texts.
    fn texts(&mut self, key: &str) -> Vec<String> {
        let entries = match self.take(key) {
            None => return Vec::new(),
            Some(Value::Array(entries)) => entries,
            Some(other) => {
                self.mismatch(key, "a list", &other);
                return Vec::new();
            }
        };
        let mut texts = Vec::new();
        for (at, entry) in entries.into_iter().enumerate() {
            match entry {
                Value::String(text) => texts.push(text),
                other => self.mismatch(&format!("{key}[{at}]"), "text", &other),
            }
        }
        texts
    }

    fn object(&mut self, key: &str) -> Map<String, Value> {
        match self.take(key) {
            None => Map::new(),
            Some(Value::Object(map)) => map,
            Some(other) => {
                self.mismatch(key, "a mapping", &other);
                Map::new()
            }
        }
    }

    /// Another reader for a mapping inside this one.
    fn inner(&mut self, map: Map<String, Value>, prefix: String, known: &[&str]) -> Fields<'_> {
        let strange: Vec<&str> = map.keys().map(String::as_str).filter(|key| !known.contains(key)).collect();
        unknown(&strange, &prefix, known, self.problems);
        Fields { map, prefix, problems: self.problems }
    }

    fn strategies(&mut self) -> Vec<StrategyConfig> {
        let entries = match self.take("strategies") {
            None => return Vec::new(),
            Some(Value::Array(entries)) => entries,
            Some(other) => {
                self.mismatch("strategies", "a list", &other);
                return Vec::new();
            }
        };
        let mut strategies = Vec::new();
        for (at, entry) in entries.into_iter().enumerate() {
            let place = format!("strategies[{at}]");
            match entry {
                Value::Object(map) => {
                    strategies.extend(self.inner(map, format!("{place}."), &STRATEGY_KEYS).strategy());
                }
                other => self.mismatch(&place, "a mapping", &other),
            }
        }
        let mut names = HashSet::new();
        for strategy in &strategies {
            if !names.insert(&strategy.name) {
                self.problems
                    .push(format!("`strategies`: the name `{}` is there twice", quoted(&strategy.name)));
            }
        }
        strategies
    }

    fn strategy(mut self) -> Option<StrategyConfig> {
        let name = self.text("name");
        match &name {
            None => self.problem("name", "is missing; give the name that the component gives itself"),
            Some(name) if !crate::strategy::description::is_dns_label(name) => {
                self.problem(
                    "name",
                    &format!("`{}` is not lower-case letters, digits and `-`", quoted(name)),
                );
            }
            Some(name) if name == values::PACKED_ALIAS => {
                self.problem(
                    "name",
                    &format!("`{name}` always stands for the built-in `{}`", values::PACKED),
                );
            }
            Some(_) => {}
        }
        // One of another type is told as such.
        let is_given = self.map.get("path").is_some_and(|path| !path.is_null() && path != "");
        let path = self.text("path").filter(|path| !path.is_empty()).map(PathBuf::from);
        if !is_given && !name.as_deref().is_some_and(|name| values::BUILT_IN.contains(&name)) {
            self.problem("path", "is missing; give the component file (only built-in strategies need none)");
        }
        let digest = self.text("digest");
        if let Some(digest) = digest.as_deref().filter(|digest| !values::is_sha256(digest)) {
            let digest = quoted(digest);
            self.problem("digest", &format!("`{digest}` is not `sha256:` with 64 lower-case hex digits"));
        }
        let options = self.object("options");
        let limits = self.object("limits");
        let prefix = format!("{}limits.", self.prefix);
        let mut limits = self.inner(limits, prefix, &LIMIT_KEYS);
        let limits = LimitsConfig {
            fuel: limits.count("fuel"),
            deadline: limits.count("deadlineMillis").map(Duration::from_millis),
            memory_bytes: limits.count("memoryBytes"),
            transfer_bytes: limits.count("transferBytes"),
            component_bytes: limits.count("componentBytes"),
        };
        Some(StrategyConfig { name: name?, path, digest, limits, options })
    }
}

/// A value in a few words, for messages.
fn kind(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(_) | Value::Number(_) => format!("`{value}`"),
        Value::String(text) => format!("`{}`", quoted(text)),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a mapping".to_owned(),
    }
}
