//! The documentation against what it documents: commands and what they print, names, manifests, and what the selectors and
//! constraints of examples choose. How a block of a page is tested stands in `tests/tools/docs/blocks.py`.
//!
//! Reading order: this file, [`pages`] (blocks and examples), [`manifests`] (as the API reads them), [`cel`] and [`placing`] (a
//! scheduler as far as examples need one).

mod cel;
mod manifests;
mod pages;
mod placing;

use anyhow::{Context as _, Result, ensure};
use dracpu_tests::support::daemon::dracpu_bin;
use dracpu_tests::support::machine::{Machine, Shape};
use dracpu_tests::support::node::{ContainerAsk, Node, NodeConfig};
use dracpu_tests::support::scheduler::Ask;
use pages::{REPOSITORY, tool};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output};

fn driver() -> String {
    dracpu_bin().unwrap().display().to_string()
}

fn report(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[test]
fn commands_print_what_the_pages_say() {
    let output = tool("run_commands.py", &[&driver()]);
    let report = report(&output);
    println!("{report}");
    assert!(output.status.success(), "{report}");
    let ran = report.lines().last().and_then(|line| line.split(' ').next()?.parse::<u32>().ok());
    assert!(ran.is_some_and(|ran| ran > 30), "{report}");
}

/// The node of the pages: a machine of two sockets with four caches and 32 CPUs, two of them reserved, and two claims.
async fn node_of_the_pages() -> Result<Node> {
    let shape = Shape { sockets: 2, numa_per_socket: 1, l3_per_numa: 2, cores_per_l3: 4, threads: 2 };
    let config = json!({"reservedCPUs": "0,16"});
    let node = Node::start(NodeConfig::new(Machine::of(shape)).with_config(config)).await?;
    for (claim, cpus, pod, container) in [("web", 4, "web-0", "app"), ("batch", 8, "batch-7", "job")] {
        let claim = node.allocate(claim, &[Ask::of("cpus", "cpudevnuma000", cpus)]).await?;
        node.run_pod(pod, &[&claim], &[ContainerAsk::new(container, &[&claim])]).await?;
    }
    Ok(node)
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_ask_a_daemon_print_what_the_pages_say() -> Result<()> {
    let node = node_of_the_pages().await?;
    let directory = node.path("").display().to_string();
    let output =
        tokio::task::spawn_blocking(move || tool("run_commands.py", &[&driver(), "--node", &directory]))
            .await?;
    let report = report(&output);
    println!("{report}");
    assert!(output.status.success(), "{report}");
    assert!(!report.lines().last().is_none_or(|line| line.starts_with("0 commands run")), "{report}");
    Ok(())
}

#[test]
fn names_on_the_pages_are_those_of_the_program_and_all_of_them_are_there() {
    let output = tool("check_names.py", &[&driver()]);
    assert!(output.status.success(), "{}", report(&output));
}

/// The repository, with pages that can be changed.
fn copy() -> tempfile::TempDir {
    let copy = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(REPOSITORY).unwrap() {
        let entry = entry.unwrap();
        let target = copy.path().join(entry.file_name());
        if entry.file_name() == "docs" {
            let copied = Command::new("cp").arg("-r").arg(entry.path()).arg(&target).status().unwrap();
            assert!(copied.success());
        } else if entry.file_name() != "target" && entry.file_name() != ".git" {
            std::os::unix::fs::symlink(entry.path(), target).unwrap();
        }
    }
    copy
}

fn write(root: &Path, page: &str, text: &str) {
    std::fs::write(root.join(page), text).unwrap();
}

#[test]
fn a_command_that_prints_something_else_is_noticed() {
    let copy = copy();
    let root = copy.path().to_str().unwrap();
    for (page, words) in [
        ("```console\n$ echo one\ntwo\n```\n", "`echo one` prints something else"),
        ("```console\n$ echo one\none\nmore\n```\n", "`echo one` prints something else"),
        ("```console\n$ printf 'one\\ntwo\\n'\none\n```\n", "prints something else"),
        ("```console\n$ echo one; false\none\n```\n", "ended with 1"),
        ("```console\n$ dracpu topology --no-such-flag\n…\n```\n", "ended with 64"),
        ("```console\none\n```\n", "output of no command"),
        ("Text.\n\n    echo one\n", "a block without a fence is tested by nobody"),
        ("```\necho one\n```\n", "the language of a block is one of"),
        ("```console never\n$ echo one\n```\n", "`never` says nothing about the block"),
        ("```sh\necho one\n```\n", "commands stand in a console block"),
        ("```console\n$ echo one\n", "the block does not end"),
    ] {
        write(copy.path(), "docs/wrong.md", page);
        let output = tool("run_commands.py", &[&driver(), "--root", root, "docs/wrong.md"]);
        assert!(!output.status.success(), "{page}");
        assert!(report(&output).contains(words), "{page}: {}", report(&output));
    }
    let right = "```console\n$ printf 'one\\ntwo three\\n'; cat docs/wrong.md | head -1\n…\ntwo …\n```console\n$ echo \\\n  four\nfour\n$ cat <<E\n> five\n> E\nfive\n```\n\
                 ```console not-run: for a reason\n$ false\n```\n";
    write(copy.path(), "docs/wrong.md", right);
    let output = tool("run_commands.py", &[&driver(), "--root", root, "docs/wrong.md"]);
    let report = report(&output);
    assert!(
        output.status.success() && report.contains("3 commands run, 0 on a cluster, 1 not run"),
        "{report}"
    );
    assert!(report.contains("not run: 1 (for a reason)"), "{report}");
}

#[test]
fn a_name_that_is_none_or_is_not_told_is_noticed() {
    let copy = copy();
    let wrong = "`dra_cpu_nothing` `--no-such-flag` `dracpu fly` `noSuchKey: 1` `args.noSuchValue` `make nothing` \
                 `cargo test --test nothing` `dra.cpu/noSuchAttribute` `docs/nothing.md` [here](nothing.md) [there](README.md#nothing)\n\n\
                 ```yaml from: examples/claims/one-cpu.yaml\nnothing\n```\n";
    write(copy.path(), "docs/wrong.md", wrong);
    let metrics = std::fs::read_to_string(copy.path().join("docs/metrics.md")).unwrap();
    write(
        copy.path(),
        "docs/metrics.md",
        &metrics.replace("| `dra_cpu_registered` | gauge", "| `dra_cpu_registered` | counter"),
    );
    let configuration = std::fs::read_to_string(copy.path().join("docs/configuration.md")).unwrap();
    let without = configuration.replace("--lock-timeout", "the time").replace("| `cfsQuota` |", "| quota |");
    write(copy.path(), "docs/configuration.md", &without);
    let output = tool("check_names.py", &[&driver(), "--root", copy.path().to_str().unwrap()]);
    let report = report(&output);
    for words in [
        "no metric is called dra_cpu_nothing",
        "nothing has the flag --no-such-flag",
        "has no verb fly",
        "nobody knows noSuchKey",
        "nobody knows args.noSuchValue",
        "the Makefile has no target nothing",
        "there is no test nothing",
        "nothing publishes dra.cpu/noSuchAttribute",
        "there is no docs/nothing.md",
        "the link nothing.md leads nowhere",
        "docs/README.md has no heading #nothing",
        "no page leads to docs/wrong.md",
        "examples/claims/one-cpu.yaml does not say so",
        "the row of dra_cpu_registered is not `gauge",
        "docs/configuration.md does not tell of --lock-timeout",
        "docs/configuration.md has no row for cfsQuota",
    ] {
        assert!(report.contains(words), "{words}: {report}");
    }
    assert!(!output.status.success());
}

#[test]
fn every_manifest_is_what_its_api_reads() -> Result<()> {
    let mut seen = BTreeSet::new();
    for yaml in pages::yaml()? {
        for document in &yaml.documents {
            let kind = manifests::check(document).with_context(|| yaml.place.clone())?;
            seen.insert(kind);
        }
    }
    let all =
        ["ConfigurationFile", "DeviceClass", "HelmValues", "Pod", "ResourceClaim", "ResourceClaimTemplate"];
    assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), all);
    Ok(())
}

#[test]
fn a_manifest_that_no_api_reads_is_noticed() {
    let claim = |exactly: Value| {
        json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c"},
               "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}})
    };
    let pod = |resources: Value| {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"},
               "spec": {"resourceClaims": [{"name": "c", "resourceClaimName": "c"}],
                        "containers": [{"name": "main", "image": "busybox", "resources": resources}]}})
    };
    assert!(manifests::check(&claim(json!({"deviceClassName": "dra.cpu"}))).is_ok());
    assert!(manifests::check(&pod(json!({"claims": [{"name": "c"}]}))).is_ok());
    for (document, words) in [
        (claim(json!({"deviceClassName": "dra.cpu", "capcity": {"dra.cpu/cpu": "1"}})), "capcity"),
        (claim(json!({"deviceClassName": "dra.cpu", "count": "two"})), "invalid type"),
        (
            claim(
                json!({"deviceClassName": "dra.cpu", "selectors": [{"cel": {"expression": "device.attributes["}}]}),
            ),
            "expression",
        ),
        (pod(json!({"claims": [{"name": "d"}]})), "no claim called d"),
        (
            json!({"apiVersion": "resource.k8s.io/v1beta1", "kind": "DeviceClass", "metadata": {"name": "x"}, "spec": {}}),
            "v1beta1",
        ),
        (json!({"groupby": "socket"}), "did you mean `groupBy`"),
        (json!({"driverConfig": {"groupby": "socket"}}), "did you mean `groupBy`"),
        (json!({"driverConfig": {}, "imag": {}}), "imag"),
        (json!({"args": {"v": 4}}), "args.v"),
    ] {
        let fault = format!("{:#}", manifests::check(&document).expect_err("is accepted"));
        assert!(fault.contains(words), "{document}: {fault}");
    }
}

/// Where an example's claims are placed: the machine, the node's configuration, and the devices in the order of its requests.
const PLACED: &[(&str, &str, &str, &[&[&str]])] = &[
    ("one-cpu.yaml", "two-socket", "{}", &[&["cpudevnuma000"]]),
    ("kept-claim.yaml", "two-socket", "{}", &[&["cpudevnuma000"]]),
    ("guaranteed.yaml", "two-socket", "{}", &[&["cpudevnuma000"]]),
    ("numa-node.yaml", "two-socket", "{}", &[&["cpudevnuma000"]]),
    ("socket-0.yaml", "xeon-snc3", "{groupBy: socket}", &[&["cpudevsocket000"]]),
    ("two-claims-one-socket.yaml", "two-socket", "{groupBy: llc}", &[&["cpudevllc001"]]),
    ("one-per-numa-node.yaml", "epyc-nps4", "{}", &[&["cpudevnuma000", "cpudevnuma001"]]),
    ("gpu-nic-one-pcie-root.yaml", "two-socket", "{}", &[&["cpudevnuma001", "gpu-1", "nic-0"]]),
    ("external.yaml", "two-socket", "{groupBy: machine, allocator: external}", &[&["cpudevmachine"]]),
    ("single-devices.yaml", "hybrid", "{cpuDeviceMode: individual}", &[&["cpudev000"]]),
];

#[test]
fn claims_of_the_examples_are_placed_where_they_say_and_prepared_by_the_driver() -> Result<()> {
    let classes = placing::Classes::of_the_examples()?;
    let examples = pages::examples("claims")?;
    let named: BTreeSet<&str> = PLACED.iter().map(|placed| placed.0).collect();
    assert_eq!(named, examples.keys().map(String::as_str).collect(), "every example is placed");
    for (file, machine, config, expected) in PLACED {
        let devices = placing::devices(machine, config)?;
        let specs = manifests::claims(&examples[*file]);
        assert_eq!(specs.len(), expected.len(), "{file}");
        for (spec, expected) in specs.iter().zip(*expected) {
            let placed = placing::place(spec, &classes, &devices).with_context(|| (*file).to_owned())?;
            assert_eq!(placed, *expected, "{file}");
            placing::prepare(spec, &classes, &placed, machine, config).with_context(|| (*file).to_owned())?;
        }
    }
    Ok(())
}

#[test]
fn manifests_of_the_pages_are_placed_and_prepared_on_one_of_the_example_machines() -> Result<()> {
    let classes = placing::Classes::of_the_examples()?;
    let mut count = 0;
    for yaml in pages::yaml()?.iter().filter(|yaml| yaml.place.starts_with("docs/")) {
        for spec in manifests::claims(&yaml.documents) {
            count += 1;
            let mut tried = Vec::new();
            let placed = ["{}", "{allocator: external}"].iter().any(|config| {
                ["small", "two-socket", "epyc-nps4"].iter().any(|machine| {
                    let outcome = placing::devices(machine, config).and_then(|devices| {
                        let placed = placing::place(&spec, &classes, &devices)?;
                        placing::prepare(&spec, &classes, &placed, machine, config)
                    });
                    outcome.map_err(|fault| tried.push(format!("{machine}, {config}: {fault:#}"))).is_ok()
                })
            });
            assert!(placed, "{}: {tried:#?}", yaml.place);
        }
    }
    assert!(count > 2, "{count}");
    Ok(())
}

#[test]
fn a_class_of_the_examples_is_obeyed_by_the_driver() -> Result<()> {
    let classes = placing::Classes::of_the_examples()?;
    let ask = |class: &str, cpus: u32| {
        json!({"devices": {"requests": [{"name": "r", "exactly": {
            "deviceClassName": class, "capacity": {"requests": {"dra.cpu/cpu": cpus.to_string()}}}}]}})
    };
    let prepare = |class: &str, cpus: u32, config: &str| {
        placing::prepare(&ask(class, cpus), &classes, &["cpudevnuma000".to_owned()], "two-socket", config)
    };
    prepare("whole-cores.dra.cpu", 4, "{}")?;
    let refused = format!("{:#}", prepare("whole-cores.dra.cpu", 3, "{}").unwrap_err());
    assert!(refused.contains("ask for a multiple of 2"), "{refused}");
    prepare("one-cache.dra.cpu", 8, "{allowedStrategies: [llc-first]}")?;
    let refused = format!("{:#}", prepare("one-cache.dra.cpu", 8, "{}").unwrap_err());
    assert!(refused.contains("strategy `llc-first` is not allowed on this node"), "{refused}");
    Ok(())
}

/// The expressions of the table of `docs/devices.md`, each on the node that publishes what it asks for.
#[test]
fn every_selector_of_the_devices_page_chooses_some_devices_and_not_others() -> Result<()> {
    let page = std::fs::read_to_string(Path::new(REPOSITORY).join("docs/devices.md"))?;
    let (_, table) = page.split_once("### More").context("the table")?;
    let expressions: Vec<&str> = table
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.strip_suffix("` |")?.rsplit_once("| `"))
        .map(|(_, expression)| expression)
        .collect();
    ensure!(expressions.len() > 5, "{expressions:?}");
    let nodes = [
        ("two-socket", "{}"),
        ("small", "{reservedCPUs: 0-3}"),
        ("eight-sockets", "{}"),
        ("two-socket", "{groupBy: llc}"),
        ("two-socket", "{allocator: llc-first, groupBy: socket}"),
        ("arm-clusters", "{allocator: llc-first}"),
        ("hybrid", "{cpuDeviceMode: individual}"),
    ];
    let mut devices = Vec::new();
    for (machine, config) in nodes {
        devices.extend(placing::devices(machine, config)?);
    }
    for expression in expressions {
        let chosen: Vec<bool> =
            devices.iter().filter_map(|device| cel::holds(expression, device).ok()).collect();
        ensure!(chosen.contains(&true) && chosen.contains(&false), "`{expression}` chooses {chosen:?}");
    }
    Ok(())
}
