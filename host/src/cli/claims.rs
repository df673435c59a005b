//! `dracpu claims`: what the node holds, and the release of what nobody else will free.

use super::live::Daemon;
use super::text::{aligned, colour, short_digest};
use super::{Failure, Output};
use crate::driver::ClaimState;
use crate::live::{ClaimReport, NodeReport, Released};
use crate::words::plain;
use clap::builder::NonEmptyStringValueParser;
use serde_json::json;
use std::fmt::Write as _;
use std::process::ExitCode;

/// Show the claims that hold CPUs of this node: whose they are, which CPUs, and how they are
///
/// Asks the driver that runs here. States: bound (a container that has the claim runs or is being made), waiting
/// (prepared, no container yet), held (its container has ended; or its record was lost and is being made sure of), stranded
/// (its CPUs have become reserved), conflicted (another record names the same CPUs), orphan (the claim object is gone and so
/// are its containers: nobody will unprepare it).
#[derive(Debug, clap::Args)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "Examples:\n  dracpu claims\n  dracpu claims -o json\n  \
                  dracpu claims release 1f6a3c1e-0f5d-4c5e-9d0e-6a2f4c1b7d11\n  \
                  kubectl exec -n kube-system POD -- /dracpu claims    # the driver's pod on that node"
)]
pub(super) struct Args {
    #[command(subcommand)]
    verb: Option<Verb>,
    #[command(flatten)]
    asked: Asked,
}

#[derive(Debug, clap::Args)]
struct Asked {
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    daemon: Daemon,
}

#[derive(Debug, clap::Subcommand)]
enum Verb {
    Release(Release),
}

/// Free the CPUs of an orphan: a claim whose object is gone and that no container has
///
/// The driver asks the API server and looks at its containers at that moment, and refuses in every other case: such a claim
/// is freed when the kubelet unprepares it, once its pod is gone.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dracpu claims release 1f6a3c1e-0f5d-4c5e-9d0e-6a2f4c1b7d11")]
struct Release {
    /// The claim's UID, as `dracpu claims` shows it
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    uid: String,
    #[command(flatten)]
    asked: Asked,
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    match args.verb {
        None => {
            let node = args.asked.daemon.client()?.node_afresh()?;
            super::print(&match args.asked.output {
                Output::Text => text(&node, colour()),
                Output::Json => {
                    let answer =
                        json!({"schema": "dracpu.claims/v1", "node": node.node, "claims": node.claims});
                    format!("{answer:#}\n")
                }
            })
        }
        Some(Verb::Release(Release { uid, asked })) => {
            let Released { uid, cpus, blocked } = asked.daemon.client()?.release(&uid)?;
            let (cpus, blocked) = (cpus.to_string(), blocked.to_string());
            super::print(&match asked.output {
                Output::Text if blocked.is_empty() => format!("released claim {uid}: it held CPUs {cpus}\n"),
                Output::Text => format!("released claim {uid}: it held CPUs {cpus} and blocked {blocked}\n"),
                Output::Json => {
                    let answer =
                        json!({"schema": "dracpu.release/v1", "uid": uid, "cpus": cpus, "blocked": blocked});
                    format!("{answer:#}\n")
                }
            })
        }
    }
}

fn text(node: &NodeReport, colour: bool) -> String {
    if node.claims.is_empty() {
        return format!("no claim holds CPUs of node {}\n", plain(&node.node));
    }
    let header = ["CLAIM", "STATE", "CPUS", "POD", "CONTAINER", "STRATEGY", "DIGEST", "UID"];
    let mut lines = vec![header.map(str::to_owned)];
    lines.extend(node.claims.iter().map(row));
    let mut text = aligned(&lines);
    if colour {
        text = coloured(&text, &node.claims);
    }
    for (state, what) in [
        (
            ClaimState::Conflicted,
            "the CPUs are in no pool: delete the pods of all claims that share them but one",
        ),
        (ClaimState::Stranded, "the claim keeps its CPUs, which are reserved by now, until its pod is gone"),
        (ClaimState::Orphan, "nobody will unprepare it; `dracpu claims release UID` frees its CPUs"),
    ] {
        if node.claims.iter().any(|claim| claim.state == state) {
            // Writing to a String does not fail.
            let _infallible = writeln!(text, "{state}: {what}");
        }
    }
    text
}

fn row(claim: &ClaimReport) -> [String; 8] {
    let or_none = |text: String| if text.is_empty() { "-".to_owned() } else { plain(&text) };
    let mut cpus = claim.cpus.to_string();
    for (set, what) in [(&claim.blocked, "blocks"), (&claim.offline, "offline")] {
        if !set.is_empty() {
            cpus += &format!(" ({what} {set})");
        }
    }
    let name =
        if claim.name.is_empty() { String::new() } else { format!("{}/{}", claim.namespace, claim.name) };
    let pod = claim.pod.as_ref().map(|pod| format!("{}/{}", pod.namespace, pod.name));
    let strategy = claim.strategy.as_ref().map(|strategy| match &strategy.version {
        Some(version) => format!("{} {version}", strategy.name),
        None => strategy.name.clone(),
    });
    let digest = claim.strategy.as_ref().map(|strategy| short_digest(&strategy.digest).to_owned());
    [
        or_none(name),
        claim.state.to_string(),
        or_none(cpus),
        or_none(pod.unwrap_or_default()),
        or_none(claim.container.clone().unwrap_or_default()),
        or_none(strategy.unwrap_or_default()),
        or_none(digest.unwrap_or_default()),
        or_none(claim.uid.clone()),
    ]
}

/// The table with each claim's line in the colour of its state.
fn coloured(table: &str, claims: &[ClaimReport]) -> String {
    let mut lines = table.lines();
    let header = lines.next().map(|header| format!("\x1b[1m{header}\x1b[0m\n")).unwrap_or_default();
    let line = |(line, claim): (&str, &ClaimReport)| {
        let colour = match claim.state {
            ClaimState::Conflicted | ClaimState::Orphan => 31,
            ClaimState::Stranded | ClaimState::Held => 33,
            ClaimState::Bound => 32,
            ClaimState::Waiting => 36,
        };
        format!("\x1b[{colour}m{line}\x1b[0m\n")
    };
    header + &lines.zip(claims).map(line).collect::<String>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::fixtures;

    #[test]
    fn claims_stand_in_columns_with_what_to_do_about_those_that_need_somebody() {
        let node = fixtures::node(vec![
            fixtures::claim("u-1", "web", ClaimState::Bound, "0-1", "4-5"),
            fixtures::claim("u-2", "old", ClaimState::Orphan, "2", ""),
        ]);
        let text = text(&node, false);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[0].starts_with("CLAIM        STATE   CPUS              POD  "), "{text}");
        assert!(
            lines[1].starts_with("default/web  bound   0-1 (blocks 4-5)  default/of-web  app  "),
            "{text}"
        );
        assert!(lines[1].ends_with("packed 0.1.0  sha256:0123456789ab  u-1"), "{text}");
        assert!(lines[2].contains("orphan  2 ") && lines[2].contains(" -  "), "an orphan has no pod: {text}");
        assert!(lines[3].starts_with("orphan: ") && lines[3].contains("dracpu claims release UID"), "{text}");
        assert_eq!(lines.len(), 4);
    }

    #[test]
    fn colours_are_for_terminals_and_change_no_text() {
        let node = fixtures::node(vec![fixtures::claim("u", "c", ClaimState::Bound, "0", "")]);
        let (bare, painted) = (text(&node, false), text(&node, true));
        assert!(!bare.contains('\x1b') && painted.contains("\x1b[32m"));
        let mut stripped = painted;
        for code in ["\x1b[1m", "\x1b[32m", "\x1b[0m"] {
            stripped = stripped.replace(code, "");
        }
        assert_eq!(stripped, bare);
    }

    #[test]
    fn what_others_named_cannot_write_to_the_terminal() {
        let mut claim = fixtures::claim("u", "c", ClaimState::Bound, "0", "");
        claim.container = Some("a\x1b[2Jb".to_owned());
        let text = text(&fixtures::node(vec![claim]), false);
        assert!(!text.contains('\x1b') && text.contains("a\\u{1b}[2Jb"), "{text}");
    }

    #[test]
    fn a_node_without_claims_says_so() {
        assert_eq!(text(&fixtures::node(Vec::new()), false), "no claim holds CPUs of node node-a\n");
    }
}
