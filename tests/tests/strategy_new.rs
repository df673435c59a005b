//! From nothing to a tested strategy: what `dracpu strategy new` writes tests itself, builds and keeps the rules, with
//! nothing but a checkout.

#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test fails by panicking")]

use dracpu_tests::support::daemon::dracpu_bin;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A command in a directory, without the network, that shares what it builds with other runs.
fn command(program: impl AsRef<std::ffi::OsStr>, directory: &Path) -> Command {
    let guests = dracpu_guest_build::guests_directory(&std::env::current_exe().unwrap()).unwrap();
    let mut command = Command::new(program);
    command
        .current_dir(directory)
        .env("CARGO_NET_OFFLINE", "true")
        .env("CARGO_TARGET_DIR", guests.with_file_name("authoring"))
        .env_remove("RUSTFLAGS")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    command
}

fn dracpu(directory: &Path, arguments: &[&str]) -> Output {
    command(dracpu_bin().unwrap(), directory).args(arguments).output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A new project of this name.
fn project(directory: &Path, name: &str) -> PathBuf {
    let output = dracpu(directory, &["strategy", "new", name, "--sdk", WORKSPACE]);
    assert!(output.status.success(), "{}", stderr(&output));
    directory.join(name)
}

#[test]
fn a_new_project_tests_itself_builds_and_keeps_the_rules() {
    let directory = tempfile::tempdir().unwrap();
    let mine = project(directory.path(), "mine");

    let tested = command("cargo", &mine).args(["test", "--quiet"]).output().unwrap();
    assert!(tested.status.success(), "{}{}", String::from_utf8_lossy(&tested.stdout), stderr(&tested));

    let built = dracpu(&mine, &["strategy", "build"]);
    assert!(built.status.success(), "{}", stderr(&built));
    assert_eq!(String::from_utf8_lossy(&built.stdout), "./mine.wasm\n");
    assert!(stderr(&built).contains("mine 0.1.0 (sha256:"), "{}", stderr(&built));
    assert!(std::fs::metadata(mine.join("mine.wasm")).unwrap().len() < 400_000);

    let checked = dracpu(&mine, &["strategy", "check", "mine.wasm", "--cases", "3000"]);
    assert!(checked.status.success(), "{}{}", String::from_utf8_lossy(&checked.stdout), stderr(&checked));

    let bench = dracpu(&mine, &["strategy", "bench", "mine.wasm", "--machine", "two-socket", "-o", "json"]);
    let bench: Value = serde_json::from_slice(&bench.stdout).unwrap();
    assert_eq!(bench["strategy"], "mine");

    let again = dracpu(directory.path(), &["strategy", "new", "mine", "--sdk", WORKSPACE]);
    assert_eq!(again.status.code(), Some(64));
    assert!(stderr(&again).contains("mine is there already"), "{}", stderr(&again));
}

#[test]
fn what_cannot_be_built_is_said_with_what_to_do() {
    let directory = tempfile::tempdir().unwrap();
    let nothing = dracpu(directory.path(), &["strategy", "build"]);
    assert_eq!(nothing.status.code(), Some(64));
    assert!(stderr(&nothing).contains("name the directory of a strategy's project"), "{}", stderr(&nothing));

    let broken = project(directory.path(), "broken");
    let change = |file: &str, from: &str, to: &str| {
        let path = broken.join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{file}");
        std::fs::write(path, text.replace(from, to)).unwrap();
    };
    let said = |words: &str| {
        let output = dracpu(directory.path(), &["strategy", "build", "broken"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(words), "{}", stderr(&output));
        assert!(!broken.join("broken.wasm").exists());
    };
    change("src/lib.rs", "export!(LowestFirst);", "");
    said("hand that to `export!`");
    change("src/lib.rs", "fn choose", "fn chose");
    said("cargo failed");
    std::fs::write(broken.join("src/lib.rs"), "").unwrap();
    change("Cargo.toml", "[workspace]", "");
    let workspace = "[workspace]\nresolver = \"3\"\nmembers = [\"broken\"]\n";
    std::fs::write(directory.path().join("Cargo.toml"), workspace).unwrap();
    let around = dracpu(directory.path(), &["strategy", "build"]);
    assert_eq!(around.status.code(), Some(1));
    assert!(stderr(&around).contains("virtual manifest"), "{}", stderr(&around));
}

/// What a component's tool is asked for, without having the tool: its arguments.
fn asked_of(tool: &str, project: &Path) -> Vec<String> {
    let script = std::fs::read_to_string(project.join("build.sh")).unwrap();
    let version = script.lines().find_map(|line| line.strip_prefix("VERSION=")).unwrap();
    let tool = tool.replace("VERSION", version);
    let cache = tempfile::tempdir().unwrap();
    let tool = cache.path().join(tool);
    std::fs::create_dir_all(tool.parent().unwrap()).unwrap();
    std::fs::write(&tool, "#!/bin/sh\nprintf '%s\\n' \"$@\"\n").unwrap();
    std::fs::set_permissions(&tool, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut build = command(project.join("build.sh"), Path::new("/"));
    let output = build.env("DRACPU_CACHE", cache.path()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// That the components are built and keep the rules, `make test-languages` shows.
#[test]
fn a_project_in_another_language_has_all_that_its_script_needs() {
    let directory = tempfile::tempdir().unwrap();
    for (language, tool, source) in [
        ("python", "componentize-py-VERSION/bin/componentize-py", "app.py"),
        ("javascript", "componentize-js-VERSION/node_modules/.bin/componentize-js", "strategy.js"),
    ] {
        let name = format!("in-{language}");
        let output = dracpu(directory.path(), &["strategy", "new", &name, "--lang", language]);
        assert!(output.status.success(), "{}", stderr(&output));
        let project = directory.path().join(&name);
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(said.contains("./build.sh") && said.contains(&format!("check {name}.wasm")), "{said}");

        let asked = asked_of(tool, &project);
        let paths: Vec<&Path> = asked.iter().map(Path::new).filter(|path| path.is_absolute()).collect();
        let (component, inputs) = paths.split_last().unwrap();
        assert_eq!(**component, project.join(&name).with_extension("wasm"));
        assert!(inputs.len() == 2 && inputs.iter().all(|path| path.exists()), "{asked:?}");
        let wit = inputs.iter().find(|path| path.ends_with("wit")).unwrap();
        assert_eq!(
            std::fs::read(wit.join("strategy.wit")).unwrap(),
            std::fs::read(format!("{WORKSPACE}/wit/strategy.wit")).unwrap()
        );
        let read = |file: &str| std::fs::read_to_string(project.join(file)).unwrap();
        assert!(read(source).contains(&format!("\"{name}\"")), "{}", read(source));
        assert!(read("README.md").contains(source));

        let again =
            dracpu(directory.path(), &["strategy", "new", "b", "--lang", language, "--sdk", WORKSPACE]);
        assert_eq!(again.status.code(), Some(64));
        assert!(stderr(&again).contains("--sdk is for Rust"), "{}", stderr(&again));
    }
}

/// The fenced blocks of the tutorial: language and text.
fn tutorial() -> Vec<(String, String)> {
    let text = std::fs::read_to_string(format!("{WORKSPACE}/docs/strategies/tutorial.md")).unwrap();
    let mut blocks = Vec::new();
    for block in text.split("\n```").skip(1).step_by(2) {
        let (language, text) = block.split_once('\n').unwrap();
        blocks.push((language.to_owned(), text.to_owned()));
    }
    blocks
}

#[test]
fn the_tutorials_code_is_that_of_the_example() {
    let example = format!("{WORKSPACE}/examples/e-cores-for-batch");
    let read = |file: &str| std::fs::read_to_string(format!("{example}/{file}")).unwrap();
    let (code, schema) = (read("src/lib.rs"), read("options.schema.json"));
    let blocks = tutorial();
    let of =
        |language: &'static str| blocks.iter().filter(move |block| block.0 == language).map(|block| &block.1);
    assert!(of("rust").count() > 5 && of("sh").count() > 5);
    for block in of("rust") {
        assert!(code.contains(block.as_str()), "the example lacks:\n{block}");
    }
    let whole: Vec<&str> = of("rust").map(String::as_str).collect();
    assert_eq!(whole.join("\n\n") + "\n", code, "pasted in order, they are the whole of it");
    assert_eq!(format!("{}\n", of("json").next().unwrap()), schema);
}

#[test]
fn the_tutorials_commands_work() {
    let directory = tempfile::tempdir().unwrap();
    let bin = directory.path().join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(dracpu_bin().unwrap(), bin.join("dracpu")).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let mut here = directory.path().to_owned();
    let mut said = Value::Null;
    for (language, text) in tutorial() {
        match language.as_str() {
            "sh" => {
                let script = text.replace("~/dracpu", WORKSPACE);
                let output = command("bash", &here)
                    .args(["-euo", "pipefail", "-c", &script])
                    .env("PATH", &path)
                    .output()
                    .unwrap();
                let stdout = String::from_utf8(output.stdout.clone()).unwrap();
                assert!(output.status.success(), "{script}\n{stdout}{}", stderr(&output));
                said = stdout
                    .lines()
                    .last()
                    .and_then(|line| serde_json::from_str(line).ok())
                    .unwrap_or_default();
                if script.contains("strategy new") {
                    // What the reader writes.
                    here.push("e-cores-for-batch");
                    for file in ["src/lib.rs", "options.schema.json"] {
                        let example = format!("{WORKSPACE}/examples/e-cores-for-batch/{file}");
                        std::fs::copy(example, here.join(file)).unwrap();
                    }
                }
            }
            // An answer is that of the command before; how much fuel it took may change.
            "text" if text.contains("grants") => {
                said["fuel"] = 0.into();
                assert_eq!(said, serde_json::from_str::<Value>(&text.replace('…', "0")).unwrap());
            }
            _ => {}
        }
    }
}
