//! `dracpu explain`: which CPUs a claim has and why these, why a claim was refused, whose a CPU is.
//!
//! `subject` finds what is meant, `cpu` says whose a CPU is; this file puts together and writes.

mod cpu;
mod subject;

use super::live::Daemon;
use super::{Failure, Output};
use crate::driver::ClaimState;
use crate::live::{
    AnswerReport, ClaimReport, Client, ContainerReport, DecisionReport, LiveError, NodeReport, ReplayReport,
    RequestReport, StrategyIdentity,
};
use crate::words::plain;
use clap::builder::NonEmptyStringValueParser;
use dracpu_cpuset::CpuSet;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::process::ExitCode;
use subject::{Meant, Subject, name_of};

/// Explain which CPUs a claim or a pod has and why, why it was refused, or whose a CPU is
///
/// Asks the driver that runs here. It remembers the last claims that it decided since its start: what was asked of which
/// strategy, and the answer; and it asks the strategy the same question again, without changing anything. Of older claims it
/// says what their records say.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  dracpu explain web\n  dracpu explain default/web-0 -o json\n  dracpu explain --cpu 17\n  \
                  dracpu explain web -o json | jq -c '.claims[].decision.question' |\n    \
                  dracpu strategy decide --strategy packed --machine node.yaml --config /etc/dracpu/config.yaml\n\n\
                  The question is there while the driver remembers it; node.yaml is what `dracpu gatherinfo` says of its node."
)]
pub(super) struct Args {
    /// A claim (its UID, its name, or NAMESPACE/NAME) or a pod (the same)
    #[arg(value_name = "CLAIM|POD", required_unless_present = "cpu", conflicts_with = "cpu",
          value_parser = NonEmptyStringValueParser::new())]
    what: Option<String>,

    /// A logical CPU, as the kernel numbers it
    #[arg(long, value_name = "N")]
    cpu: Option<u32>,

    /// Form of the answer
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,

    #[command(flatten)]
    daemon: Daemon,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let client = args.daemon.client()?;
    let answer = match (&args.what, args.cpu) {
        (_, Some(cpu)) => {
            let node = client.node()?;
            let known = node.cpus.online.union(&node.cpus.offline);
            let whose = cpu::whose(&node, cpu).ok_or_else(|| {
                Failure::Failed(anyhow::anyhow!("this machine has no CPU {cpu}: its CPUs are {known}"))
            })?;
            match args.output {
                Output::Text => format!("{}\n", whose.sentence),
                Output::Json => {
                    let answer = json!({"schema": SCHEMA, "node": node.node, "cpu": cpu, "use": whose.what,
                                        "claims": whose.claims, "sentence": whose.sentence});
                    format!("{answer:#}\n")
                }
            }
        }
        (what, None) => {
            let (node, decisions) = (client.node_afresh()?, client.decisions()?.decisions);
            let what = what.as_deref().unwrap_or_default();
            let meant = subject::find(&node, &decisions, what).map_err(|why| Failure::Failed(why.into()))?;
            let Meant { claims, containers } = meant;
            let explained: Vec<Explained<'_>> =
                claims.into_iter().map(|subject| explained(&client, &node, subject)).collect();
            match args.output {
                Output::Text => {
                    let parts = explained.iter().map(text).chain(containers.into_iter().map(without_claims));
                    parts.collect::<Vec<_>>().join("\n")
                }
                Output::Json => {
                    let claims: Vec<Value> = explained.iter().map(json).collect();
                    format!(
                        "{:#}\n",
                        json!({"schema": SCHEMA, "node": node.node, "claims": claims, "containers": containers})
                    )
                }
            }
        }
    };
    super::print(&answer)
}

const SCHEMA: &str = "dracpu.explain/v1";

/// All that there is to say of a claim.
struct Explained<'a> {
    subject: Subject<'a>,
    /// The question asked again; none when there is no question, an error when it cannot be asked.
    replay: Option<Result<ReplayReport, LiveError>>,
    /// What would help a claim that was refused.
    help: Vec<String>,
}

fn explained<'a>(client: &Client, node: &NodeReport, subject: Subject<'a>) -> Explained<'a> {
    let asked = subject.decision.filter(|decision| decision.question.is_some());
    let help = match subject.refused() {
        Some(decision) if !decision.over => help(node, decision),
        _ => Vec::new(),
    };
    Explained { replay: asked.map(|decision| client.replay(&decision.uid)), help, subject }
}

/// What would help a refused claim, from how the node is by now. Its refusal says already what it says.
fn help(node: &NodeReport, decision: &DecisionReport) -> Vec<String> {
    let mut help = Vec::new();
    for request in &decision.requests {
        let count = usize::try_from(request.count).unwrap_or(usize::MAX);
        let free = request.group.intersection(&node.cpus.available);
        if request.free.len() >= count {
            continue; // It was not for their number.
        }
        if free.len() >= count {
            help.push(format!(
                "device {} has {} free CPUs by now: the kubelet tries again by itself",
                request.device,
                free.len()
            ));
            continue;
        }
        let holders: Vec<String> = node
            .claims
            .iter()
            .filter_map(|claim| {
                let holds = claim.cpus.union(&claim.blocked).intersection_len(&request.group);
                (holds > 0).then(|| format!("{} ({holds}, {})", name_of(claim), claim.state))
            })
            .collect();
        help.push(format!(
            "device {} has {} free CPUs of {}; claims hold: {}",
            request.device,
            free.len(),
            request.group.len(),
            if holders.is_empty() { "none".to_owned() } else { holders.join(", ") }
        ));
        if node
            .claims
            .iter()
            .any(|claim| claim.state == ClaimState::Orphan && !claim.cpus.is_disjoint(&request.group))
        {
            help.push("an orphan is freed by `dracpu claims release UID`".to_owned());
        }
    }
    help
}

fn json(explained: &Explained<'_>) -> Value {
    let Explained { subject: Subject { claim, decision }, replay, help } = explained;
    let replay = replay.as_ref().map(|replay| match replay {
        Ok(replay) => json!(replay),
        Err(why) => json!({"error": why.to_string()}),
    });
    json!({"claim": claim, "decision": decision, "replay": replay, "help": help})
}

/// Lines with a label each.
struct Lines(String);

impl Lines {
    fn say(&mut self, label: &str, text: impl AsRef<str>) {
        // Writing to a String does not fail.
        let _infallible = writeln!(self.0, "  {label:<12} {}", plain(text.as_ref()));
    }
}

fn text(explained: &Explained<'_>) -> String {
    let Explained { subject, replay, help } = explained;
    let mut lines = Lines(format!("claim {} ({})\n", plain(&subject.name()), plain(subject.uid())));
    if let Some(claim) = subject.claim {
        held(&mut lines, claim);
    }
    let refused = subject.refused();
    if let Some(refusal) = refused.and_then(|decision| decision.refusal.as_ref()) {
        lines.say("refused", refusal);
        if refused.is_some_and(|decision| decision.over) {
            lines.say("state", "it has been unprepared since: nobody asks for it any more");
        }
    } else if subject.claim.is_none() {
        lines.say("state", "it was prepared here, and holds nothing any more");
        let answer = subject.decision.and_then(|decision| decision.answer.as_ref());
        for grant in answer.iter().flat_map(|answer| &answer.grants) {
            lines.say("had", counted(&grant.cpus));
        }
    }
    let by_record = subject.claim.and_then(|claim| claim.strategy.as_ref());
    match subject.decision {
        Some(decision) => decided(&mut lines, decision, subject.claim),
        None if by_record.is_some() => {
            lines.say("decided by", format!("{}, as its record says", identity(by_record)));
            lines.say("why", "not kept: it was decided before the daemon's start, or long ago");
        }
        None => lines.say("decided by", nobody(subject.claim)),
    }
    if let (Some(replay), Some(decision)) = (replay, subject.decision) {
        lines.say("asked again", again(decision, replay));
    }
    for help in help {
        lines.say("help", help);
    }
    lines.0
}

/// Where a container of a pod without claims runs.
fn without_claims(container: &ContainerReport) -> String {
    let pod = &container.pod;
    let mut lines = Lines(format!(
        "pod {}/{}, container {}\n",
        plain(&pod.namespace),
        plain(&pod.name),
        plain(&container.name)
    ));
    let runs = match (&container.wanted, container.unproven.as_slice()) {
        _ if container.stopped => "it has ended".to_owned(),
        (Some(shared), _) => format!("{}, the shared pool: it has no claim here", counted(shared)),
        (None, said) => format!(
            "left alone until it is known whether it has the claims that it says it has: {}",
            said.join(", ")
        ),
    };
    lines.say("CPUs", runs);
    if let (true, Some(mask)) = (container.differs, &container.mask) {
        lines.say("still on", format!("{}; a change is on its way", counted(mask)));
    }
    lines.0
}

/// What a claim has.
fn held(lines: &mut Lines, claim: &ClaimReport) {
    let whose = match (&claim.pod, &claim.container) {
        (Some(pod), Some(container)) => {
            format!(", container {container} of pod {}/{}", pod.namespace, pod.name)
        }
        _ => String::new(),
    };
    lines.say("state", format!("{}{whose}", claim.state));
    lines.say("CPUs", counted(&claim.cpus));
    for (label, cpus) in [("blocks", &claim.blocked), ("offline", &claim.offline)] {
        if !cpus.is_empty() {
            lines.say(label, counted(cpus));
        }
    }
    for device in claim.devices.iter().filter(|device| !device.device.is_empty()) {
        lines.say("device", format!("{}: {} of {}", device.request, device.cpus, device.device));
    }
    if claim.joins_shared_pool {
        lines.say("shared", "its container also runs on the shared pool");
    }
    if !claim.recorded {
        lines.say(
            "record",
            "none: a container says that it has it, and the API server is asked whether that is so",
        );
    }
}

/// What was asked for a claim, and the answer.
fn decided(lines: &mut Lines, decision: &DecisionReport, claim: Option<&ClaimReport>) {
    let by_record = claim.and_then(|claim| claim.strategy.as_ref());
    let Some(strategy) = &decision.strategy else {
        match by_record {
            Some(_) => lines.say("decided by", identity(by_record)),
            None if claim.is_some() && decision.refusal.is_none() => lines.say("decided by", nobody(claim)),
            None => lines.say("asked", "no strategy: it did not come to that"),
        }
        return;
    };
    lines.say("decided by", format!("{}, {}", identity(Some(strategy)), decision.at));
    for request in &decision.requests {
        lines.say("asked", asked(request));
    }
    if let Some(answer) = &decision.answer {
        lines.say("why", &answer.why);
    }
}

fn asked(request: &RequestReport) -> String {
    let named = request.cpuset.as_ref().map(|cpuset| format!(", namely {cpuset}")).unwrap_or_default();
    format!(
        "{}: {} CPUs of {}{named}; free were {}",
        request.name,
        request.count,
        request.device,
        if request.free.is_empty() { "none".to_owned() } else { counted(&request.free) }
    )
}

/// How the answer to a question that was asked again compares.
fn again(decision: &DecisionReport, replay: &Result<ReplayReport, LiveError>) -> String {
    let replay = match replay {
        Ok(replay) => replay,
        Err(why) => return format!("not possible: {why}"),
    };
    let by = match &decision.strategy {
        Some(then) if then.digest != replay.strategy.digest => {
            format!(" by {}, which is another component than then", identity(Some(&replay.strategy)))
        }
        _ => String::new(),
    };
    let grants = |answer: &Option<AnswerReport>| {
        answer.as_ref().map(|answer| (answer.grants.clone(), answer.joins_shared_pool))
    };
    if grants(&decision.answer) == grants(&replay.answer) {
        return format!("the same answer{by}");
    }
    match (&replay.answer, &replay.refusal) {
        (Some(answer), _) => {
            let cpus: Vec<String> = answer.grants.iter().map(|grant| grant.cpus.to_string()).collect();
            format!("another answer{by}: {}; {}", cpus.join(" and "), answer.why)
        }
        (None, refusal) => format!("refused{by}: {}", refusal.as_deref().unwrap_or("no reason")),
    }
}

/// Who chose the CPUs when no strategy did.
fn nobody(claim: Option<&ClaimReport>) -> &'static str {
    let known = claim.is_some_and(|claim| claim.devices.iter().all(|device| !device.device.is_empty()));
    match known {
        true => "the scheduler: its devices are single CPUs",
        false => "not known: its record is another driver's and says nothing but its CPUs",
    }
}

fn identity(strategy: Option<&StrategyIdentity>) -> String {
    strategy.map_or_else(String::new, |strategy| {
        let version = strategy.version.as_ref().map(|version| format!(" {version}")).unwrap_or_default();
        format!("{}{version} {}", strategy.name, strategy.digest)
    })
}

fn counted(cpus: &CpuSet) -> String {
    format!("{cpus} ({})", cpus.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::fixtures;

    #[test]
    fn a_pod_without_claims_is_told_where_its_containers_run() {
        let mut container = fixtures::container("c", "plain", "2-7");
        assert!(
            without_claims(&container).contains("2-7 (6), the shared pool"),
            "{}",
            without_claims(&container)
        );
        container.mask = Some(CpuSet::from([0]));
        container.differs = true;
        assert!(
            without_claims(&container).contains("still on     0 (1); a change"),
            "{}",
            without_claims(&container)
        );
        container.stopped = true;
        assert!(without_claims(&container).contains("it has ended"));
    }

    #[test]
    fn an_answer_that_is_another_one_by_now_says_which_component_gave_it() {
        let answer = |cpus: &str| AnswerReport {
            grants: vec![crate::live::GrantReport {
                cpus: cpus.parse().unwrap(),
                blocked: CpuSet::new(),
                mems: Vec::new(),
            }],
            joins_shared_pool: false,
            why: format!("because {cpus}"),
        };
        let strategy = |digest: &str| StrategyIdentity {
            name: "s".to_owned(),
            version: Some("1.0.0".to_owned()),
            digest: digest.to_owned(),
        };
        let then = |cpus: Option<&str>| DecisionReport {
            strategy: Some(strategy("sha256:1")),
            answer: cpus.map(answer),
            ..fixtures::decision("u", "c")
        };
        let now = |digest: &str, cpus: Option<&str>, refusal: Option<&str>| {
            Ok(ReplayReport {
                strategy: strategy(digest),
                answer: cpus.map(answer),
                refusal: refusal.map(str::to_owned),
            })
        };
        for (then, now, words) in [
            (then(Some("1")), now("sha256:1", Some("1"), None), "the same answer"),
            (then(None), now("sha256:1", None, Some("no")), "the same answer"),
            (
                then(Some("1")),
                now("sha256:2", Some("1"), None),
                "the same answer by s 1.0.0 sha256:2, which is another",
            ),
            (then(Some("1")), now("sha256:2", Some("2"), None), "than then: 2; because 2"),
            (then(Some("1")), now("sha256:1", None, Some("no room")), "refused: no room"),
            (then(None), now("sha256:1", Some("3"), None), "another answer: 3; because 3"),
            (then(None), Err(LiveError::Refused("gone".to_owned())), "not possible: gone"),
        ] {
            assert!(again(&then, &now).contains(words), "{words} in {}", again(&then, &now));
        }
    }
}
