//! `dracpu simulate`: a node's story on the real ledger, driver, CDI files and strategies, without sockets.

mod api;
mod event;
mod node;
mod runtime;
mod without;

use super::{Failure, machine, print};
use crate::config::ConfigFlags;
use anyhow::{Context as _, anyhow, bail};
use dracpu_topology::yaml;
use event::Event;
use node::{Node, Stage, outcome};
use serde_json::{Map, Value};
use std::fs::File;
use std::io::{BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Play a node's story: claims, containers, crashes
///
/// Events are read as JSON Lines or as a YAML list, one answer is written for each; JSON Lines are answered as they
/// come. The driver, its
/// strategies and its CDI files are the real ones; kubelet, container runtime and API server are stand-ins.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example, two claims and a restart between them:\n  \
    dracpu simulate --machine=two-socket - <<END\n  \
    {\"op\":\"prepare\",\"claim\":\"A\",\"requests\":[{\"name\":\"r\",\"device\":\"cpudevnuma000\",\"cpus\":\"2\"}]}\n  \
    {\"op\":\"create\",\"container\":\"a\",\"pod\":\"p\",\"claims\":[\"A\"]}\n  \
    {\"op\":\"crash\"}\n  \
    {\"op\":\"prepare\",\"claim\":\"B\",\"requests\":[{\"name\":\"r\",\"device\":\"cpudevnuma000\",\"cpus\":\"2\"}]}\n  \
    {\"op\":\"state\"}\n  \
    END")]
pub(super) struct Args {
    /// The story; - for standard input
    #[arg(value_name = "FILE")]
    story: PathBuf,
    /// Machine to play it on: a sysfs directory or .tar.gz of one, a file written by `topology -o json` or
    /// `gatherinfo`, or an example of `topology --list` [default: this host]
    #[arg(long, value_name = "WHAT")]
    machine: Option<String>,
    #[command(flatten)]
    config: ConfigFlags,
    /// Form of the answers
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Output {
    #[default]
    Text,
    Json,
}

/// Plays the story. Refused events are answers, not failures.
///
/// # Errors
/// When the configuration, the machine or the story cannot be used.
pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    let config = args.config.load()?;
    let machine = machine::load(args.machine.as_deref(), &config)?;
    let events = read(&args.story).map_err(Failure::Usage)?;
    let home = tempfile::tempdir().map_err(|error| Failure::Failed(error.into()))?;
    let stage = Stage {
        flags: args.config,
        config,
        topology: machine.topology,
        reserved: machine.reserved,
        cdi_dir: home.path().join("cdi"),
    };
    let mut node = Node::start(stage).map_err(Failure::Usage)?;
    let tasks = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let tasks = tasks.map_err(|error| Failure::Failed(error.into()))?;
    for event in events {
        let event = event.map_err(Failure::Usage)?;
        let op = event.get("op").cloned().unwrap_or(Value::Null);
        let result = match serde_json::from_value::<Event>(event) {
            Ok(event) => tasks.block_on(node.play(event)),
            Err(error) => Err(anyhow::Error::new(error).context("this event cannot be understood")),
        };
        let mut answer = Map::from_iter([("op".to_owned(), op)]);
        if let Value::Object(rest) = outcome(result) {
            answer.extend(rest);
        }
        print(&line(&answer, args.output))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Events of a story, not looked into. Those of JSON Lines come as they are written, so that who writes them can wait
/// for the answer to one before the next.
type Events = Box<dyn Iterator<Item = anyhow::Result<Value>>>;

fn read(story: &Path) -> anyhow::Result<Events> {
    let mut story: (String, Box<dyn BufRead>) = if story == Path::new("-") {
        ("standard input".to_owned(), Box::new(std::io::stdin().lock()))
    } else {
        let name = story.display().to_string();
        let file = File::open(story).with_context(|| name.clone())?;
        (name, Box::new(BufReader::new(file)))
    };
    let (name, text) = (&story.0, &mut story.1);
    let mut start = String::new();
    let mut blank = 0;
    while text.read_line(&mut start).with_context(|| name.clone())? > 0 && start.trim().is_empty() {
        start.clear();
        blank += 1;
    }
    if start.trim_start().starts_with('{') {
        return Ok(Box::new(lines(story.0, start, blank, story.1)));
    }
    text.read_to_string(&mut start).with_context(|| name.clone())?;
    let error = match yaml::parse::<Value>(&start) {
        Ok(Value::Array(events)) => return Ok(Box::new(events.into_iter().map(Ok))),
        Ok(_) => "it does not begin with `{`, and is no YAML list".to_owned(),
        Err(error) => error,
    };
    bail!(
        "the story is neither JSON Lines (a line for each event: an object with `op`) nor a YAML list of \
         events: {error}"
    );
}

fn lines(
    name: String,
    first: String,
    blank: usize,
    rest: Box<dyn BufRead>,
) -> impl Iterator<Item = anyhow::Result<Value>> {
    let lines = std::iter::once(Ok(first)).chain(rest.lines()).enumerate();
    let filled = lines.filter(|(_, line)| line.as_ref().map_or(true, |line| !line.trim().is_empty()));
    filled.map(move |(at, line)| {
        let line = line.with_context(|| name.clone())?;
        serde_json::from_str(&line).map_err(|error| {
            let (line, column) = (blank + at + 1, error.column());
            // The reader counts lines too, and always comes to one.
            let why = error.to_string();
            let why = why.strip_suffix(&format!(" at line 1 column {column}")).unwrap_or(&why);
            anyhow!(
                "line {line} of the story is not JSON ({why}, at character {column}); in JSON Lines each line is an \
                 event: an object with `op`"
            )
        })
    })
}

fn line(answer: &Map<String, Value>, output: Output) -> String {
    if output == Output::Json {
        return format!("{}\n", Value::from(answer.clone()));
    }
    let mut words = Vec::new();
    for (key, value) in answer {
        match (key.as_str(), value) {
            ("op", Value::String(op)) => words.push(format!("{op}:")),
            ("ok", Value::Bool(ok)) => words.push((if *ok { "ok" } else { "refused" }).to_owned()),
            (_, Value::Object(map)) if map.is_empty() => {}
            (_, Value::Array(list)) if list.is_empty() => {}
            (_, Value::String(text)) => words.push(format!("{key} {text}")),
            (_, other) => words.push(format!("{key} {other}")),
        }
    }
    words.join(" ") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn story(text: &str) -> anyhow::Result<Vec<Value>> {
        let file = tempfile::NamedTempFile::new()?;
        std::fs::write(file.path(), text)?;
        read(file.path())?.collect()
    }

    #[test]
    fn a_story_is_json_lines_or_a_yaml_list() {
        let events = [json!({"op": "state"}), json!({"op": "crash"})];
        for text in [
            "{\"op\":\"state\"}\n\n  {\"op\":\"crash\"}\n",
            "- op: state\n- {op: crash}\n",
            "[{\"op\":\"state\"},{\"op\":\"crash\"}]",
        ] {
            assert_eq!(story(text).unwrap(), events, "{text}");
        }
        let error = format!("{:#}", story("{\"op\":\"state\"}\n{\"op\":").unwrap_err());
        assert!(error.starts_with("line 2 of the story is not JSON (EOF while parsing a value"), "{error}");
        assert!(error.contains(", at character 6); in JSON Lines each line is an event"), "{error}");
        for text in ["op: state", "hello", "x\n{\"op\":\"state\"}", "- {op"] {
            let error = format!("{:#}", story(text).unwrap_err());
            assert!(error.starts_with("the story is neither JSON Lines (a line for each event"), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn events_with_unknown_keys_or_ops_are_not_taken_for_others() {
        for (text, word) in [
            (json!({"op": "unprepare", "claim": "A", "clam": "B"}), "clam"),
            (json!({"op": "create", "container": "a", "pod": "p", "cpus": "1"}), "cpus"),
            (json!({"op": "explode"}), "explode"),
            (json!({"claim": "A"}), "op"),
        ] {
            let error = serde_json::from_value::<Event>(text).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn people_are_told_what_there_is_and_not_what_there_is_not() {
        let answer = json!({"op": "create", "ok": true, "cpus": "2-3", "updates": {}, "claims": {"A": "2-3"}, "orphans": []});
        let Value::Object(answer) = answer else { unreachable!() };
        assert_eq!(line(&answer, Output::Text), "create: ok cpus 2-3 claims {\"A\":\"2-3\"}\n");
    }
}
