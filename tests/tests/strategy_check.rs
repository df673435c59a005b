//! `dracpu strategy check` against a guest for every kind of lie (`tests/guests`): each is found, and each line that
//! is printed shows the same when `dracpu strategy decide` is asked it.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

mod guests;

use dracpu_tests::support::daemon::dracpu_bin;
use dracpu_tests::support::guests::HIGHEST_FIRST;
use guests::GUESTS;
use serde_json::{Value, json};
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

/// Guests as files.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn guest(&self, name: &str) -> PathBuf {
        let path = self.0.path().join(name).with_extension("wasm");
        std::fs::write(&path, &GUESTS[name]).unwrap();
        path
    }
}

fn dracpu(arguments: &[&str], input: &str) -> Output {
    let mut command = Command::new(dracpu_bin().unwrap());
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_owned();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    output
}

fn lines(output: &[u8]) -> Vec<Value> {
    let text = std::str::from_utf8(output).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// The violations that a check finds, and its summary; the guest's file is there while this is.
struct Checked {
    _files: Files,
    path: String,
    violations: Vec<Value>,
    summary: Value,
}

fn check(guest: &str, more: &[&str]) -> Checked {
    let files = Files::new();
    let path = files.guest(guest).display().to_string();
    let arguments = [&["strategy", "check", &path, "-o", "json"], more].concat();
    let output = dracpu(&arguments, "");
    let violations = lines(&output.stdout);
    // The last line; what the guest logs comes before.
    let words = String::from_utf8(output.stderr).unwrap();
    let summary: Value = serde_json::from_str(words.lines().last().unwrap()).unwrap();
    assert_eq!(summary["schema"], "dracpu.check/v1");
    assert_eq!(summary["violations"], json!(violations.len()), "{summary}");
    let code = i32::from(!violations.is_empty());
    assert_eq!(output.status.code(), Some(code), "{guest}: {summary}");
    // Asked again as they were printed.
    let text = String::from_utf8(output.stdout).unwrap();
    let answers = dracpu(&["strategy", "decide", "--strategy", &path], &text);
    assert!(answers.status.success(), "{guest}: {}", String::from_utf8_lossy(&answers.stdout));
    let answers = lines(&answers.stdout);
    assert_eq!(answers.len(), violations.len(), "{guest}");
    for (violation, answer) in violations.iter().zip(&answers) {
        assert_eq!(violation["id"], answer["id"]);
        match violation["violation"]["kind"].as_str().unwrap() {
            "not-deterministic" => assert!(answer["grants"].is_array(), "{guest}: {answer}"),
            kind => {
                assert_eq!(answer["fault"]["kind"], kind, "{guest}: {answer}");
                assert_eq!(answer["fault"]["message"], violation["violation"]["message"], "{guest}");
            }
        }
    }
    Checked { _files: files, path, violations, summary }
}

/// Every violation is of this kind, and said in these words.
fn is_found(guest: &str, kind: &str, words: &str) {
    let violations = check(guest, &[]).violations;
    assert!(!violations.is_empty(), "{guest} was believed");
    for violation in violations {
        let violation = &violation["violation"];
        assert_eq!(violation["kind"], kind, "{guest}: {violation}");
        assert!(violation["message"].as_str().unwrap().contains(words), "{guest}: {violation}");
    }
}

#[test]
fn an_honest_guest_breaks_no_rule() {
    let Checked { violations, summary, .. } = check("honest", &["--cases", "3000"]);
    assert_eq!(violations, [Value::Null; 0]);
    assert_eq!((&summary["questions"], &summary["stopped"]), (&json!(3000), &json!(false)));
    assert!(
        summary["granted"].as_u64().unwrap() > 1000 && summary["denied"].as_u64().unwrap() > 100,
        "{summary}"
    );
}

#[test]
fn every_wrong_answer_is_found() {
    for (guest, words) in [
        ("too-few", "CPU"),
        ("too-many", "CPU"),
        ("foreign-group", ""),
        ("taken", ""),
        ("reserved", ""),
        ("overlap", ""),
        ("duplicate-request", "grants for"),
        ("huge-answer", "limits.transferBytes"),
        ("blocks-its-own", "blocked CPUs of request"),
        ("blocks-taken", "blocked CPUs of request"),
        ("no-such-node", "99"),
        ("trailing-words", "not canonical"),
        ("lies-by-option", "CPU"),
        ("lies-in-a-branch", "CPU"),
        ("fiftieth-call", "CPU"),
        ("holes", ""),
        ("offers-too-much", "capacity"),
    ] {
        is_found(guest, "bad-answer", words);
    }
}

#[test]
fn every_crash_and_every_excess_is_found() {
    for (guest, kind, words) in [
        ("panics", "trap", "about to panic"),
        ("deep-recursion", "trap", "call stack exhausted"),
        ("endless-loop", "out-of-fuel", "units of fuel"),
        ("memory-bomb", "memory", "bytes of memory"),
    ] {
        is_found(guest, kind, words);
    }
}

#[test]
fn what_an_instance_keeps_is_found_with_the_questions_that_it_takes() {
    let Checked { path, violations, _files, .. } = check("remembers", &["--cases", "600"]);
    assert!(!violations.is_empty());
    for violation in violations {
        assert_eq!(violation["violation"]["kind"], "not-deterministic");
        // One earlier question is enough for this guest, and no more are printed.
        assert_eq!(violation["before"].as_array().unwrap().len(), 1, "{violation}");
        let grants = |before: &Value| {
            let mut question = violation.clone();
            question["before"] = before.clone();
            let output = dracpu(&["strategy", "decide", "--strategy", &path], &question.to_string());
            lines(&output.stdout)[0]["grants"].clone()
        };
        assert_ne!(grants(&violation["before"]), grants(&json!([])), "{violation}");
    }
}

#[test]
fn an_instance_that_wears_out_is_found_though_the_daemon_would_replace_it() {
    let violations = check("ages", &[]).violations;
    assert!(!violations.is_empty());
    for violation in violations {
        assert_eq!(violation["violation"]["kind"], "trap");
        assert!(!violation["before"].as_array().unwrap().is_empty(), "{violation}");
    }
}

#[test]
fn the_fiftieth_call_is_shown_with_forty_nine_before() {
    let violations = check("fiftieth-call", &["--cases", "600"]).violations;
    assert!(!violations.is_empty());
    for violation in violations {
        assert_eq!(violation["before"].as_array().unwrap().len(), 49);
    }
}

#[test]
fn what_breaks_no_rule_but_leaves_pods_waiting_is_said() {
    for (guest, words) in [
        ("blocks-uncounted", "refused a claim that its own offers have room for"),
        ("offers-nothing", "offered no CPU of any device"),
    ] {
        let Checked { violations, summary, .. } = check(guest, &["--cases", "600"]);
        assert_eq!(violations, [Value::Null; 0]);
        let remarks = summary["remarks"].as_array().unwrap();
        assert_eq!(remarks.len(), 1, "{guest}: {summary}");
        assert!(remarks[0].as_str().unwrap().contains(words), "{guest}: {summary}");
    }
    assert_eq!(check("honest", &["--cases", "600"]).summary["remarks"], json!([]));
}

#[test]
fn a_strategy_that_cannot_say_what_it_is_has_failed() {
    let files = Files::new();
    let output = dracpu(&["strategy", "check", files.guest("trap-in-describe").to_str().unwrap()], "");
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot describe itself"));
}

#[test]
fn the_same_seed_finds_the_same_and_another_one_something_else() {
    let found = |seed: &str| check("too-few", &["--cases", "600", "--seed", seed]).violations;
    let once = found("4");
    assert_eq!(once, found("4"));
    assert_ne!(once, found("5"));
}

#[test]
fn machines_can_be_given() {
    let files = Files::new();
    let guest = files.guest("too-few").display().to_string();
    let machines = tempfile::tempdir().unwrap();
    let examples = concat!(env!("CARGO_MANIFEST_DIR"), "/machines/");
    for name in ["small.yaml", "holes.yaml"] {
        std::fs::copy(format!("{examples}{name}"), machines.path().join(name)).unwrap();
    }
    let machines = machines.path().to_str().unwrap();
    let output = dracpu(&["strategy", "check", &guest, "--machines", machines, "--cases", "500"], "");
    assert_eq!(output.status.code(), Some(1));
    let violations = lines(&output.stdout);
    assert!(violations.iter().all(|violation| violation["topology"] == "holes.yaml"));
    let text = String::from_utf8(output.stdout).unwrap();
    let answers = dracpu(&["strategy", "decide", "--strategy", &guest, "--machines", machines], &text);
    assert!(lines(&answers.stdout).iter().all(|answer| answer["fault"]["kind"] == "bad-answer"));
    // The summary says how.
    let summary = String::from_utf8(output.stderr).unwrap();
    assert!(
        summary.contains(&format!("dracpu strategy decide --strategy {guest} --machines {machines}")),
        "{summary}"
    );

    let none = tempfile::tempdir().unwrap();
    let output = dracpu(&["strategy", "check", &guest, "--machines", none.path().to_str().unwrap()], "");
    assert_eq!(output.status.code(), Some(64));
}

/// A configuration with a strategy of this digest and the CPUs that a node keeps.
fn configuration(files: &Files, digest: &str) -> String {
    let component = files.0.path().join("named.wasm");
    std::fs::write(&component, HIGHEST_FIRST).unwrap();
    let entry =
        json!({"name": "highest-first", "path": component, "digest": digest, "limits": {"fuel": 50_000_000}});
    let config = json!({
        "allocator": "packed",
        "strategyOptions": {"full-pcpus-only": true},
        "strategies": [entry],
        "reservedCPUs": "0",
    });
    let path = files.0.path().join("config.yaml");
    std::fs::write(&path, config.to_string()).unwrap();
    format!("--config={}", path.display())
}

#[test]
fn a_configured_strategy_is_found_by_name_with_its_digest_limits_and_options() {
    const NAME: &str = "highest-first";
    let files = Files::new();
    let config = configuration(&files, &dracpu::strategy::digest(HIGHEST_FIRST));
    let machine = ["--machine", "desktop-smt"];

    let question = r#"{"available":"1-3","requests":[{"name":"r","count":2}]}"#;
    let decide = |name: &str, more: &[&str], question: &str| {
        let arguments = [&["strategy", "decide", "--strategy", name, &config], &machine[..], more].concat();
        lines(&dracpu(&arguments, question).stdout)[0].clone()
    };
    assert_eq!(decide(NAME, &[], question)["grants"][0]["cpus"], "2-3");
    // The node's own strategy has the node's options, unless others are given.
    let single = r#"{"available":"1,3,5","requests":[{"name":"r","count":1}]}"#;
    assert_eq!(decide("packed", &[], single)["denied"]["reason"], "invalid");
    assert_eq!(decide("packed", &["--options", "{}"], single)["grants"][0]["name"], "r");
    let reserved = decide(NAME, &[], r#"{"available":"0-3","requests":[{"name":"r","count":1}]}"#);
    assert!(reserved["error"].as_str().unwrap().contains("CPUs 0 are reserved"), "{reserved}");

    let checked = dracpu(&["strategy", "check", NAME, &config, "--cases", "100", "-o", "json"], "");
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    assert_eq!(lines(&checked.stderr)[0]["strategy"], NAME);

    let bench = [&["strategy", "bench", NAME, &config, "-o", "json"], &machine[..]].concat();
    let bench: Value = serde_json::from_slice(&dracpu(&bench, "").stdout).unwrap();
    assert_eq!((&bench["strategy"], &bench["limits"]["fuel"]), (&json!(NAME), &json!(50_000_000)));

    let inspected = dracpu(&["strategy", "inspect", NAME, &config, "-o", "json"], "");
    let inspected: Value = serde_json::from_slice(&inspected.stdout).unwrap();
    assert_eq!((&inspected["name"], &inspected["usable"]), (&json!(NAME), &json!(true)));

    let config = configuration(&files, &format!("sha256:{}", "0".repeat(64)));
    for verb in [
        &["strategy", "check", NAME][..],
        &["strategy", "bench", NAME],
        &["strategy", "decide", "--strategy", NAME],
        &["strategy", "inspect", NAME],
    ] {
        let output = dracpu(&[verb, &[&config]].concat(), question);
        let said =
            String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
        assert!(!output.status.success() && said.contains("the configuration demands sha256:0000"), "{said}");
    }
}
