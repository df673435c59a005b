use super::{Failure, Output, catalogue, extended};
use crate::config::flags::ConfigFlags;
use crate::strategy::{ExplicitCpuset, Inspection};
use serde_json::{Value, json};
use std::process::ExitCode;

/// Show what a component is, and whether this host can run it
///
/// Exits with 1 when it cannot.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dracpu strategy inspect packed\n  \
    dracpu strategy inspect ./mine.wasm -o json")]
pub(super) struct Args {
    /// Component file, or the name of a strategy that is built in or configured
    #[arg(value_name = "FILE|NAME")]
    what: String,
    #[command(flatten)]
    config: ConfigFlags,
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let inspected =
        catalogue(&config.strategies)?.inspect(&args.what).map_err(|error| Failure::Failed(error.into()))?;
    let answer = json(&inspected);
    let code = crate::cli::print(&match args.output {
        Output::Json => format!("{answer:#}\n"),
        Output::Text => text(&answer),
    })?;
    Ok(if inspected.loaded.is_ok() { code } else { ExitCode::FAILURE })
}

fn json(inspected: &Inspection) -> Value {
    let answer = json!({
        "schema": "dracpu.strategy/v1",
        "source": inspected.source.to_string(),
        "size": inspected.size,
        "digest": inspected.digest,
        "imports": inspected.imports,
        "exports": inspected.exports,
        "usable": inspected.loaded.is_ok(),
    });
    let loaded = match &inspected.loaded {
        Ok(loaded) => loaded,
        Err(error) => return extended(answer, json!({ "problems": [error.fault.to_string()] })),
    };
    let description = loaded.description();
    let more = json!({
        "name": description.name,
        "version": description.version,
        "summary": description.summary,
        "explicitCpuset": match description.explicit_cpuset {
            ExplicitCpuset::Refused => "refused",
            ExplicitCpuset::Accepted => "accepted",
            ExplicitCpuset::Required => "required",
        },
        "publishes": description.publishes,
        "needs": description.needs,
        "problems": [],
        "optionsSchema": description.options_schema,
    });
    extended(answer, more)
}

/// A line per key; the schema, which is an object, last and indented.
fn text(answer: &Value) -> String {
    let mut text = String::new();
    for (key, value) in answer.as_object().into_iter().flatten().filter(|(key, _)| *key != "schema") {
        let value = match value {
            Value::String(value) => value.clone(),
            Value::Array(items) if items.is_empty() => "none".to_owned(),
            Value::Array(items) => {
                let items: Vec<&str> = items.iter().filter_map(Value::as_str).collect();
                items.join("\n                ")
            }
            Value::Object(_) => format!("{value:#}"),
            other => other.to_string(),
        };
        text += &format!("{key:14}  {value}\n");
    }
    text
}
