//! `dracpu doctor`: is this node well? Looks at everything that a claim depends on, changes nothing, and says for each fault
//! what to do.
//!
//! Reading order: `verdict` (what a check answers), `facts` (what can be seen of the node from here), `checks` (pure: facts →
//! verdict), this file (the answer).

mod checks;
mod facts;
mod verdict;

use super::live::Daemon;
use super::text::colour;
use super::{Failure, Output};
use crate::words::plain;
use checks::CHECKS;
use facts::{Facts, Host};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use verdict::{Outcome, Verdict};

/// Check this node: the driver, the kubelet, the container runtime, CDI, records, masks, slices
///
/// Each check is ok, warning (degraded), failed, or unknown: what it needs cannot be seen from here. In the driver's pod that
/// is the kubelet's configuration and the processes of containers; on the host, as root, everything is seen. Exit code 1 when
/// a check failed.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  dracpu doctor\n  dracpu doctor -o json | jq -r '.checks[] | select(.result != \"ok\")'\n  \
                        kubectl exec -n kube-system POD -- /dracpu doctor    # the driver's pod on that node"
)]
pub(super) struct Args {
    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,

    #[command(flatten)]
    daemon: Daemon,

    /// Where the host's processes are shown
    #[arg(long, value_name = "DIR", default_value = "/proc")]
    proc_root: PathBuf,

    /// Where the host's cgroups are mounted
    #[arg(long, value_name = "DIR", default_value = "/sys/fs/cgroup")]
    cgroup_root: PathBuf,

    /// Where the host's /etc is, for the configuration of the container runtime
    #[arg(long, value_name = "DIR", default_value = "/etc")]
    etc_root: PathBuf,
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    let config = args.daemon.config()?;
    for (flag, directory, own) in [
        ("--proc-root", &args.proc_root, "/proc"),
        ("--cgroup-root", &args.cgroup_root, "/sys/fs/cgroup"),
        ("--etc-root", &args.etc_root, "/etc"),
    ] {
        // A container need not have all of its own.
        if directory != Path::new(own) && !directory.is_dir() {
            let error = anyhow::anyhow!("{flag} {}: there is no such directory", directory.display());
            return Err(Failure::Usage(error));
        }
    }
    let host = Host { proc: args.proc_root, cgroup: args.cgroup_root, etc: args.etc_root };
    let facts = Facts::gather(&config, &host).map_err(Failure::Failed)?;
    let answers: Answers = CHECKS.map(|(id, check)| (id, check(&facts)));
    super::print(&match args.output {
        Output::Text => text(&answers, colour()),
        Output::Json => format!("{:#}\n", document(&answers)),
    })?;
    let failed = answers.iter().any(|(_, verdict)| verdict.outcome() == Outcome::Failed);
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

type Answers = [(&'static str, Verdict); CHECKS.len()];

fn document(answers: &Answers) -> Value {
    let check = |(id, verdict): &(&str, Verdict)| {
        json!({
            "id": id,
            "result": verdict.outcome().name(),
            "message": verdict.message(),
            "remedy": verdict.remedy(),
        })
    };
    json!({"schema": "dracpu.doctor/v1", "checks": answers.iter().map(check).collect::<Vec<_>>()})
}

/// A line for each check, its remedy below it; at the end how many there are of each kind.
fn text(answers: &Answers, colour: bool) -> String {
    let ids = answers.iter().map(|(id, _)| id.len()).max().unwrap_or_default();
    let outcomes = Outcome::ALL.map(|outcome| outcome.name().len()).into_iter().max().unwrap_or_default();
    let mut text = String::new();
    for (id, verdict) in answers {
        let name = verdict.outcome().name();
        let name = match colour {
            true => format!("\x1b[{}m{name:outcomes$}\x1b[0m", verdict.outcome().colour()),
            false => format!("{name:outcomes$}"),
        };
        // Writing to a String does not fail.
        let _infallible = writeln!(text, "{id:ids$}  {name}  {}", plain(verdict.message()));
        if let Some(remedy) = verdict.remedy() {
            let _infallible = writeln!(text, "{:ids$}  {:outcomes$}  → {}", "", "", plain(remedy));
        }
    }
    let count = |outcome| answers.iter().filter(|(_, verdict)| verdict.outcome() == outcome).count();
    let counts = Outcome::ALL.map(|outcome| format!("{} {}", count(outcome), outcome.name()));
    text + &counts.join(", ") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers() -> Answers {
        CHECKS.map(|(id, _)| match id {
            "masks" => (id, Verdict::unknown("no processes can be seen", "run on the host")),
            "strategy" => (id, Verdict::failed("it is \x1b[2Jdamaged", "mend it")),
            "orphans" => (id, Verdict::warning("one", "release it")),
            _ => (id, Verdict::ok("well")),
        })
    }

    #[test]
    fn people_get_columns_with_the_remedy_below_and_the_count_at_the_end() {
        let text = text(&answers(), false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "kubelet-cpu-manager  ok       well");
        assert!(lines.contains(&"masks                unknown  no processes can be seen"), "{text}");
        assert!(lines.contains(&"                              → run on the host"), "{text}");
        assert_eq!(lines.last(), Some(&"16 ok, 1 warning, 1 failed, 1 unknown"));
        assert!(text.contains("it is \\u{1b}[2Jdamaged"), "what others wrote moves no cursor: {text}");
        assert!(!text.contains('\x1b'));
    }

    #[test]
    fn colours_change_no_text() {
        let mut painted = super::text(&answers(), true);
        assert!(painted.contains("\x1b[31mfailed "));
        for code in [0, 31, 32, 33, 36] {
            painted = painted.replace(&format!("\x1b[{code}m"), "");
        }
        assert_eq!(painted, super::text(&answers(), false));
    }

    #[test]
    fn scripts_get_one_object_with_every_check_in_its_place() {
        let document = document(&answers());
        assert_eq!(document["schema"], "dracpu.doctor/v1");
        let checks = document["checks"].as_array().unwrap();
        let ids: Vec<&str> = checks.iter().map(|check| check["id"].as_str().unwrap()).collect();
        assert_eq!(
            ids,
            [
                "kubelet-cpu-manager",
                "registration",
                "node-name",
                "nri-version",
                "nri-connected",
                "cdi-dir",
                "cdi-version",
                "records",
                "overlap",
                "stranded",
                "orphans",
                "masks",
                "slices",
                "feature-gates",
                "attribute-limits",
                "cfs-quota",
                "reserved-match",
                "strategy",
                "lock",
            ]
        );
        assert_eq!(
            checks[0],
            json!({"id": "kubelet-cpu-manager", "result": "ok", "message": "well", "remedy": null})
        );
        assert_eq!(checks[17]["result"], "failed");
        assert_eq!(checks[17]["remedy"], "mend it");
    }
}
