//! The opaque parameters of a claim: `{"apiVersion":"v1alpha1","cpuConfig":{"cpuset":"2-5",…}}`.

use super::claim::{AllocationResult, ConfigSource, OpaqueConfig};
use crate::config::strategy_name;
use crate::words::quoted;
use dracpu_cpuset::CpuSet;
use serde_json::{Map, Value};

const API_VERSION: &str = "v1alpha1";

/// What is wrong with opaque parameters.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigFault {
    /// Not the shape.
    #[error("opaque parameters: {what} must be {expected}, found {}", quoted(.found))]
    WrongType {
        /// Which field.
        what: &'static str,
        /// What it must be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A key that nothing reads.
    #[error("opaque parameters: unknown key `{}` in {place}; {known} are known", quoted(.key))]
    UnknownKey {
        /// The key.
        key: String,
        /// Where it stands.
        place: &'static str,
        /// Keys that may stand there.
        known: &'static str,
    },
    /// Another version of the format.
    #[error("opaque parameters: apiVersion is `{}`, this driver reads `{API_VERSION}`", quoted(.0))]
    ApiVersion(String),
    /// Not a CPU list.
    #[error("cpuset `{}` is not a CPU list such as 2-5,8", quoted(.0))]
    NotCpus(String),
    /// A class is for many claims, a cpuset for one.
    #[error(
        "cpuset {0} comes from the DeviceClass, which would pin every claim to the same CPUs; move it to the \
         claim"
    )]
    CpusetFromClass(String),
    /// Two entries for one request.
    #[error("request {request} has two entries with a cpuset ({first} and {second}); leave one")]
    TwoCpusets {
        /// The request.
        request: String,
        /// One cpuset.
        first: CpuSet,
        /// The other.
        second: CpuSet,
    },
    /// One entry for two results.
    #[error(
        "cpuset {cpuset} is for {results} results of the claim ({requests}); give each request an entry of \
         its own that names it"
    )]
    SharedCpuset {
        /// The cpuset.
        cpuset: CpuSet,
        /// How many results.
        results: usize,
        /// Their requests.
        requests: String,
    },
    /// A strategy that this node does not offer.
    #[error(
        "strategy `{}` is not allowed on this node; allowed: {allowed} (`allocator` and `allowedStrategies` of \
         the driver's configuration)", quoted(.wanted)
    )]
    Strategy {
        /// The name in the claim or its class.
        wanted: String,
        /// What is allowed.
        allowed: String,
    },
    /// One decision is made for a claim, by one strategy.
    #[error(
        "requests {} and {} want different strategies, {} and {}; a claim is decided by one: use a claim for each",
        .requests[0], .requests[1], quoted(&.strategies[0]), quoted(&.strategies[1])
    )]
    TwoStrategies {
        /// Two requests.
        requests: [String; 2],
        /// Their strategies; the node's own where a request names none.
        strategies: [String; 2],
    },
    /// The scheduler has chosen the CPUs.
    #[error(
        "{0} is not allowed: cpuDeviceMode is `individual`, where the scheduler chooses the CPUs; take it out \
         of the claim or its DeviceClass, or use cpuDeviceMode `grouped`"
    )]
    Individual(&'static str),
}

/// What the entries that apply to one result come to.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Settings {
    /// The claim's own cpuset.
    pub cpuset: Option<CpuSet>,
    /// The strategy that it wants.
    pub strategy: Option<String>,
    /// Options, those of the claim over those of its class.
    pub options: Map<String, Value>,
}

impl Settings {
    /// What is set, for a message; none when nothing is.
    #[must_use]
    pub fn what(&self) -> Option<&'static str> {
        match (&self.cpuset, &self.strategy, self.options.is_empty()) {
            (Some(_), _, _) => Some("cpuset"),
            (_, Some(_), _) => Some("strategy"),
            (_, _, false) => Some("options"),
            _ => None,
        }
    }
}

/// The settings of each result, in order. An entry without request names is for all of them. Entries that
/// name other requests have nothing to say here.
///
/// # Errors
/// [`ConfigFault`] for what cannot be honoured.
pub fn settings(
    entries: &[OpaqueConfig],
    results: &[&AllocationResult],
) -> Result<Vec<Settings>, ConfigFault> {
    let mut settings = vec![Settings::default(); results.len()];
    let of = |source| entries.iter().filter(move |entry: &&OpaqueConfig| entry.source == source);
    for entry in of(ConfigSource::Class).chain(of(ConfigSource::Claim)) {
        let parsed = parse(&entry.parameters)?;
        if let (ConfigSource::Class, Some(cpuset)) = (entry.source, &parsed.cpuset) {
            return Err(ConfigFault::CpusetFromClass(cpuset.to_string()));
        }
        let matching = |result: &AllocationResult| {
            entry.requests.is_empty()
                || entry
                    .requests
                    .iter()
                    .any(|name| *name == result.request || *name == main_request(&result.request))
        };
        let applies: Vec<_> =
            results.iter().zip(&mut settings).filter(|(result, _)| matching(result)).collect();
        if let (Some(cpuset), 2..) = (&parsed.cpuset, applies.len()) {
            let requests: Vec<&str> = applies.iter().map(|(result, _)| result.request.as_str()).collect();
            let requests = requests.join(", ");
            return Err(ConfigFault::SharedCpuset {
                cpuset: cpuset.clone(),
                results: applies.len(),
                requests,
            });
        }
        for (result, setting) in applies {
            if let Some(second) = parsed.cpuset.clone() {
                if let Some(first) = setting.cpuset.take() {
                    let request = result.request.clone();
                    return Err(ConfigFault::TwoCpusets { request, first, second });
                }
                setting.cpuset = Some(second);
            }
            if parsed.strategy.is_some() {
                setting.strategy.clone_from(&parsed.strategy);
            }
            setting.options.extend(parsed.options.clone());
        }
    }
    Ok(settings)
}

/// The request without subrequest.
#[must_use]
pub fn main_request(request: &str) -> &str {
    request.split_once('/').map_or(request, |(main, _)| main)
}

fn parse(parameters: &Value) -> Result<Settings, ConfigFault> {
    let mut settings = Settings::default();
    let mut version = None;
    for (key, value) in object(parameters, "the whole")? {
        match key.as_str() {
            "apiVersion" => version = Some(text(value, "apiVersion")?),
            "cpuConfig" => settings = cpu_config(value)?,
            _ => return Err(unknown(key, "the parameters", "`apiVersion` and `cpuConfig`")),
        }
    }
    match version {
        Some(API_VERSION) => Ok(settings),
        other => Err(ConfigFault::ApiVersion(other.unwrap_or_default().to_owned())),
    }
}

fn cpu_config(value: &Value) -> Result<Settings, ConfigFault> {
    let mut settings = Settings::default();
    for (key, value) in object(value, "cpuConfig")? {
        match key.as_str() {
            "cpuset" => settings.cpuset = Some(cpuset(text(value, "cpuset")?)?),
            "strategy" => settings.strategy = Some(strategy_name(text(value, "strategy")?.to_owned())),
            "options" => settings.options = object(value, "options")?.clone(),
            _ => return Err(unknown(key, "cpuConfig", "`cpuset`, `strategy` and `options`")),
        }
    }
    Ok(settings)
}

fn cpuset(list: &str) -> Result<CpuSet, ConfigFault> {
    let cpus = list.parse().ok().filter(|cpus: &CpuSet| !cpus.is_empty());
    cpus.ok_or_else(|| ConfigFault::NotCpus(list.to_owned()))
}

fn unknown(key: &str, place: &'static str, known: &'static str) -> ConfigFault {
    ConfigFault::UnknownKey { key: key.to_owned(), place, known }
}

fn object<'a>(value: &'a Value, what: &'static str) -> Result<&'a Map<String, Value>, ConfigFault> {
    value.as_object().ok_or_else(|| wrong(value, what, "an object"))
}

fn text<'a>(value: &'a Value, what: &'static str) -> Result<&'a str, ConfigFault> {
    value.as_str().ok_or_else(|| wrong(value, what, "a string"))
}

fn wrong(value: &Value, what: &'static str, expected: &'static str) -> ConfigFault {
    ConfigFault::WrongType { what, expected, found: value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn result(request: &str) -> AllocationResult {
        AllocationResult {
            request: request.into(),
            driver: crate::DRIVER_NAME.into(),
            pool: "n".into(),
            device: "d".into(),
            share_id: None,
            admin_access: false,
            consumed_cpus: None,
        }
    }

    fn entry(source: ConfigSource, requests: &[&str], parameters: Value) -> OpaqueConfig {
        OpaqueConfig { source, requests: requests.iter().map(|&name| name.into()).collect(), parameters }
    }

    fn cpu(config: Value) -> Value {
        json!({"apiVersion": "v1alpha1", "cpuConfig": config})
    }

    fn all(entries: &[OpaqueConfig], requests: &[&str]) -> Result<Vec<Settings>, ConfigFault> {
        let results: Vec<AllocationResult> = requests.iter().map(|name| result(name)).collect();
        settings(entries, &results.iter().collect::<Vec<_>>())
    }

    #[test]
    fn entries_reach_the_requests_that_they_name_and_all_when_they_name_none() {
        use ConfigSource::{Claim, Class};
        let found = all(
            &[
                entry(Claim, &["r"], cpu(json!({"cpuset": "2-3", "options": {"a": 1}}))),
                entry(Claim, &["s"], cpu(json!({"cpuset": "4"}))),
                entry(Claim, &["elsewhere"], cpu(json!({"cpuset": "9"}))),
                entry(Class, &[], cpu(json!({"options": {"a": 0, "b": 0}, "strategy": "cpumanager"}))),
            ],
            &["r/first", "s"],
        )
        .unwrap();
        assert_eq!(found[0].cpuset, Some("2-3".parse().unwrap()));
        assert_eq!(json!(found[0].options), json!({"a": 1, "b": 0}), "the claim is over its class");
        assert_eq!(found[1].cpuset, Some("4".parse().unwrap()));
        assert_eq!(
            (json!(found[1].options), found[1].strategy.as_deref()),
            (json!({"a": 0, "b": 0}), Some("packed")),
            "its other name"
        );
    }

    #[test]
    fn what_cannot_be_honoured_is_refused_with_its_own_words() {
        use ConfigSource::{Claim, Class};
        let set = || cpu(json!({"cpuset": "2-3"}));
        for (entries, requests, words) in [
            (vec![entry(Class, &[], set())], vec!["r"], "DeviceClass"),
            (vec![entry(Class, &["other"], set())], vec!["r"], "DeviceClass"),
            (vec![entry(Claim, &[], set())], vec!["r", "s"], "2 results of the claim (r, s)"),
            (vec![entry(Claim, &["r"], set())], vec!["r", "r"], "2 results of the claim (r, r)"),
            (
                vec![entry(Claim, &["r"], set()), entry(Claim, &[], set())],
                vec!["r"],
                "request r has two entries",
            ),
            (vec![entry(Claim, &[], cpu(json!({"cpuset": "5-x"})))], vec!["r"], "cpuset `5-x`"),
            (vec![entry(Claim, &[], cpu(json!({"cpuset": ""})))], vec!["r"], "not a CPU list"),
            (
                vec![entry(Claim, &[], cpu(json!({"cpuset": 5})))],
                vec!["r"],
                "cpuset must be a string, found 5",
            ),
            (vec![entry(Claim, &[], cpu(json!({"options": []})))], vec!["r"], "options must be an object"),
            (
                vec![entry(Claim, &[], cpu(json!({"cpusett": "2"})))],
                vec!["r"],
                "unknown key `cpusett` in cpuConfig",
            ),
            (
                vec![entry(Claim, &[], json!({"cpuset": "2"}))],
                vec!["r"],
                "unknown key `cpuset` in the parameters",
            ),
            (vec![entry(Claim, &[], json!({"cpuConfig": {}}))], vec!["r"], "apiVersion is ``"),
            (vec![entry(Claim, &[], json!({"apiVersion": "v2"}))], vec!["r"], "apiVersion is `v2`"),
            (vec![entry(Claim, &[], json!(null))], vec!["r"], "must be an object, found null"),
        ] {
            let error = all(&entries, &requests).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn what_is_long_is_not_quoted_whole() {
        let long = "x".repeat(100_000);
        for parameters in [
            json!(long),
            json!({ &long: 1 }),
            json!({ "apiVersion": long }),
            cpu(json!({ "cpuset": long })),
            cpu(json!({ "options": [long] })),
        ] {
            let error = all(&[entry(ConfigSource::Claim, &[], parameters)], &["r"]).unwrap_err().to_string();
            assert!(error.len() < 400, "{error}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            "[0-9,x-]{0,6}|cpuset|v1alpha1".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            let key = "apiVersion|cpuConfig|cpuset|strategy|options|[a-z]";
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                proptest::collection::hash_map(key, inner, 0..4)
                    .prop_map(|map| Value::from(map.into_iter().collect::<Map<String, Value>>())),
            ]
        })
    }

    proptest! {
        #[test]
        fn no_parameters_panic(parameters in value(), class in any::<bool>()) {
            let source = if class { ConfigSource::Class } else { ConfigSource::Claim };
            let _ = all(&[entry(source, &[], parameters)], &["r"]);
        }
    }
}
