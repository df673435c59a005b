//! `dracpu completion`: what a shell needs to complete verbs, flags and their values.

use super::{Cli, Failure};
use clap::CommandFactory as _;
use clap_complete::{generate, shells};
use std::process::ExitCode;

/// Print the completion script of a shell
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  source <(dracpu completion bash)\n  \
                        dracpu completion zsh > \"${fpath[1]}/_dracpu\"\n  \
                        dracpu completion fish > ~/.config/fish/completions/dracpu.fish")]
pub(super) struct Args {
    /// Whose script
    #[arg(value_enum)]
    shell: Shell,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Shell {
    Bash,
    Zsh,
    Fish,
}

pub(super) fn run(args: Args) -> Result<ExitCode, Failure> {
    super::print(&script(args.shell))
}

fn script(shell: Shell) -> String {
    let (mut command, name, mut script) = (Cli::command(), "dracpu", Vec::new());
    match shell {
        Shell::Bash => generate(shells::Bash, &mut command, name, &mut script),
        Shell::Zsh => generate(shells::Zsh, &mut command, name, &mut script),
        Shell::Fish => generate(shells::Fish, &mut command, name, &mut script),
    }
    String::from_utf8_lossy(&script).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum as _;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    #[test]
    fn each_script_knows_every_verb() {
        for shell in Shell::value_variants() {
            let script = script(*shell);
            for verb in Cli::command().get_subcommands().filter(|verb| !verb.is_hide_set()) {
                assert!(script.contains(verb.get_name()), "{} in that of {shell:?}", verb.get_name());
            }
            assert!(script.contains("kubelet-root-dir"), "flags in that of {shell:?}");
        }
    }

    /// Whether the shell reads its script without complaint; none where there is no such shell.
    fn reads(shell: &str, script: &str) -> Option<bool> {
        let mut child =
            Command::new(shell).arg("-n").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().ok()?;
        child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
        Some(child.wait().unwrap().success())
    }

    #[test]
    fn each_shell_that_is_here_can_read_its_script() {
        for (shell, name) in [(Shell::Bash, "bash"), (Shell::Zsh, "zsh"), (Shell::Fish, "fish")] {
            match reads(name, &script(shell)) {
                Some(well) => assert!(well, "{name}"),
                None => eprintln!("skipped: no {name} here"),
            }
        }
        assert_eq!(reads("bash", "if then"), Some(false), "bash is there, and tells good from bad");
    }

    #[test]
    fn bash_completes_verbs_and_values() {
        let ask = |words: &str, at: usize| {
            let line = format!(
                "COMP_WORDS=({words}); COMP_CWORD={at}; _dracpu dracpu '' ''; echo \"${{COMPREPLY[@]}}\""
            );
            let script = format!("{}\n{line}\n", script(Shell::Bash));
            let output = Command::new("bash").arg("-c").arg(script).output().unwrap();
            String::from_utf8(output.stdout).unwrap()
        };
        assert!(ask("dracpu ''", 1).split_whitespace().any(|word| word == "topology"));
        assert_eq!(
            ask("dracpu completion ''", 2)
                .split_whitespace()
                .filter(|word| ["bash", "zsh", "fish"].contains(word))
                .count(),
            3
        );
    }
}
