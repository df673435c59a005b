use super::{Failure, Output, aligned, catalogue_of, extended, short_digest};
use crate::config::Selection;
use crate::config::flags::ConfigFlags;
use crate::strategy::{Catalogue, LoadError, Loaded, Source};
use serde_json::{Value, json};
use std::process::ExitCode;

/// List the strategies that are built in and configured
///
/// Loads each as the daemon does, and checks its options. The active one (`allocator` of the configuration) is marked
/// with `*`, those that claims may name (`allowedStrategies`) with `+`. Exits with 1 when one cannot be used.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dracpu strategy list\n  \
    dracpu strategy list --config=config.yaml -o json")]
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
    loaded: Result<Loaded, LoadError>,
    /// Why its options of the configuration are none that it has.
    misfit: Option<String>,
}

impl Row<'_> {
    fn fault(&self) -> Option<String> {
        self.loaded.as_ref().err().map(ToString::to_string).or_else(|| self.misfit.clone())
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let catalogue = catalogue_of(&config)?;
    let rows = rows(&catalogue, &config.selection);
    let answer = match args.output {
        Output::Text => text(&rows),
        Output::Json => {
            let strategies: Vec<Value> = rows.iter().map(json).collect();
            format!("{:#}\n", json!({ "schema": "dracpu.strategies/v1", "strategies": strategies }))
        }
    };
    let code = crate::cli::print(&answer)?;
    Ok(if rows.iter().all(|row| row.fault().is_none()) { code } else { ExitCode::FAILURE })
}

fn rows<'a>(catalogue: &'a Catalogue, selection: &'a Selection) -> Vec<Row<'a>> {
    let row = |name: &'a str, source: Option<Source>| {
        let loaded = catalogue.load(name);
        let misfit = loaded.as_ref().ok().and_then(|loaded| misfit(loaded, selection, name));
        let allowed = selection.names().any(|allowed| allowed == name);
        Row { name, source, active: name == selection.allocator, allowed, loaded, misfit }
    };
    let missing = selection.names().filter(|name| catalogue.list().all(|(known, _)| known != *name));
    let known = catalogue.list().map(|(name, source)| row(name, Some(source)));
    known.chain(missing.map(|name| row(name, None))).collect()
}

fn misfit(loaded: &Loaded, selection: &Selection, name: &str) -> Option<String> {
    loaded.node_options(&selection.options_of(name)).err().map(|error| error.to_string())
}

fn json(row: &Row<'_>) -> Value {
    let source = row.source.as_ref().map(Source::to_string);
    let answer = json!({ "name": row.name, "source": source, "active": row.active, "allowed": row.allowed });
    let known = row.loaded.as_ref().ok().map(|loaded| {
        let description = loaded.description();
        json!({ "version": description.version, "digest": loaded.digest(), "summary": description.summary })
    });
    let fault = row.fault().map(|fault| json!({ "error": fault }));
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
        let (version, digest) = match &row.loaded {
            Ok(loaded) => (loaded.description().version.as_str(), loaded.digest()),
            Err(_) => ("unusable", ""),
        };
        faults.extend(row.fault().map(|fault| format!("{fault}\n")));
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
        let rows = rows(&catalogue, &selection);
        let faults: Vec<_> = rows.iter().filter_map(|row| Some((row.name, row.fault()?))).collect();
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
        let rows = rows(&catalogue, &selection);
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
}
