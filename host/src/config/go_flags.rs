//! Go's flag syntax, in which charts and users write this driver's flags: `-flag` is `--flag`.
//!
//! Source: documentation of Go's package `flag`, section "Command line flag syntax".

use std::collections::HashSet;
use std::ffi::OsString;

/// The arguments with two dashes before every long flag that `command` or one of its verbs knows.
pub(crate) fn normalise(args: impl IntoIterator<Item = OsString>, command: &clap::Command) -> Vec<OsString> {
    let mut known = HashSet::new();
    collect(command, &mut known);
    let mut flags = true; // until `--`
    args.into_iter()
        .map(|arg| {
            flags = flags && arg != "--";
            match arg.to_str().and_then(|text| text.strip_prefix('-')) {
                Some(rest) if flags && known.contains(rest.split('=').next().unwrap_or(rest)) => {
                    OsString::from(format!("--{rest}"))
                }
                _ => arg,
            }
        })
        .collect()
}

fn collect<'a>(command: &'a clap::Command, known: &mut HashSet<&'a str>) {
    known.extend(command.get_arguments().filter_map(clap::Arg::get_long));
    for verb in command.get_subcommands() {
        collect(verb, known);
    }
}
