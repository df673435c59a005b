use crate::{BuildError, Guests, PROFILE, TARGET, read};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Builds the guests; returns (artifact name, module file), by name.
pub(crate) fn build(guests: &Guests<'_>) -> Result<Vec<(String, PathBuf)>, BuildError> {
    let mut modules = Vec::new();
    match guests.examples {
        true => modules.extend(run(guests, examples(guests))?),
        false => {
            for package in guests.packages {
                modules.extend(run(guests, library(guests, package))?);
            }
        }
    }
    modules.sort();
    Ok(modules)
}

fn run(guests: &Guests<'_>, mut command: Command) -> Result<Vec<(String, PathBuf)>, BuildError> {
    let words = [command.get_program()].into_iter().chain(command.get_args());
    let text = words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ");
    let io = |source| BuildError::Io { what: text.clone(), source };
    // Standard output carries the list of artifacts; diagnostics go where the outer build's go.
    let output = command.stderr(Stdio::inherit()).output().map_err(io)?;
    if output.status.success() {
        return Ok(modules(guests, &String::from_utf8_lossy(&output.stdout)));
    }
    if target_missing() {
        return Err(BuildError::TargetMissing);
    }
    Err(BuildError::Cargo { command: text, status: output.status })
}

fn examples(guests: &Guests<'_>) -> Command {
    let mut command = command(guests, "build");
    for package in guests.packages {
        command.args(["--package", package]);
    }
    command.arg("--examples");
    command
}

/// As a module alone: cargo optimises at link time only what is nothing else as well, such as a library for tests.
fn library(guests: &Guests<'_>, package: &str) -> Command {
    let mut command = command(guests, "rustc");
    command.args(["--package", package, "--lib", "--crate-type", "cdylib"]);
    command
}

fn command(guests: &Guests<'_>, verb: &str) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    for (name, _) in std::env::vars_os().filter(|(name, _)| !reaches_the_nested_build(name)) {
        command.env_remove(name);
    }
    command
        .current_dir(guests.workspace)
        .env("CARGO_ENCODED_RUSTFLAGS", flags(guests.workspace))
        .args([verb, "--locked", "--target", TARGET, "--profile", PROFILE])
        .args(["--message-format", "json-render-diagnostics"])
        .arg("--target-dir")
        .arg(guests.target_directory);
    command
}

/// Of cargo's and rustc's variables only those that say where things are and how to get them: the outer
/// build's flags, wrappers, features, profiles and targets are not for guests.
fn reaches_the_nested_build(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return true };
    let foreign = ["CARGO", "RUSTC", "RUSTFLAGS", "RUSTDOC", "CLIPPY_", "LLVM_PROFILE", "__CARGO"];
    let wanted = [
        "CARGO_HOME",
        "CARGO_HTTP_",
        "CARGO_MAKEFLAGS",
        "CARGO_NET_",
        "CARGO_REGISTRIES_",
        "CARGO_REGISTRY_",
        "CARGO_SOURCE_",
        "CARGO_TERM_",
    ];
    !foreign.iter().any(|prefix| name.starts_with(prefix))
        || wanted.iter().any(|prefix| name.starts_with(prefix))
}

/// Takes the machine's paths out of panic messages and debug names: later remappings win, so the workspace, which may lie
/// under the home directory, comes last. And inlines with measure: as far as it makes a component quicker, not as far as
/// it makes one larger by a third.
fn flags(workspace: &Path) -> OsString {
    let home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| Path::new(&home).join(".cargo")));
    let mut flags = OsString::from("-Cllvm-args=-inline-threshold=120");
    for (from, to) in home.iter().map(|home| (home.as_path(), "cargo")).chain([(workspace, "dracpu")]) {
        flags.push("\u{1f}"); // cargo's separator of encoded flags
        flags.push("--remap-path-prefix=");
        flags.push(from);
        flags.push("=");
        flags.push(to);
    }
    flags
}

/// The modules among cargo's messages: artifacts of the packages asked for that end in `.wasm`.
fn modules(guests: &Guests<'_>, messages: &str) -> Vec<(String, PathBuf)> {
    let directory = guests.target_directory.join(TARGET).join(PROFILE);
    let directory = if guests.examples { directory.join("examples") } else { directory };
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok())
        .filter_map(|message| message.get("filenames")?.as_array().cloned())
        .flatten()
        .filter_map(|file| file.as_str().map(PathBuf::from))
        .filter(|file| file.parent() == Some(&directory) && file.extension() == Some(OsStr::new("wasm")))
        .filter_map(|file| Some((file.file_stem()?.to_str()?.to_owned(), file)))
        .collect()
}

fn target_missing() -> bool {
    Command::new("rustc")
        .args(["--print", "target-libdir", "--target", TARGET])
        .output()
        .is_ok_and(|out| !Path::new(String::from_utf8_lossy(&out.stdout).trim()).is_dir())
}

/// What a module was made from: its dep-info file (cargo writes one beside each artifact, `target: file
/// file…` with blanks escaped) and the manifests above those files.
pub(crate) fn inputs(module: &Path) -> Result<BTreeSet<PathBuf>, BuildError> {
    let dep_info = module.with_extension("d");
    let text = read(&dep_info)?;
    let text = String::from_utf8_lossy(&text).replace("\\ ", "\0");
    let files = text.lines().filter_map(|line| line.split_once(": ")).flat_map(|(_, files)| files.split(' '));
    let mut inputs = BTreeSet::new();
    for file in files.filter(|file| !file.is_empty()) {
        let file = PathBuf::from(file.replace('\0', " "));
        let manifest =
            file.ancestors().skip(1).map(|above| above.join("Cargo.toml")).find(|path| path.is_file());
        inputs.extend(manifest);
        inputs.insert(file);
    }
    Ok(inputs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_the_outer_build_do_not_reach_guests() {
        for (name, reaches) in [
            ("PATH", true),
            ("CARGO_HOME", true),
            ("CARGO_NET_OFFLINE", true),
            ("CARGO_REGISTRIES_CRATES_IO_PROTOCOL", true),
            ("RUSTUP_TOOLCHAIN", true),
            ("CARGO_BUILD_TARGET", false),
            ("CARGO_TARGET_DIR", false),
            ("CARGO_ENCODED_RUSTFLAGS", false),
            ("RUSTFLAGS", false),
            ("RUSTC_WRAPPER", false),
            ("RUSTC_WORKSPACE_WRAPPER", false),
            ("CARGO_PROFILE_RELEASE_LTO", false),
            ("LLVM_PROFILE_FILE", false),
        ] {
            assert_eq!(reaches_the_nested_build(OsStr::new(name)), reaches, "{name}");
        }
    }

    #[test]
    fn the_directory_of_guests_lies_beside_the_profile() {
        for path in ["/w/target/debug/build/x-1/out", "/w/target/debug/deps/stories-1"] {
            assert_eq!(crate::guests_directory(Path::new(path)).unwrap(), Path::new("/w/target/guests"));
        }
        assert!(crate::guests_directory(Path::new("/usr/bin/x")).is_err());
    }
}
