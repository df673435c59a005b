//! The scenarios of `tests/scenarios`, played against the real binary by `tests/tools/run_scenarios.py`:
//! faults that users met elsewhere, each with its right behaviour.

use dracpu_tests::support::daemon::dracpu_bin;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Scenarios that wait for a feature, with the reason. The list only shrinks: one that passes must go.
const PENDING: &[(&str, &str)] = &[];

fn run(arguments: &[&str]) -> (bool, String) {
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"));
    let output = Command::new("python3")
        .arg(tests.join("tools/run_scenarios.py"))
        .args(arguments)
        .current_dir(tests)
        .output()
        .expect("python3 runs the scenarios");
    (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn every_scenario_accepts_its_good_answers_and_refuses_its_bad_ones() {
    let (ok, report) = run(&["--self-test", "scenarios"]);
    assert!(ok, "{report}");
}

#[test]
fn every_scenario_passes_but_those_that_wait_for_a_feature() {
    let bin = dracpu_bin().unwrap();
    let (_, report) = run(&[&bin.to_string_lossy(), "scenarios"]);
    let mut failed: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in report.lines() {
        if let Some((id, fault)) = line.strip_prefix("FAIL ").and_then(|rest| rest.split_once(' ')) {
            failed.entry(id).or_default().push(fault);
        }
    }
    println!("{report}");
    assert!(report.lines().last().is_some_and(|line| line.ends_with("failed")), "no closing line: {report}");
    for (id, reason) in PENDING {
        assert!(failed.remove(id).is_some(), "{id} passes (it waited for: {reason}): take it off the list");
    }
    assert!(failed.is_empty(), "scenarios failed: {failed:#?}");
}
