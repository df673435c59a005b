//! What a pod and a claim can say: variables, opaque parameters, quantities.

use crate::{Target, is_short, text};
use dracpu_codec::cdi::{ENV_PREFIX, claim_of_device};
use dracpu_codec::claim::{AllocationResult, ConfigSource, OpaqueConfig};
use dracpu_codec::container::Container;
use dracpu_codec::env;
use dracpu_codec::opaque::{Settings, settings};
use dracpu_codec::quantity::{QuantityFault, whole_cpus};
use serde_json::{Value, json};
use std::collections::BTreeSet;

pub(crate) const ENV: Target = Target {
    name: "env",
    check: variables,
    fixed_kib: 256,
    per_byte: 2048,
    words: &[
        "DRA_CPUSET_",
        "DRA_CPUSET_a=0-3",
        "dra.k8s.io/cpu=claim-a",
        "\n",
        "=",
        ",",
        "-",
        "0-8191",
        "PATH=/bin",
        "@",
    ],
};

pub(crate) const OPAQUE: Target = Target {
    name: "opaque",
    check: parameters,
    fixed_kib: 256,
    per_byte: 2048,
    words: &[
        "{\"apiVersion\":\"v1alpha1\",\"cpuConfig\":{",
        "\"cpuset\":\"2-5\"",
        "\"strategy\":\"packed\"",
        "\"options\":{\"a\":1}",
        "{",
        "}",
        "[",
        "]",
        ",",
        "\"",
        ":",
        "null",
        "\n",
        "c*",
        "d*",
        "cr",
    ],
};

pub(crate) const QUANTITIES: Target = Target {
    name: "quantities",
    check: quantities,
    fixed_kib: 64,
    per_byte: 64,
    words: &[
        "1",
        "0",
        ".",
        "-",
        "+",
        "e",
        "E",
        "m",
        "k",
        "Ki",
        "Ei",
        "n",
        "000000",
        "4294967296",
        "e-9",
        "e18",
    ],
};

/// Variables, one a line; lines that begin with `@` are CDI devices.
fn variables(input: &[u8]) {
    let (devices, variables): (Vec<&str>, Vec<&str>) =
        text(input).lines().partition(|line| line.starts_with('@'));
    let container = Container {
        env: variables.iter().map(|line| (*line).to_owned()).collect(),
        cdi_devices: devices.iter().map(|line| line[1..].to_owned()).collect(),
        ..Container::default()
    };
    let given: BTreeSet<_> =
        container.cdi_devices.iter().filter_map(|device| claim_of_device(device)).collect();
    assert_eq!(env::given(&container).collect::<BTreeSet<_>>(), given);
    let ours: Vec<&&str> = variables.iter().filter(|line| line.starts_with(ENV_PREFIX)).collect();
    for told in [false, true] {
        match env::said(&container, told) {
            Ok(said) => {
                assert_eq!(said.len(), ours.len(), "a variable was passed over");
                for ((uid, cpus), line) in said.iter().zip(&ours) {
                    let (name, list) = line.split_once('=').expect("it was understood");
                    assert_eq!(name, format!("{ENV_PREFIX}{uid}"));
                    assert!(!cpus.is_empty() && list.parse().as_ref() == Ok(cpus));
                    assert!(!told || given.contains(uid), "believed: {line}");
                }
            }
            Err(fault) => {
                is_short(&fault);
                assert!(!ours.is_empty(), "refused without a variable: {fault}");
            }
        }
    }
}

/// Entries, one a line: `c` (claim) or `d` (class), the request it is for (`*`: all), and the parameters.
fn parameters(input: &[u8]) {
    let mut entries = Vec::new();
    for line in text(input).lines().take(8) {
        let mut chars = line.chars();
        let source = if chars.next() == Some('d') { ConfigSource::Class } else { ConfigSource::Claim };
        let requests = match chars.next() {
            Some('*') | None => Vec::new(),
            Some(name) => vec![name.to_string()],
        };
        let Ok(parameters) = serde_json::from_str(chars.as_str()) else { continue };
        entries.push(OpaqueConfig { source, requests, parameters });
    }
    let results = ["r", "s/first", "t"].map(result);
    let results: Vec<&AllocationResult> = results.iter().collect();
    let found = match settings(&entries, &results) {
        Ok(found) => found,
        Err(fault) => return is_short(&fault),
    };
    assert_eq!(found.len(), results.len());
    // What was understood, said again for each request, is understood as the same.
    let names = ["r", "s", "t"];
    let again: Vec<OpaqueConfig> =
        found.iter().zip(names).map(|(settings, name)| entry(settings, name)).collect();
    assert_eq!(settings(&again, &results), Ok(found.clone()));
    for settings in &found {
        assert!(settings.cpuset.as_ref().is_none_or(|cpus| !cpus.is_empty()));
        assert_eq!(settings.what().is_none(), *settings == Settings::default());
    }
}

fn result(request: &str) -> AllocationResult {
    AllocationResult {
        request: request.to_owned(),
        driver: dracpu_codec::DRIVER_NAME.to_owned(),
        pool: "node".to_owned(),
        device: "cpudevnuma000".to_owned(),
        share_id: None,
        admin_access: false,
        consumed_cpus: None,
    }
}

fn entry(settings: &Settings, request: &str) -> OpaqueConfig {
    let mut config = json!({ "options": settings.options });
    if let Some(cpuset) = &settings.cpuset {
        config["cpuset"] = Value::from(cpuset.to_string());
    }
    if let Some(strategy) = &settings.strategy {
        config["strategy"] = Value::from(strategy.as_str());
    }
    let parameters = json!({ "apiVersion": "v1alpha1", "cpuConfig": config });
    OpaqueConfig { source: ConfigSource::Claim, requests: vec![request.to_owned()], parameters }
}

/// A quantity means what it means to everybody else who reads decimal numbers.
fn quantities(input: &[u8]) {
    let written = text(input);
    let near = value(written);
    match whole_cpus(written) {
        Ok(cpus) => {
            assert!(cpus > 0);
            assert_eq!(whole_cpus(&cpus.to_string()), Ok(cpus));
            assert_eq!(whole_cpus(&format!("{cpus}000m")), Ok(cpus));
            let near = near.unwrap_or_else(|| panic!("{written:?} was taken for {cpus}"));
            assert!(
                (near - f64::from(cpus)).abs() < 1e-6 * near.max(1.0),
                "{written:?} was taken for {cpus}"
            );
        }
        Err(fault) => {
            is_short(&fault);
            match (&fault, near) {
                (QuantityFault::NotAQuantity(_), _) => {}
                (QuantityFault::NotPositive(_), Some(near)) => assert!(near <= 0.0, "{written:?}: {fault}"),
                (QuantityFault::TooLarge(_), Some(near)) => assert!(near > 4.29e9, "{written:?}: {fault}"),
                (QuantityFault::NotWhole(_), Some(near)) => {
                    assert!(near >= 0.0, "{written:?}: {fault}")
                }
                (_, near) => panic!("{written:?}: {fault}, but {near:?}"),
            }
        }
    }
}

/// About the value of a quantity, by way of the standard library's numbers.
fn value(written: &str) -> Option<f64> {
    let binary = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
        .into_iter()
        .zip(1..)
        .find(|(suffix, _)| written.ends_with(suffix));
    let decimal =
        ["n", "u", "m", "k", "M", "G", "T", "P", "E"].into_iter().zip([-9, -6, -3, 3, 6, 9, 12, 15, 18]);
    let (number, factor) = match (binary, decimal.into_iter().find(|(suffix, _)| written.ends_with(suffix))) {
        (Some((suffix, power)), _) => (written.strip_suffix(suffix)?, 1024_f64.powi(power)),
        (None, Some((suffix, power))) => (written.strip_suffix(suffix)?, 10_f64.powi(power)),
        (None, None) => (written, 1.0),
    };
    Some(number.parse::<f64>().ok()? * factor)
}
