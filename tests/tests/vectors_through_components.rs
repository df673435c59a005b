//! The golden vectors (`tests/vectors`) through the real thing: `dracpu strategy decide` with the built-in
//! component, one process for all of them. What the vectors call differently is put in the options of
//! `packed`; cases that no combination of them stands for are checked against the algorithm alone.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use dracpu_cpuset::CpuSet;
use dracpu_tests::support::daemon::dracpu_bin;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

#[path = "../vectors/reader.rs"]
mod reader;
use reader::{Answer, Case, Machine, lines};

const VECTORS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/vectors");

fn cores(machine: &Machine) -> Vec<CpuSet> {
    let mut cores: BTreeMap<(u32, i64), CpuSet> = BTreeMap::new();
    for (cpu, core, socket, ..) in &machine.cpus {
        cores.entry((*core, *socket)).or_default().insert(*cpu);
    }
    cores.into_values().collect()
}

/// The options of `packed` that stand for a case; none when the kubelet refuses such a combination.
fn options(case: &Case, cores: &[CpuSet]) -> Option<Value> {
    match (case.function.as_str(), case.strategy.as_str(), case.prefer_l3) {
        ("packed", "packed", true) => Some(json!({})),
        ("packed", "packed", false) => Some(json!({ "prefer-align-cpus-by-uncorecache": false })),
        ("packed", "spread", false) => Some(json!({ "distribute-cpus-across-cores": true })),
        ("distributed", "packed", _) if case.group == 1 => {
            Some(json!({ "distribute-cpus-across-numa": true }))
        }
        ("distributed", "packed", _) if case.n.is_multiple_of(case.group) => {
            let free: CpuSet = case.available.parse().unwrap();
            let whole: usize = cores.iter().filter(|core| core.is_subset(&free)).map(CpuSet::len).sum();
            let options = json!({ "distribute-cpus-across-numa": true, "full-pcpus-only": true });
            (whole >= case.n).then_some(options)
        }
        _ => None,
    }
}

#[test]
fn every_case_that_options_can_express_comes_out_of_the_component() {
    let cores: BTreeMap<String, Vec<CpuSet>> = lines(VECTORS, "topologies.jsonl.gz")
        .map(|machine: Machine| (machine.id.clone(), cores(&machine)))
        .collect();
    let cases: Vec<(Case, Value, Answer)> = lines(VECTORS, "cases.jsonl.gz")
        .filter_map(|case: Case| {
            let (options, expected) = (options(&case, &cores[&case.topology])?, case.expected()?);
            Some((case, options, expected))
        })
        .collect();
    assert!(cases.len() > 30_000, "{} cases", cases.len());

    let mut decide = Command::new(dracpu_bin().unwrap())
        .args(["strategy", "decide", "--strategy", "packed", "--machines"])
        .arg(format!("{VECTORS}/topologies.jsonl.gz"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = decide.stdin.take().unwrap();
    let answers = BufReader::new(decide.stdout.take().unwrap()).lines();
    let questions: Vec<String> = cases
        .iter()
        .enumerate()
        .map(|(id, (case, options, _))| {
            let requests = [json!({ "name": "r", "count": case.n })];
            json!({ "id": id, "topology": case.topology, "available": case.available, "options": options, "requests": requests })
                .to_string()
        })
        .collect();
    let writer = std::thread::spawn(move || {
        for question in questions {
            writeln!(stdin, "{question}").unwrap();
        }
    });

    let mut wrong = Vec::new();
    let mut answered = 0;
    for (id, (line, (case, options, expected))) in answers.zip(&cases).enumerate() {
        let answer: Value = serde_json::from_str(&line.unwrap()).unwrap();
        assert_eq!(answer["id"], json!(id));
        answered += 1;
        let found = match (answer["grants"][0]["cpus"].as_str(), answer["denied"]["reason"].as_str()) {
            (Some(cpus), None) => Some(Answer::Cpus(cpus.to_owned())),
            (None, Some("not-enough")) => Some(Answer::NotEnough),
            _ => None,
        };
        if found.as_ref() != Some(expected) {
            wrong.push(format!(
                "{} {} {} group {} of {}, {options}: expected {expected:?}, found {answer}",
                case.topology, case.function, case.n, case.group, case.available
            ));
        }
    }
    writer.join().unwrap();
    assert!(decide.wait().unwrap().success());
    assert_eq!(answered, cases.len());
    assert!(
        wrong.is_empty(),
        "{} of {answered} are wrong, the first ones:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(5)].join("\n")
    );
}
