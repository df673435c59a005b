use super::merge::Surroundings;
use super::{
    Config, ConfigError, ConfigFlags, DeviceMode, GroupBy, LimitsConfig, MinSharedCpus, ReservedCpus, file,
    go_flags,
};
use clap::{Args as _, FromArgMatches as _};
use dracpu_cpuset::CpuSet;
use proptest::prelude::*;
use serde_json::{Map, Value};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::time::Duration;

fn around() -> Surroundings {
    Surroundings { node_name: None, host_name: "Host.example".to_owned() }
}

fn flags(args: &[&str]) -> Result<ConfigFlags, clap::Error> {
    let command = ConfigFlags::augment_args(clap::Command::new("dracpu")).args_override_self(true);
    let args = std::iter::once("dracpu").chain(args.iter().copied()).map(OsString::from);
    let args = go_flags::normalise(args, &command);
    ConfigFlags::from_arg_matches(&command.try_get_matches_from(args)?)
}

fn configure(text: &str, args: &[&str]) -> Result<(Config, Vec<String>), ConfigError> {
    flags(args).unwrap().over(file::parse(text)?, &around())
}

fn config(text: &str, args: &[&str]) -> Config {
    configure(text, args).unwrap().0
}

fn refusal(text: &str, args: &[&str]) -> String {
    configure(text, args).unwrap_err().to_string()
}

#[test]
fn nothing_said_is_all_defaults() {
    let config = config("", &[]);
    assert_eq!(config.mode, DeviceMode::Grouped(GroupBy::NumaNode));
    assert_eq!(config.selection.allocator, "packed");
    assert_eq!(config.min_shared_cpus, MinSharedCpus::Default);
    assert_eq!(config.node_name, "host.example");
    assert_eq!(config.bind_address.to_string(), "[::]:8080");
    assert_eq!(config.lock_timeout, Duration::from_secs(30));
    assert!(!config.remove_cfs_quota && !config.expose_pcie_roots);
    assert_eq!(
        config.registration_socket().to_str(),
        Some("/var/lib/kubelet/plugins_registry/dra.cpu@reg.sock")
    );
    assert_eq!(config.dra_socket().to_str(), Some("/var/lib/kubelet/plugins/dra.cpu/dra@dra.sock"));
}

#[test]
fn empty_files_say_nothing() {
    for text in [
        "",
        "\n",
        "# nothing\n",
        "---\n",
        "{}",
        "null",
        "allocator:\nreservedCPUs: null\nhostnameOverride: ''\n",
    ] {
        assert_eq!(config(text, &[]), config("", &[]), "{text:?}");
    }
}

#[test]
fn every_key_of_the_file_is_read() {
    let text = "
apiVersion: v1alpha1
cpuDeviceMode: grouped
groupBy: socket
allocator: llc-first
strategyOptions: {isolate: core}
reservedCPUs: 0-1,8
minSharedCPUs: 3
cfsQuota: remove
hostnameOverride: ' Node-1 '
kubeconfig: /etc/kubeconfig
sysfsOverlay: /etc/overlay.yaml
publishNodeAllocatableResourceMapping: true
claimStatus: false
strategies:
- name: llc-first
  path: /opt/llc.wasm
  digest: sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef
  options: {a: [1, x]}
  limits: {fuel: 1, deadlineMillis: 2, memoryBytes: 3, transferBytes: 4, componentBytes: 5}
- {name: other, path: other.wasm}
";
    let config = config(text, &[]);
    assert_eq!(config.mode, DeviceMode::Grouped(GroupBy::Socket));
    assert_eq!(config.selection.allocator, "llc-first");
    assert_eq!(config.selection.strategy_options["isolate"], "core");
    assert_eq!(reserved(&config), "0-1,8");
    assert_eq!(config.min_shared_cpus, MinSharedCpus::Explicit(3));
    assert!(config.remove_cfs_quota && config.publish_node_allocatable_resource_mapping);
    assert!(!config.claim_status);
    assert_eq!(config.node_name, "node-1");
    assert_eq!(config.kubeconfig, Some("/etc/kubeconfig".into()));
    assert_eq!(config.sysfs_overlay, Some("/etc/overlay.yaml".into()));
    let [first, second] = &config.selection.strategies[..] else { panic!("two strategies") };
    assert_eq!(
        (first.name.as_str(), first.path.as_ref().and_then(|path| path.to_str())),
        ("llc-first", Some("/opt/llc.wasm"))
    );
    assert!(first.digest.as_ref().unwrap().starts_with("sha256:0123"));
    assert_eq!(first.options["a"][1], "x");
    assert_eq!((first.limits.fuel, first.limits.deadline), (Some(1), Some(Duration::from_millis(2))));
    assert_eq!(first.limits.memory_bytes, Some(3));
    assert_eq!((first.limits.transfer_bytes, first.limits.component_bytes), (Some(4), Some(5)));
    assert_eq!(second.limits, LimitsConfig::default());
}

/// The reserved CPUs of a configuration that lists them.
fn reserved(config: &Config) -> String {
    match &config.reserved_cpus {
        ReservedCpus::List(cpus) => cpus.to_string(),
        ReservedCpus::Count(count) => panic!("a count: {count}"),
    }
}

#[test]
fn a_reserved_count_is_whole_cores_lowest_first_and_nothing_isolated() {
    let machine = |name: &str| dracpu_topology::machine::load(name).unwrap().topology;
    let smt = machine("desktop-smt"); // siblings 0-1, 2-3 and so on
    let far = machine("two-socket"); // siblings 0,32, 1,33 and so on
    for (topology, count, cpus) in
        [(&smt, 2, "0-1"), (&smt, 3, "0-2"), (&far, 2, "0,32"), (&far, 3, "0-1,32")]
    {
        let mut config = config(&format!("reservedCPUCount: {count}"), &[]);
        assert_eq!(config.reserved_cpus, ReservedCpus::Count(count));
        config.settle_reserved(topology, &CpuSet::new());
        assert_eq!(reserved(&config), cpus, "{count}");
    }
    let mut isolated = smt.clone();
    isolated.isolated = "0-3".parse().unwrap();
    assert_eq!(ReservedCpus::Count(2).on(&isolated).to_string(), "4-5");
    assert_eq!(ReservedCpus::Count(99).on(&smt).len(), 16);
}

#[test]
fn an_empty_list_of_reserved_cpus_leaves_the_count() {
    let config = config("reservedCPUs: ''\nreservedCPUCount: 2", &[]);
    assert_eq!(config.reserved_cpus, ReservedCpus::Count(2));
}

#[test]
fn cpu_lists_need_no_quotes() {
    for (text, cpus) in [
        ("0", "0"),
        ("17", "17"),
        ("0-3", "0-3"),
        ("08", "8"),
        ("0,4", "0,4"),
        ("''", ""),
        ("0-6:1/2", "0,2,4,6"),
    ] {
        assert_eq!(reserved(&config(&format!("reservedCPUs: {text}"), &[])), cpus, "{text}");
    }
}

#[test]
fn flags_win_over_the_file() {
    let text = "cpuDeviceMode: individual\ngroupBy: socket\nreservedCPUs: 0-3\nhostnameOverride: file\nkubeconfig: /file\nsysfsOverlay: /file";
    let args = [
        "--cpu-device-mode=grouped",
        "--group-by",
        "numanode",
        "-reserved-cpus=1",
        "-hostname-override",
        "FLAG",
        "--kubeconfig=/flag",
        "--sysfs-overlay=",
    ];
    let config = config(text, &args);
    assert_eq!(config.mode, DeviceMode::Grouped(GroupBy::NumaNode));
    assert_eq!((reserved(&config).as_str(), config.node_name.as_str()), ("1", "flag"));
    assert_eq!((config.kubeconfig, config.sysfs_overlay), (Some("/flag".into()), None));
}

#[test]
fn deprecated_flags_warn() {
    let (_, warnings) = configure("", &["--group-by=socket", "--vmodule=a=1"]).unwrap();
    assert_eq!(
        warnings,
        [
            "--group-by is deprecated; set `groupBy` in the configuration file",
            "--vmodule has no effect; use --v"
        ]
    );
}

#[test]
fn flags_have_the_syntax_of_go() {
    let cases: [(&[&str], bool, i32); 9] = [
        (&[], false, 0),
        (&["-v=4"], false, 4),
        (&["--v", "6"], false, 6),
        (&["-v", "5", "-expose-pcie-roots"], true, 5),
        (&["--expose-pcie-roots=false"], false, 0),
        (&["-expose-pcie-roots=T"], true, 0),
        (&["-vmodule", "x=3", "--v=1", "--v=2"], false, 2),
        (&["-vmodule=x=3"], false, 0),
        (&["--expose-pcie-roots", "--expose-pcie-roots=0"], false, 0),
    ];
    for (args, pcie, verbosity) in cases {
        let flags = flags(args).unwrap();
        assert_eq!(
            (flags.expose_pcie_roots.unwrap_or(false), flags.verbosity),
            (pcie, verbosity),
            "{args:?}"
        );
    }
    for args in
        [&["--expose-pcie-roots=maybe"][..], &["-v=x"], &["--expose-pcie-roots", "true"], &["--no-such-flag"]]
    {
        assert!(flags(args).is_err(), "{args:?}");
    }
}

#[test]
fn node_name_comes_from_override_then_variable_then_host() {
    let name = |text: &str, variable: Option<&str>| {
        let around = Surroundings { node_name: variable.map(OsString::from), ..around() };
        flags(&[]).unwrap().over(file::parse(text).unwrap(), &around).unwrap().0.node_name
    };
    assert_eq!(name("hostnameOverride: A", Some("b")), "a");
    assert_eq!(name("", Some(" B\n")), "b");
    assert_eq!(name("hostnameOverride: '  '", Some("b")), "b");
    assert_eq!(name("", Some("")), "host.example");
}

#[test]
fn a_node_name_that_is_no_text_is_refused_where_it_would_count() {
    let around = Surroundings { node_name: Some(OsString::from_vec(b"no\xffde".to_vec())), ..around() };
    let configure = |text: &str| flags(&[]).unwrap().over(file::parse(text).unwrap(), &around);
    let error = configure("").unwrap_err().to_string();
    assert!(error.contains("the variable NODE_NAME: `no\u{fffd}de` is not UTF-8"), "{error}");
    assert_eq!(configure("hostnameOverride: a").unwrap().0.node_name, "a");
}

#[test]
fn what_individual_mode_does_not_do_is_warned_of() {
    let warnings = |text: &str| configure(&format!("cpuDeviceMode: individual\n{text}"), &[]).unwrap().1;
    assert_eq!(warnings(""), [""; 0]);
    assert_eq!(
        warnings("allocator: external"),
        ["allocator has no effect while cpuDeviceMode is individual: no strategy is asked"]
    );
    let all =
        "allocator: x\nstrategies: [{name: x, path: x.wasm}]\nstrategyOptions: {a: 1}\nminSharedCPUs: 3\n";
    let all = warnings(all);
    assert!(all[0].starts_with("allocator, strategies, strategyOptions have no effect"), "{all:?}");
    assert!(all[1].starts_with("minSharedCPUs is not taken off what is published"), "{all:?}");
    assert_eq!(all.len(), 2);
}

#[test]
fn a_refusal_stays_readable_however_much_is_wrong() {
    let many: String = (0..20_000).map(|n| format!("qx{n}: 1\n")).collect();
    let error = refusal(&many, &[]);
    assert!(
        error.contains("unknown keys `qx0`, ") && error.contains("`qx19` and 19980 more; known are"),
        "{error}"
    );
    assert_eq!(error.matches("publishNodeAllocatableResourceMapping").count(), 1);
    let close: String = (0..20_000).map(|n| format!("allocator{n}: 1\n")).collect();
    assert!(refusal(&close, &[]).ends_with("; and 19980 more"));
    let (long, key) = ("x".repeat(1 << 20), "x".repeat(1000)); // YAML's own limit of a key is 1024
    for text in [
        format!("cfsQuota: {long}"),
        format!("groupBy: {long}"),
        format!("cpuDeviceMode: {long}"),
        format!("apiVersion: {long}"),
        format!("allocator: {long}"),
        format!("reservedCPUs: {long}"),
        format!("hostnameOverride: {long}_"),
        format!("minSharedCPUs: {long}"),
        format!("publishNodeAllocatableResourceMapping: {long}"),
        format!("{key}: 1"),
        format!("strategies: [{{name: {long}, path: x, digest: {long}, {key}: 1, limits: {{{key}: 1}}}}]"),
    ] {
        let error = refusal(&text, &[]);
        assert!(error.len() < 1500 && error.contains("x…"), "{} bytes: {error:.200}", error.len());
    }
}

#[test]
fn machine_group_is_external_unless_another_strategy_is_named() {
    let (config, warnings) = configure("groupBy: machine", &[]).unwrap();
    assert_eq!(config.selection.allocator, "external");
    assert_eq!(warnings.len(), 1);
    for name in ["external", "llc-first", "packed"] {
        let (config, warnings) = configure(&format!("groupBy: machine\nallocator: {name}"), &[]).unwrap();
        assert_eq!((config.selection.allocator.as_str(), warnings.len()), (name, 0));
    }
    assert!(refusal("groupBy: machine\nallocator: cpumanager", &[]).contains("cpumanager"));
    assert_eq!(configure("allocator: cpumanager", &[]).unwrap().0.selection.allocator, "packed");
}

#[test]
fn strategies_that_claims_may_name_are_each_there_once() {
    let text = "
allocator: llc-first
allowedStrategies: [cpumanager, llc-first, packed, external]
strategies:
- {name: llc-first, options: {align: required}}
";
    let selection = configure(text, &[]).unwrap().0.selection;
    assert_eq!(selection.names().collect::<Vec<_>>(), ["llc-first", "packed", "external"]);
    assert_eq!((selection.strategies[0].path.as_ref(), selection.strategies[0].options.len()), (None, 1));
    let message = refusal("strategies: [{name: mine}]", &[]);
    assert!(message.contains("`strategies[0].path`: is missing"), "{message}");
}

#[test]
fn all_mistakes_come_in_one_message() {
    let text = "
allocatr: packed
groupby: socket
reservedCPUs: 0-x
bindAddress: :80
allowedStrategies: [A_b]
strategies:
- {nme: a, path: p, limits: {fule: 1, memoryBytes: -1}}
";
    let message = refusal(text, &["--kubelet-root-dir=var/lib"]);
    for part in [
        "unknown key `allocatr`; did you mean `allocator`?",
        "unknown key `groupby`; did you mean `groupBy`?",
        "reservedCPUs: `0-x` is not a CPU list",
        "`bindAddress` is not a key of the file; use the flag --bind-address",
        "`allowedStrategies`: `A_b` is not the name of a strategy",
        "unknown key `strategies[0].nme`; did you mean `name`?",
        "`strategies[0].name`: is missing",
        "unknown key `strategies[0].limits.fule`; did you mean `fuel`?",
        "`strategies[0].limits.memoryBytes`: must be a whole number above 0, is `-1`",
        "--kubelet-root-dir must be absolute: `var/lib`",
    ] {
        assert!(message.contains(part), "{part} in {message}");
    }
    assert_eq!(message.lines().count(), 1, "{message}");
}

#[test]
fn what_cannot_be_honoured_is_refused_with_key_and_value() {
    let long = "x".repeat(254);
    let cases: [(&str, &[&str], &[&str]); 34] = [
        ("apiVersion: v1", &[], &["apiVersion", "`v1`", "v1alpha1"]),
        (
            "allocator: a\nallocator: b",
            &[],
            &["duplicate mapping key `allocator` is not allowed here", "line 2"],
        ),
        ("a: [", &[], &["not valid YAML"]),
        ("- a", &[], &["mapping", "a list"]),
        ("just text", &[], &["mapping", "`just text`"]),
        ("--- {}\n--- {}", &[], &["YAML"]),
        ("exposePCIeRoots: true", &[], &["--expose-pcie-roots"]),
        ("kubeletRootDir: /x", &[], &["--kubelet-root-dir"]),
        (
            "reservedCPUs: 0-1\nreservedCPUCount: 2",
            &[],
            &["reservedCPUs and reservedCPUCount exclude each other"],
        ),
        (
            "reservedCPUCount: 2",
            &["--reserved-cpus=0"],
            &["--reserved-cpus and reservedCPUCount exclude each other"],
        ),
        ("reservedCPUCount: 0", &[], &["reservedCPUCount", "above 0"]),
        ("reservedCPUCount: 0-1", &[], &["reservedCPUCount", "whole number"]),
        ("reservedCPUCount: 9000", &[], &["`reservedCPUCount`: 9000 is more than the 8192 CPUs"]),
        ("claimStatus: often", &[], &["claimStatus", "must be true or false", "`often`"]),
        ("cpuDeviceMode: Grouped", &[], &["cpuDeviceMode", "`Grouped`", "individual"]),
        ("", &["--cpu-device-mode=x"], &["--cpu-device-mode", "`x`"]),
        ("groupBy: core", &[], &["groupBy", "`core`", "numanode, socket, llc or machine"]),
        ("allocator: Packed", &[], &["allocator", "`Packed`"]),
        ("allocator: [a]", &[], &["allocator", "must be text", "a list"]),
        ("reservedCPUs: 5-2", &[], &["reservedCPUs", "5-2", "backwards"]),
        ("reservedCPUs: 0.5", &[], &["reservedCPUs", "0.5"]),
        ("", &["--reserved-cpus=0,"], &["--reserved-cpus", "`0,`"]),
        ("minSharedCPUs: 0", &[], &["minSharedCPUs", "above 0"]),
        ("minSharedCPUs: 1.5", &[], &["minSharedCPUs", "1.5"]),
        ("minSharedCPUs: 9000", &[], &["minSharedCPUs", "9000", "8192"]),
        ("cfsQuota: no", &[], &["cfsQuota"]),
        (
            "publishNodeAllocatableResourceMapping: 'yes'",
            &[],
            &["publishNodeAllocatableResourceMapping", "`yes`"],
        ),
        ("hostnameOverride: a_b", &[], &["hostnameOverride", "a_b"]),
        ("", &["--hostname-override", &long], &["--hostname-override"]),
        ("", &["--bind-address=8080"], &["--bind-address", "`8080`"]),
        ("", &["--lock-timeout=30"], &["--lock-timeout", "`30`", "30s"]),
        ("strategies: x", &[], &["strategies", "a list"]),
        ("strategies: [{name: cpumanager, path: p}]", &[], &["cpumanager", "packed"]),
        (
            "strategies: [{name: a, path: p}, {name: a, path: q, digest: md5:1}]",
            &[],
            &["`a` is there twice", "md5:1"],
        ),
    ];
    for (text, args, parts) in cases {
        let message = refusal(text, args);
        for part in parts {
            assert!(message.contains(part), "{text:?} {args:?}: {part} in {message}");
        }
    }
}

#[test]
fn longest_socket_path_has_107_bytes() {
    let root = |length: usize| format!("--kubelet-root-dir=/{}", "r".repeat(length - 1));
    // "/plugins_registry/dra.cpu@reg.sock" is 34 bytes.
    config("", &[&root(73)]);
    let message = refusal("", &[&root(80)]);
    assert!(
        message.contains(
            "dra.cpu@reg.sock is 7 bytes over the limit of 107; choose a shorter --kubelet-root-dir"
        ),
        "{message}"
    );
    let message = refusal("", &[&format!("--nri-socket=/{}", "n".repeat(107))]);
    assert!(message.contains("1 bytes over") && message.contains("--nri-socket"), "{message}");
}

#[test]
fn unreadable_file_is_named() {
    let error = flags(&["--config=/no/such/file.yaml"]).unwrap().load().unwrap_err();
    assert!(error.to_string().contains("/no/such/file.yaml"));
}

#[test]
fn changes_go_over_the_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("config.yaml");
    std::fs::write(&path, "allocator: llc-first\nreservedCPUs: '1'\n").unwrap();
    let flags = flags(&["--config", path.to_str().unwrap(), "--hostname-override=n"]).unwrap();
    let changes = |value: Value| match value {
        Value::Object(map) => map,
        _ => panic!("an object"),
    };
    let changed =
        flags.load_with(&changes(serde_json::json!({"reservedCPUs": "0", "allocator": null}))).unwrap();
    assert_eq!((changed.selection.allocator.as_str(), reserved(&changed).as_str()), ("packed", "0"));
    let error = flags.load_with(&changes(serde_json::json!({"allocatr": "packed"}))).unwrap_err();
    assert!(error.to_string().contains("allocatr"));
}

#[test]
fn description_has_every_value() {
    let config = config("strategies: [{name: a, path: /a.wasm, limits: {fuel: 7}}]\nreservedCPUs: 0-1", &[]);
    let text = config.describe().to_string();
    for part in [
        "\"groupBy\":\"numanode\"",
        "\"reservedCPUs\":\"0-1\"",
        "\"limits\":{\"fuel\":7}",
        "\"--lock-timeout\":\"30s\"",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

fn line() -> impl Strategy<Value = String> {
    prop_oneof![
        "\\PC{0,30}",
        "(reservedCPUs|strategies|allocator|apiVersion|minSharedCPUs|groupBy|x)[:=] ?\\PC{0,20}",
        " {0,3}- ?(name|limits|path): ?[0-9a-z\\[\\]{},:&*!'\"-]{0,12}",
    ]
}

proptest! {
    #[test]
    fn no_file_panics(lines in prop::collection::vec(line(), 0..8)) {
        let _answer = configure(&lines.join("\n"), &[]);
    }

    #[test]
    fn no_arguments_panic(args in prop::collection::vec(prop_oneof![
        "\\PC{0,12}",
        "-{1,3}(v|vmodule|bind-address|lock-timeout|reserved-cpus|expose-pcie-roots|group-by)(=\\PC{0,12})?",
    ], 0..6)) {
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        if let Ok(flags) = flags(&args) {
            let _answer = flags.over(Map::new(), &around());
        }
    }
}
