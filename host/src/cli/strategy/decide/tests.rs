use super::*;
use dracpu_topology::machine;
use std::sync::LazyLock;

/// Compiled once for all tests.
static LOADED: LazyLock<Vec<Loaded>> = LazyLock::new(|| {
    let catalogue = super::super::catalogue(&[]).unwrap();
    ["packed", "external"].map(|name| catalogue.load(name).unwrap()).to_vec()
});

/// Answers of a strategy on a machine of 16 CPUs with two threads a core.
fn answers(strategy: &str, options: Value, questions: &str) -> (Vec<Value>, ExitCode) {
    let loaded = LOADED.iter().find(|loaded| loaded.description().name == strategy).unwrap().clone();
    let machines = Machines::One(Box::new(machine::load("desktop-smt").unwrap()));
    let options = options.as_object().unwrap().clone();
    let mut desk = Desk { loaded, options, machines, opened: HashMap::new() };
    let mut out = Vec::new();
    let code = desk.serve(questions.as_bytes(), &mut out).unwrap();
    let lines = String::from_utf8(out).unwrap();
    (lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect(), code)
}

fn same(one: ExitCode, other: ExitCode) -> bool {
    format!("{one:?}") == format!("{other:?}")
}

#[test]
fn grants_come_with_reason_and_fuel() {
    let question = r#"{"id":"1","available":"0-15","requests":[{"name":"r","count":4,"group":"0-15"}]}"#;
    let (answers, code) = answers("packed", json!({}), question);
    assert_eq!(answers[0]["grants"], json!([{ "name": "r", "cpus": "0-3", "blocked": "", "mems": "" }]));
    assert!(answers[0]["why"].is_string() && answers[0]["fuel"].as_u64().unwrap() > 0);
    assert_eq!(answers[0]["id"], "1");
    assert!(same(code, ExitCode::SUCCESS));
}

#[test]
fn nothing_asked_is_nothing_granted() {
    let question = r#"{"available":"","requests":[{"name":"r","count":0}]}"#;
    assert_eq!(answers("packed", json!({}), question).0[0]["grants"][0]["cpus"], "");
}

#[test]
fn groups_are_lists_or_device_names_and_may_differ_within_a_question() {
    let question = r#"{"available":"0-15","requests":[
        {"name":"a","count":2,"group":"8-11"},{"name":"b","count":2,"group":"cpudevnuma000"},{"name":"c","count":2,"group":"8-11"}]}"#;
    let grants = answers("packed", json!({}), &question.replace('\n', " ")).0[0]["grants"].clone();
    assert_eq!(
        (&grants[0]["cpus"], &grants[1]["cpus"], &grants[2]["cpus"]),
        (&json!("8-9"), &json!("0-1"), &json!("10-11"))
    );
}

#[test]
fn a_refusal_has_reason_request_and_message() {
    let questions = concat!(
        r#"{"id":1,"available":"0-3","requests":[{"name":"r","count":5}]}"#,
        "\n",
        r#"{"id":2,"available":"0-3","options":{"full-pcpus-only":3},"requests":[{"name":"r","count":2}]}"#,
        "\n",
        r#"{"id":3,"available":"0-3","requests":[{"name":"r","count":2,"cpuset":"0-1"}]}"#,
    );
    let (answers, code) = answers("packed", json!({}), questions);
    assert_eq!(answers[0]["denied"]["reason"], "not-enough");
    assert_eq!(answers[0]["denied"]["request"], "r");
    let message = |at: usize| answers[at]["denied"]["message"].as_str().unwrap();
    assert!(message(1).contains("option `full-pcpus-only`: 3 is not of type \"boolean\""), "{}", message(1));
    assert!(message(2).contains("request r: cpuset 0-1 is not for this strategy"), "{}", message(2));
    assert!(same(code, ExitCode::SUCCESS));
}

#[test]
fn a_strategy_that_needs_the_cpus_named_gets_them() {
    let questions = concat!(
        r#"{"available":"0-15","requests":[{"name":"r","count":2,"cpuset":"4,7"}]}"#,
        "\n",
        r#"{"available":"0-15","requests":[{"name":"r","count":2}]}"#,
    );
    let (answers, _) = answers("external", json!({}), questions);
    assert_eq!(answers[0]["grants"][0]["cpus"], "4,7");
    assert_eq!(answers[1]["denied"]["reason"], "invalid");
}

#[test]
fn the_nodes_options_lie_under_the_questions() {
    let questions = concat!(
        r#"{"available":"0-15","requests":[{"name":"r","count":3}]}"#,
        "\n",
        r#"{"available":"0-15","options":{"full-pcpus-only":false},"requests":[{"name":"r","count":3}]}"#,
    );
    let (answers, _) = answers("packed", json!({ "full-pcpus-only": true }), questions);
    assert!(answers[0]["denied"].is_object(), "{}", answers[0]);
    assert!(answers[1]["grants"].is_array(), "{}", answers[1]);
}

#[test]
fn options_of_a_request_lie_over_the_questions() {
    let question = r#"{"available":"0-15","options":{"full-pcpus-only":false},"requests":[
        {"name":"a","count":3},{"name":"b","count":3,"options":{"full-pcpus-only":true}}]}"#;
    let (answers, _) = answers("packed", json!({}), &question.replace('\n', " "));
    assert_eq!(answers[0]["denied"]["request"], "b", "{}", answers[0]);
}

#[test]
fn a_bad_question_is_answered_with_its_error_and_the_rest_goes_on() {
    for (bad, words) in [
        ("{", "not a question"),
        (r#"{"id":7,"available":"0-3","requests":[]}"#, "`requests` is empty"),
        (
            r#"{"id":7,"available":"0-3,x","requests":[{"name":"r","count":1}]}"#,
            "available: `x` is not a CPU id",
        ),
        (r#"{"id":7,"available":"0-99","requests":[{"name":"r","count":1}]}"#, "CPUs 16-99 are not online"),
        (r#"{"id":7,"available":"0","requests":[{"name":"r","count":-1}]}"#, "not a question"),
        (
            r#"{"id":7,"available":"0","requests":[{"name":"r","count":1,"group":"cpudev"}]}"#,
            "`cpudev` is neither",
        ),
        (r#"{"id":7,"available":"0","requests":[{"name":"r","count":1,"pcieRoots":["x"]}]}"#, "no root `x`"),
        (r#"{"id":7,"available":"0","unknown":1,"requests":[{"name":"r","count":1}]}"#, "unknown field"),
        (
            r#"{"id":7,"available":"0-3","others":[{"cpus":"3"}],"requests":[{"name":"r","count":1}]}"#,
            "no CPU is held and free",
        ),
        (
            r#"{"id":7,"available":"0-3","others":[{"blocked":"15-99"}],"requests":[{"name":"r","count":1}]}"#,
            "others: CPUs 16-99 are not there on the machine desktop-smt",
        ),
        (
            r#"{"id":7,"available":"0-3","requests":[{"name":"r","count":1,"group":" "}]}"#,
            "request r: group: it is empty: name CPUs or a device",
        ),
        (
            r#"{"id":7,"topology":"two-socket","available":"0-3","requests":[{"name":"r","count":1}]}"#,
            "topology `two-socket`: there is only the machine desktop-smt; leave `topology` out",
        ),
    ] {
        let good = r#"{"id":8,"available":"0-3","requests":[{"name":"r","count":1}]}"#;
        let (answers, code) = answers("packed", json!({}), &format!("{bad}\n\n{good}\n"));
        let error = answers[0]["error"].as_str().unwrap();
        assert!(error.contains(words), "{bad}: {error}");
        assert_eq!(answers[0]["id"], if bad == "{" { Value::Null } else { json!(7) }, "{bad}");
        assert!(answers[1]["grants"].is_array(), "{}", answers[1]);
        assert!(same(code, ExitCode::FAILURE));
    }
}

#[test]
fn the_one_machine_may_be_named() {
    let question = r#"{"topology":"desktop-smt","available":"0-3","requests":[{"name":"r","count":1}]}"#;
    assert!(answers("packed", json!({}), question).0[0]["grants"].is_array());
}

#[test]
fn a_line_without_end_is_answered_once_and_not_kept() {
    let mut input = std::io::Cursor::new([b"a\n".as_slice(), &[b'x'; 100], b"\nend"].concat());
    let mut lines = Vec::new();
    while let Some(line) = next_line(&mut input, 10).unwrap() {
        lines.push(match line {
            Line::Whole(line) => String::from_utf8(line).unwrap(),
            Line::TooLong => "too long".to_owned(),
        });
    }
    assert_eq!(lines, ["a\n", "too long", "end"]);
    let long = usize::try_from(MOST_BYTES_OF_A_LINE).unwrap() + 1;
    let good = r#"{"id":8,"available":"0-3","requests":[{"name":"r","count":1}]}"#;
    let (answers, code) = answers("packed", json!({}), &format!("{}\n{good}", "x".repeat(long)));
    assert_eq!(answers[0]["error"], "the line has more than 16777216 bytes, no question has");
    assert!(answers[1]["grants"].is_array() && same(code, ExitCode::FAILURE));
}

#[test]
fn options_of_the_node_that_no_machine_can_have_are_refused_before_the_first_question() {
    let machine = || machine::load("desktop-smt").unwrap();
    let of = |name: &str| LOADED.iter().find(|loaded| loaded.description().name == name).unwrap();
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("README"), "no machine").unwrap();
    std::fs::write(
        dir.path().join("a.json"),
        dracpu_topology::to_json(&machine().topology, &CpuSet::new()).to_string(),
    )
    .unwrap();
    let many = [("a".to_owned(), machine())].into_iter().collect();
    for machines in [
        Machines::One(Box::new(machine())),
        Machines::Many(many),
        Machines::of_many(dir.path().to_str().unwrap()).unwrap(),
    ] {
        for (options, words) in [
            (json!({ "x": 1 }), "options of the node: `x` (set to 1) is no option"),
            (json!({ "full-pcpus-only": 3 }), "option `full-pcpus-only`: 3 is not of type \"boolean\""),
            (
                json!({ "distribute-cpus-across-cores": true, "full-pcpus-only": true }),
                "distribute-cpus-across-cores",
            ),
        ] {
            let error = check(of("packed"), options.as_object().unwrap(), &machines).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
        check(of("packed"), json!({ "full-pcpus-only": true }).as_object().unwrap(), &machines).unwrap();
    }
}
