//! Go's flag syntax, in which charts and users write this driver's flags: `-flag` is `--flag`.
//!
//! Source: documentation of Go's package `flag`, section "Command line flag syntax".

use super::values::go_bool;
use std::collections::HashSet;
use std::ffi::OsString;

/// The arguments with two dashes before every long flag that `command` or one of its verbs knows.
pub fn normalise(args: impl IntoIterator<Item = OsString>, command: &clap::Command) -> Vec<OsString> {
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

/// What to write where a boolean flag and its value stand apart: the value is then taken for something else.
pub fn split_boolean(args: &[OsString], command: &clap::Command) -> Option<String> {
    let flags = args.iter().take_while(|arg| *arg != "--").filter_map(|arg| arg.to_str());
    let flags: Vec<&str> = flags.collect();
    flags.windows(2).find_map(|pair| {
        let [flag, value] = pair else { return None };
        let name = flag.strip_prefix("--")?;
        let split = is_boolean(command, name) && go_bool(value).is_ok();
        split.then(|| format!("the value of a boolean flag follows `=`: write `{flag}={value}`"))
    })
}

fn is_boolean(command: &clap::Command, name: &str) -> bool {
    let here =
        command.get_arguments().any(|flag| flag.get_long() == Some(name) && flag.is_require_equals_set());
    here || command.get_subcommands().any(|verb| is_boolean(verb, name))
}

fn collect<'a>(command: &'a clap::Command, known: &mut HashSet<&'a str>) {
    known.extend(command.get_arguments().filter_map(clap::Arg::get_long));
    for verb in command.get_subcommands() {
        collect(verb, known);
    }
}
