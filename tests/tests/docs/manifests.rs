//! Documents as what reads them in earnest would read them: the API's types, the driver's configuration, the chart's schema.

use super::cel;
use super::pages::REPOSITORY;
use anyhow::{Context as _, Result, bail, ensure};
use dracpu::config::{ConfigFlags, Surroundings};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::api::resource::v1::{DeviceClass, ResourceClaim, ResourceClaimTemplate};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::path::Path;

/// What the document is; an error when it is not what it seems to be.
pub(crate) fn check(document: &Value) -> Result<String> {
    let Some(kind) = document["kind"].as_str() else { return configuration(document) };
    match (document["apiVersion"].as_str().unwrap_or_default(), kind) {
        ("v1", "Pod") => {
            typed::<Pod>(document)?;
            pod(document)?;
        }
        ("resource.k8s.io/v1", "ResourceClaim") => typed::<ResourceClaim>(document)?,
        ("resource.k8s.io/v1", "ResourceClaimTemplate") => typed::<ResourceClaimTemplate>(document)?,
        ("resource.k8s.io/v1", "DeviceClass") => typed::<DeviceClass>(document)?,
        (version, kind) => bail!("{version} {kind} is not among the kinds that pages show"),
    }
    expressions(document)?;
    Ok(kind.to_owned())
}

/// The specs of a manifest's claims and templates.
pub(crate) fn claims(documents: &[Value]) -> Vec<Value> {
    let of = |document: &Value| match document["kind"].as_str() {
        Some("ResourceClaim") => Some(document["spec"].clone()),
        Some("ResourceClaimTemplate") => Some(document["spec"]["spec"].clone()),
        _ => None,
    };
    documents.iter().filter_map(of).collect()
}

/// Reads it as the type and writes it again: what the type does not know is gone by then.
fn typed<T: DeserializeOwned + Serialize>(document: &Value) -> Result<()> {
    let read: T = serde_json::from_value(document.clone())?;
    kept(document, &serde_json::to_value(read)?, "")
}

fn kept(written: &Value, read: &Value, place: &str) -> Result<()> {
    match (written, read) {
        (Value::Object(written), _) => written.iter().try_for_each(|(key, value)| {
            let place = format!("{place}.{key}");
            kept(value, read.get(key).with_context(|| format!("{place} is no field"))?, &place)
        }),
        (Value::Array(written), Value::Array(read)) => {
            written.iter().zip(read).try_for_each(|(written, read)| kept(written, read, place))
        }
        (written, read) if written == read => Ok(()),
        _ => bail!("{place}: {written} becomes {read}"),
    }
}

/// Each claim that a container names is one of the pod's.
fn pod(document: &Value) -> Result<()> {
    let spec = &document["spec"];
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let claims: Vec<Value> =
        list(&spec["resourceClaims"]).into_iter().map(|claim| claim["name"].clone()).collect();
    for container in list(&spec["initContainers"]).iter().chain(&list(&spec["containers"])) {
        for claim in list(&container["resources"]["claims"]) {
            ensure!(
                claims.contains(&claim["name"]),
                "the pod has no claim called {}",
                claim["name"].as_str().unwrap_or("?")
            );
        }
    }
    Ok(())
}

fn expressions(value: &Value) -> Result<()> {
    match value {
        Value::Object(fields) => fields.iter().try_for_each(|(key, value)| match (key.as_str(), value) {
            ("expression", Value::String(text)) => {
                cel::parses(text).with_context(|| format!("expression {text}"))
            }
            _ => expressions(value),
        }),
        Value::Array(items) => items.iter().try_for_each(expressions),
        _ => Ok(()),
    }
}

/// A configuration file of the driver, or values of the chart.
fn configuration(document: &Value) -> Result<String> {
    let chart =
        std::fs::read_to_string(Path::new(REPOSITORY).join("charts/dra-driver-cpu/values.schema.json"))?;
    let chart: Value = serde_json::from_str(&chart)?;
    let fields = document.as_object().context("neither manifest nor configuration nor values")?;
    // `strategies` is a key of both.
    let of_chart = |key: &&String| *key != "strategies" && chart["properties"].get(key.as_str()).is_some();
    if !fields.keys().any(|key| of_chart(&key)) {
        driver_configuration(document)?;
        return Ok("ConfigurationFile".to_owned());
    }
    values(document, &chart, &chart, "")?;
    let mut config = document["driverConfig"].as_object().cloned().unwrap_or_default();
    if let Some(strategies) = document["strategies"].as_array() {
        config.insert("strategies".to_owned(), strategies.iter().map(mounted).collect());
    }
    driver_configuration(&Value::Object(config))?;
    Ok("HelmValues".to_owned())
}

/// A strategy of the chart as the driver's file has it.
fn mounted(strategy: &Value) -> Value {
    let mut entry = strategy.as_object().cloned().unwrap_or_default();
    for source in ["image", "configMap", "hostPath"] {
        entry.shift_remove(source);
    }
    entry.insert("path".to_owned(), "/strategies/it.wasm".into());
    Value::Object(entry)
}

fn driver_configuration(config: &Value) -> Result<()> {
    let around = Surroundings { node_name: None, host_name: "node-1".to_owned() };
    ConfigFlags::default().over(dracpu::config::parse(&config.to_string())?, &around)?;
    Ok(())
}

/// Keys that the schema knows. `make chart-test` gives the same values to helm.
fn values(value: &Value, schema: &Value, chart: &Value, place: &str) -> Result<()> {
    if let Some(name) = schema["$ref"].as_str().and_then(|name| name.strip_prefix("#/$defs/")) {
        return values(value, &chart["$defs"][name], chart, place);
    }
    if let (Some(fields), Some(known)) = (value.as_object(), schema["properties"].as_object()) {
        for (key, value) in fields {
            let place = format!("{place}{key}");
            match known.get(key) {
                Some(schema) => values(value, schema, chart, &format!("{place}."))?,
                None => ensure!(
                    schema["additionalProperties"] != Value::Bool(false),
                    "the chart has no value {place}"
                ),
            }
        }
    }
    for item in value.as_array().into_iter().flatten() {
        values(item, &schema["items"], chart, place)?;
    }
    Ok(())
}
