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
fn help_of_each_verb_has_an_example() {
    for verb in Cli::command().get_subcommands() {
        let args = ["dracpu", verb.get_name(), "--help"];
        let error = parsed(&args).unwrap_err();
        assert!(!error.use_stderr());
        let help = error.to_string();
        assert!(help.contains("Example"), "{help}");
    }
    assert!(parsed(&["dracpu", "--help"]).unwrap_err().to_string().contains("Example"));
}

#[test]
fn command_is_consistent() {
    Cli::command().debug_assert();
}
