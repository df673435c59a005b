//! The configuration file and the flags over it.

use crate::{Target, is_short, text};
use clap::{Args as _, FromArgMatches as _};
use dracpu_codec::config::{
    Config, ConfigError, ConfigFlags, DeviceMode, ReservedCpus, Surroundings, go_flags, parse,
};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::ffi::OsString;

pub(crate) const FILES: Target = Target {
    name: "config",
    check,
    // The command's own description, and what the reader of YAML keeps ready.
    fixed_kib: 16 << 10,
    per_byte: 4096,
    words: &[
        "apiVersion: v1alpha1\n",
        "cpuDeviceMode: individual\n",
        "groupBy: llc\n",
        "allocator: ",
        "strategies:\n- name: a\n  path: /a\n",
        "strategyOptions: {a: 1}\n",
        "allowedStrategies: [packed, external]\n",
        "reservedCPUs: 0-1\n",
        "reservedCPUCount: 2\n",
        "minSharedCPUs: 1\n",
        "cfsQuota: remove\n",
        "hostnameOverride: n\n",
        "  limits: {fuel: 1}\n",
        "\0--lock-timeout=1m\n",
        "--v=4\n",
        "--bind-address=:1\n",
        "--reserved-cpus=3\n",
        "-kubeconfig=\n",
        "&a ",
        "*a",
        "? ",
        "!!str ",
        "|\n ",
        "null",
        "\t",
    ],
};

/// The file; behind a NUL, flags, one a line.
fn check(input: &[u8]) {
    let (file, flags) = text(input).split_once('\0').unwrap_or((text(input), ""));
    let Some(flags) = flags_of(flags) else { return };
    let (config, warnings) = match configure(file, &flags) {
        Ok(accepted) => accepted,
        Err(error) => return is_short(&error),
    };
    for warning in &warnings {
        is_short(warning);
    }
    sound(&config);
    if flags.is_empty() {
        again(&config);
    }
}

fn flags_of(lines: &str) -> Option<Vec<OsString>> {
    let lines: Vec<OsString> = lines.lines().take(8).map(OsString::from).collect();
    // What clap answers itself: how to use it.
    (!lines.iter().any(|line| matches!(line.to_str(), Some("--help" | "-h" | "-help")))).then_some(lines)
}

fn configure(file: &str, flags: &[OsString]) -> Result<(Config, Vec<String>), ConfigError> {
    let flags = match flags {
        [] => ConfigFlags::default(),
        flags => {
            let command = ConfigFlags::augment_args(clap::Command::new("dracpu")).args_override_self(true);
            let args = std::iter::once(OsString::from("dracpu")).chain(flags.iter().cloned());
            let args = go_flags::normalise(args, &command);
            let _ = go_flags::split_boolean(&args, &command);
            let matches = command.try_get_matches_from(args);
            matches.ok().and_then(|matches| ConfigFlags::from_arg_matches(&matches).ok()).unwrap_or_default()
        }
    };
    let around = Surroundings { node_name: None, host_name: "host".to_owned() };
    flags.over(parse(file)?, &around)
}

fn sound(config: &Config) {
    let label = |name: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !name.is_empty() && name.chars().all(inner) && !name.starts_with('-') && !name.ends_with('-')
    };
    assert!(config.node_name.len() <= 253 && config.node_name.split('.').all(label), "{}", config.node_name);
    for socket in [config.registration_socket(), config.dra_socket(), config.nri_socket.clone()] {
        assert!(socket.as_os_str().len() <= 107, "{}", socket.display());
    }
    assert!(config.kubelet_root_dir.is_absolute());
    let selection = &config.selection;
    assert!(selection.names().all(|name| label(name) && name.len() <= 63 && name != "cpumanager"));
    let names: Vec<&str> = selection.names().collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "a name twice: {names:?}");
    let configured: BTreeSet<&str> =
        selection.strategies.iter().map(|strategy| strategy.name.as_str()).collect();
    assert_eq!(configured.len(), selection.strategies.len());
    for strategy in &selection.strategies {
        assert!(label(&strategy.name) && strategy.name != "cpumanager");
        let limits = strategy.limits;
        let counts = [limits.fuel, limits.memory_bytes, limits.transfer_bytes, limits.component_bytes];
        assert!(!counts.contains(&Some(0)));
    }
    if let ReservedCpus::Count(count) = config.reserved_cpus {
        assert!((1..=8192).contains(&count));
    }
}

/// A configuration, written down as it is described, is the same configuration.
fn again(config: &Config) {
    let Value::Object(mut keys) = config.describe() else { panic!("it is described by key") };
    keys.retain(|key, value| !key.starts_with("--") && !value.is_null() && *value != "default");
    let name = keys.shift_remove("nodeName");
    keys.insert("hostnameOverride".to_owned(), name.expect("every node has a name"));
    if let ReservedCpus::List(cpus) = &config.reserved_cpus {
        keys.insert("reservedCPUs".to_owned(), Value::from(cpus.to_string()));
    }
    let around = Surroundings { node_name: None, host_name: "other".to_owned() };
    let (again, _) = ConfigFlags::default().over(keys.clone(), &around).unwrap_or_else(|error| {
        panic!("{error} in {}", Value::Object(keys.clone()));
    });
    assert_eq!(again, *config);
    if config.mode == DeviceMode::Individual {
        assert_eq!(keys.get("groupBy"), None);
    }
    // As text, too.
    let text = Value::Object(keys.clone()).to_string();
    let parsed: Map<String, Value> = parse(&text).unwrap_or_else(|error| panic!("{error} in {text}"));
    assert_eq!(parsed, keys);
}
