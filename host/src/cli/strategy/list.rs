use super::{Failure, Output, aligned, catalogue_of, extended, short_digest};
use crate::config::flags::ConfigFlags;
use crate::config::{Config, DeviceMode, Selection, Surroundings};
use crate::live::{LiveError, NodeReport, StrategyReport};
use crate::strategy::{Catalogue, Loaded, Source};
use serde_json::{Map, Value, json};
use std::process::ExitCode;

/// List the strategies that are built in and configured
///
/// Without a configuration: those of the driver of this host, if one answers, with what it uses and what it cannot use
/// now. Else each is loaded as the daemon does, and its options are checked. The active one (`allocator` of the
/// configuration) is marked with `*`, those that claims may name (`allowedStrategies`) with `+`. Exits with 1 when one
/// cannot be used.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dracpu strategy list\n  \
    dracpu strategy list --config=config.yaml -o json\n  \
    kubectl exec -n NAMESPACE POD -- /dracpu strategy list")]
pub(super) struct Args {
    #[command(flatten)]
    config: ConfigFlags,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

/// One line of the answer.
struct Row<'a> {
    name: &'a str,
    /// None for what the configuration names though there is none of it.
    source: Option<Source>,
    active: bool,
    allowed: bool,
    known: Option<Known>,
    /// Why it cannot be used; what is known of it may be.
    fault: Option<String>,
}

/// What is known of a strategy.
struct Known {
    version: String,
    digest: String,
    /// None where the file is another one by now.
    summary: Option<String>,
}

impl From<Loaded> for Known {
    fn from(loaded: Loaded) -> Self {
        let description = loaded.description();
        Self {
            version: description.version.clone(),
            digest: loaded.digest().to_owned(),
            summary: Some(description.summary.clone()),
        }
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let node = match &args.config.config {
        None => driver_of_this_host(&args.config)?,
        Some(_) => None,
    };
    let config = match &node {
        None => args.config.load()?,
        Some(node) => config_of(node)?,
    };
    let catalogue = catalogue_of(&config)?;
    // Where the scheduler chooses, the driver has none, and all are as they would be loaded.
    let node = node.filter(|_| config.mode != DeviceMode::Individual);
    let rows = rows(&catalogue, &config.selection, node.as_ref().map(|node| &node.strategy));
    let answer = match args.output {
        Output::Text => text(&rows),
        Output::Json => {
            let strategies: Vec<Value> = rows.iter().map(json).collect();
            format!("{:#}\n", json!({ "schema": "dracpu.strategies/v1", "strategies": strategies }))
        }
    };
    let code = crate::cli::print(&answer)?;
    Ok(if rows.iter().all(|row| row.fault.is_none()) { code } else { ExitCode::FAILURE })
}

/// What the driver of this host says, if one answers.
fn driver_of_this_host(flags: &ConfigFlags) -> Result<Option<NodeReport>, Failure> {
    match crate::cli::live::client(flags.kubelet_root_dir.clone())?.node() {
        Ok(node) => Ok(Some(node)),
        Err(LiveError::NoDaemon { .. }) => Ok(None),
        Err(error) => {
            tracing::warn!("not asked what the driver of this host has: {error}");
            Ok(None)
        }
    }
}

/// The part of a driver's configuration that strategies are loaded with.
fn config_of(node: &NodeReport) -> Result<Config, Failure> {
    let path = |key: &str| node.config.get(key).and_then(Value::as_str).map(Into::into);
    let flags = ConfigFlags {
        sysfs_root: path("--sysfs-root"),
        cache_dir: path("--cache-dir"),
        ..ConfigFlags::default()
    };
    let keys =
        ["cpuDeviceMode", "groupBy", "allocator", "strategies", "strategyOptions", "allowedStrategies"];
    let keys = keys.into_iter().filter_map(|key| Some((key.to_owned(), given(node.config.get(key)?)?)));
    let around = Surroundings { host_name: node.node.clone(), ..Surroundings::default() };
    let (config, _) = flags.over(keys.collect(), &around)?;
    Ok(config)
}

/// A value without the parts that nobody has set.
fn given(value: &Value) -> Option<Value> {
    match value {
        Value::Null => None,
        Value::Array(items) => Some(items.iter().filter_map(given).collect()),
        Value::Object(keys) => {
            let keys = keys.iter().filter_map(|(key, value)| Some((key.clone(), given(value)?)));
            Some(keys.collect::<Map<_, _>>().into())
        }
        other => Some(other.clone()),
    }
}

/// `node`: what a driver has of them.
fn rows<'a>(
    catalogue: &'a Catalogue,
    selection: &'a Selection,
    node: Option<&StrategyReport>,
) -> Vec<Row<'a>> {
    let row = |name: &'a str, source: Option<Source>| {
        let allowed = selection.names().any(|allowed| allowed == name);
        let active = name == selection.allocator;
        let (known, fault) = match node.filter(|_| allowed) {
            None => loaded(catalogue, selection, name),
            Some(node) => of_driver(catalogue, node, name, active),
        };
        Row { name, source, active, allowed, known, fault }
    };
    let missing = selection.names().filter(|name| catalogue.list().all(|(known, _)| known != *name));
    let known = catalogue.list().map(|(name, source)| row(name, Some(source)));
    known.chain(missing.map(|name| row(name, None))).collect()
}

/// What a strategy is when it is loaded now.
fn loaded(catalogue: &Catalogue, selection: &Selection, name: &str) -> (Option<Known>, Option<String>) {
    match catalogue.load(name) {
        Ok(loaded) => {
            let misfit = loaded.node_options(&selection.options_of(name)).err();
            (Some(loaded.into()), misfit.map(|error| error.to_string()))
        }
        Err(error) => (None, Some(error.to_string())),
    }
}

/// What a driver uses of that name, or why it does not.
fn of_driver(
    catalogue: &Catalogue,
    node: &StrategyReport,
    name: &str,
    active: bool,
) -> (Option<Known>, Option<String>) {
    let used = node.active.iter().chain(&node.others).find(|used| used.name == name);
    let Some(used) = used else {
        let unusable = node.unusable.iter().find(|unusable| unusable.name == name);
        let fault = unusable.map(|unusable| unusable.reason.clone());
        let fault = fault.or_else(|| node.problem.clone().filter(|_| active));
        return (
            None,
            Some(fault.unwrap_or_else(|| format!("strategy {name}: the driver does not have it"))),
        );
    };
    // The file may have been replaced by one that the driver could not take over; to load that may take long.
    let same = catalogue.digest(name).filter(|digest| *digest == used.digest);
    let same = same.and_then(|_| catalogue.load(name).ok());
    let known = Known {
        version: used.version.clone().unwrap_or_default(),
        digest: used.digest.clone(),
        summary: same.map(|loaded| loaded.description().summary.clone()),
    };
    (Some(known), None)
}

fn json(row: &Row<'_>) -> Value {
    let source = row.source.as_ref().map(Source::to_string);
    let answer = json!({ "name": row.name, "source": source, "active": row.active, "allowed": row.allowed });
    let known = row.known.as_ref().map(|Known { version, digest, summary }| {
        let summary = summary.as_ref().map(|summary| json!({ "summary": summary }));
        summary.into_iter().fold(json!({ "version": version, "digest": digest }), extended)
    });
    let fault = row.fault.as_ref().map(|fault| json!({ "error": fault }));
    known.into_iter().chain(fault).fold(answer, extended)
}

fn text(rows: &[Row<'_>]) -> String {
    let mut lines = vec![["", "NAME", "VERSION", "DIGEST", "SOURCE"].map(str::to_owned)];
    let mut faults = String::new();
    for row in rows {
        let mark = match (row.active, row.allowed) {
            (true, _) => "*",
            (false, true) => "+",
            (false, false) => "",
        };
        let source = row.source.as_ref().map_or_else(|| "missing".to_owned(), Source::to_string);
        let (version, digest) = match &row.known {
            Some(known) => (known.version.as_str(), known.digest.as_str()),
            None => ("unusable", ""),
        };
        faults.extend(row.fault.iter().map(|fault| format!("{fault}\n")));
        lines.push([mark, row.name, version, short_digest(digest), &source].map(str::to_owned));
    }
    format!("{}{faults}", aligned(&lines))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_a_strategy_does_not_have_are_told_beside_it() {
        let catalogue = Catalogue::new(&[]).unwrap();
        let selection = Selection {
            allocator: "llc-first".to_owned(),
            strategies: Vec::new(),
            strategy_options: serde_json::Map::from_iter([("full-pcpus-only".to_owned(), json!(true))]),
            allowed_strategies: vec!["packed".to_owned()],
        };
        let rows = rows(&catalogue, &selection, None);
        let faults: Vec<_> = rows.iter().filter_map(|row| Some((row.name, row.fault.clone()?))).collect();
        let [("llc-first", said)] = faults.as_slice() else {
            panic!("they are the active one's: {faults:?}")
        };
        assert!(said.contains("options of the node: `full-pcpus-only` (set to true) is no option"), "{said}");
        let told = json(rows.iter().find(|row| row.name == "llc-first").unwrap());
        assert_eq!((told["error"].as_str(), told["version"].is_string()), (Some(said.as_str()), true));
        assert!(text(&rows).ends_with(&format!("{said}\n")));
    }

    #[test]
    fn the_active_strategy_is_marked_and_a_damaged_one_is_said() {
        let damaged = [("packed", b"no wasm".to_vec().into())];
        let catalogue = Catalogue::with_built_in(damaged, &[]).unwrap();
        let selection = Selection {
            allocator: "packed".to_owned(),
            strategies: Vec::new(),
            strategy_options: serde_json::Map::new(),
            allowed_strategies: vec!["nobody".to_owned()],
        };
        let rows = rows(&catalogue, &selection, None);
        let text = text(&rows);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "   NAME    VERSION   DIGEST  SOURCE");
        assert_eq!(lines[1], "*  packed  unusable          built in");
        assert_eq!(lines[2], "+  nobody  unusable          missing");
        assert!(
            lines[3].starts_with("strategy packed: built in: not a valid WebAssembly component"),
            "{text}"
        );
        assert!(lines[4].starts_with("strategy nobody: there is none of this name"), "{text}");
        assert_eq!(json(&rows[0])["active"], json!(true));
        assert_eq!(json(&rows[1])["source"], json!(null));
    }

    #[test]
    fn what_a_driver_uses_and_cannot_use_is_what_it_says() {
        let mut node = crate::live::fixtures::node(Vec::new());
        node.config = json!({
            "cpuDeviceMode": "grouped", "groupBy": "numanode", "allocator": "mine", "reservedCPUs": "0",
            "strategies": [{"name": "mine", "path": "/gone.wasm", "digest": null, "limits": {}, "options": {}}],
            "strategyOptions": {}, "allowedStrategies": ["packed", "other"], "--cache-dir": "/gone",
        });
        let used = |name: &str| crate::live::StrategyIdentity {
            name: name.to_owned(),
            version: Some("2.0.0".to_owned()),
            digest: "sha256:0123456789abcdef".to_owned(),
        };
        node.strategy.active = Some(used("mine"));
        node.strategy.others = vec![used("packed")];
        let reason = "strategy other: there is none".to_owned();
        node.strategy.unusable = vec![crate::live::UnusableReport { name: "other".to_owned(), reason }];
        let config = config_of(&node).unwrap();
        let catalogue = catalogue_of(&config).unwrap();
        let rows = rows(&catalogue, &config.selection, Some(&node.strategy));
        let text = text(&rows);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        let digest = "sha256:0123456789ab";
        assert_eq!(lines[1], ["*", "mine", "2.0.0", digest, "/gone.wasm"], "{text}");
        // What the driver does not use is as it would be loaded.
        assert_eq!((lines[2][0], lines[3][0]), ("external", "llc-first"));
        assert_eq!(lines[4], ["+", "packed", "2.0.0", digest, "built", "in"], "another file by now");
        assert_eq!(lines[5], ["+", "other", "unusable", "missing"]);
        assert!(text.ends_with("strategy other: there is none\n"), "{text}");
    }
}
