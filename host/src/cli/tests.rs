use super::*;

fn parsed(args: &[&str]) -> Result<Cli, clap::Error> {
    parse(args.iter().map(OsString::from))
}

#[test]
fn no_verb_is_the_daemon() {
    for args in [
        &["dracpu"][..],
        &["/dracpu", "-v=4", "--expose-pcie-roots=false"],
        &["dracpu", "--group-by", "socket"],
    ] {
        assert!(parsed(args).unwrap().verb.is_none(), "{args:?}");
    }
    assert!(matches!(parsed(&["dracpu", "run", "-v=4"]).unwrap().verb, Some(Verb::Run(_))));
}

#[test]
fn program_name_selects_gatherinfo() {
    for args in [&["/dracpu-gatherinfo"][..], &["dracpu-gatherinfo", "--stdout"], &["dracpu", "gatherinfo"]] {
        assert!(matches!(parsed(args).unwrap().verb, Some(Verb::Gatherinfo(_))), "{args:?}");
    }
}

#[test]
fn bad_usage_is_an_error() {
    for args in [
        &["dracpu", "--v=4", "version"][..],
        &["dracpu", "-v", "4", "gatherinfo"],
        &["dracpu", "no-such-verb"],
        &["dracpu", "--no-such-flag"],
        &["dracpu", "-v=many"],
        &["dracpu", "introspect"],
    ] {
        assert!(parsed(args).unwrap_err().use_stderr(), "{args:?}");
        assert_eq!(main(args.iter().map(OsString::from)), ExitCode::from(USAGE), "{args:?}");
    }
}

#[test]
fn a_boolean_flag_apart_from_its_value_is_told_how_it_is_written() {
    for args in [
        &["dracpu", "--expose-pcie-roots", "false"][..],
        &["dracpu", "-expose-pcie-roots", "false", "--v=4"],
        &["dracpu", "run", "--expose-pcie-roots", "false"],
        &["dracpu", "slices", "--machine=two-socket", "--expose-pcie-roots", "false"],
    ] {
        let error = parsed(args).unwrap_err();
        assert!(error.use_stderr());
        assert!(error.to_string().contains("write `--expose-pcie-roots=false`"), "{error}");
    }
    let other = parsed(&["dracpu", "--no-such-flag", "false"]).unwrap_err().to_string();
    assert!(!other.contains("write `"), "{other}");
}

#[test]
fn help_of_each_verb_has_an_example() {
    fn check(command: &clap::Command, path: &[&str]) {
        let has_verbs = command.get_subcommands().next().is_some();
        if path.len() == 1 || !has_verbs {
            let args: Vec<&str> = path.iter().copied().chain(["--help"]).collect();
            let help = parsed(&args).unwrap_err();
            assert!(!help.use_stderr(), "{args:?}");
            assert!(help.to_string().contains("Example"), "{help}");
        }
        // What is hidden is no verb for people.
        for verb in command.get_subcommands().filter(|verb| !verb.is_hide_set()) {
            check(verb, &[path, &[verb.get_name()]].concat());
        }
    }
    check(&Cli::command(), &["dracpu"]);
}

#[test]
fn command_is_consistent() {
    Cli::command().debug_assert();
}
