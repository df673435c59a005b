use super::{Failure, Output, catalogue_of, extended};
use crate::config::flags::ConfigFlags;
use crate::config::strategy_name;
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
    let inspected = catalogue_of(&config)?
        .inspect(&strategy_name(args.what.clone()))
        .map_err(|error| Failure::Failed(error.into()))?;
    if let (Output::Text, None, Err(_)) = (args.output, &inspected.content, &inspected.loaded) {
        // Nothing to show but why.
        return inspected.loaded.map(|_| ExitCode::SUCCESS).map_err(|error| Failure::Failed(error.into()));
    }
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
        "size": inspected.content.as_ref().map(|(size, _)| size),
        "digest": inspected.content.as_ref().map(|(_, digest)| digest),
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
        "problems": loaded.remarks(),
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

#[cfg(test)]
mod tests {
    use super::super::catalogue;
    use super::*;

    /// What is said of a file that is none for this host; it has no line break.
    fn problem(what: &str) -> (Value, String) {
        let answer = json(&catalogue(&[]).unwrap().inspect(what).unwrap());
        assert_eq!((&answer["schema"], &answer["usable"]), (&json!("dracpu.strategy/v1"), &json!(false)));
        let [problem] = answer["problems"].as_array().unwrap().as_slice() else { panic!("{answer}") };
        let problem = problem.as_str().unwrap().to_owned();
        assert!(!problem.contains('\n'), "{problem}");
        (answer, problem)
    }

    #[test]
    fn files_that_are_no_strategy_are_answered_with_what_they_are_and_the_problem() {
        let dir = tempfile::tempdir().unwrap();
        for (bytes, words) in [
            (b"\0asm\x01\0\0\0".as_slice(), "a core WebAssembly module, not a component"),
            (b"#!/bin/sh\n", "does not begin as WebAssembly does"),
            (b"\0asm\x07\0\x09\0", "not a valid WebAssembly component"),
        ] {
            let file = dir.path().join("file");
            std::fs::write(&file, bytes).unwrap();
            let (answer, problem) = problem(file.to_str().unwrap());
            assert!(problem.contains(words), "{problem}");
            assert_eq!(answer["size"], json!(bytes.len()));
            assert!(answer["digest"].as_str().unwrap().starts_with("sha256:"));
        }
    }

    #[test]
    fn what_looks_like_a_path_is_one() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            at("pipe").as_str(),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        for (what, words) in [
            (at(""), "it is a directory"),
            (at("none"), "there is no such file"),
            (at("pipe"), "it is a named pipe, not a regular file"),
            ("no-such-file.wasm".to_owned(), "cannot read no-such-file.wasm: there is no such file"),
        ] {
            let (answer, problem) = problem(&what);
            assert!(problem.contains(words), "{problem}");
            assert_eq!(answer["digest"], Value::Null);
            assert!(matches!(super::super::load(&catalogue(&[]).unwrap(), &what), Err(Failure::Usage(_))));
        }
        let unknown = catalogue(&[]).unwrap().inspect("nobody").unwrap_err().to_string();
        assert!(unknown.contains("there is none of this name"), "{unknown}");
    }
}
