//! The component of a strategy's crate: a core module by cargo, and the component around it.

use super::{Failure, catalogue};
use crate::strategy::{LoadFault, Loaded};
use anyhow::{Context as _, anyhow};
use dracpu_built_in::{NotAStrategy, component_around};
use serde::Deserialize;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

/// The Rust target of strategies: no WASI, the smallest component.
const TARGET: &str = "wasm32-unknown-unknown";

/// Build a strategy written in Rust: the component file
///
/// Runs `cargo rustc --release --lib --crate-type cdylib` in the project and writes NAME.wasm into its directory, under
/// the strategy's own name, once this host has loaded it. The file's path goes to standard output.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dracpu strategy build\n  \
    dracpu strategy check \"$(dracpu strategy build ./e-cores-for-batch)\"")]
pub(super) struct Args {
    /// The project's directory
    #[arg(value_name = "DIR", default_value = ".")]
    directory: PathBuf,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let manifest = args.directory.join("Cargo.toml");
    let manifest = manifest.canonicalize().map_err(|error| {
        let what = format!("{}: name the directory of a strategy's project", manifest.display());
        Failure::Usage(anyhow::Error::new(error).context(what))
    })?;
    let module = cargo_build(&args.directory, &manifest).map_err(Failure::Failed)?;
    let component = component_of(&module).map_err(Failure::Failed)?;
    let loaded = loaded(&component)?;
    let path = args.directory.join(&loaded.description().name).with_extension("wasm");
    std::fs::write(&path, &component)
        .with_context(|| format!("cannot write {}", path.display()))
        .map_err(Failure::Failed)?;
    eprintln!("{}: {} bytes", loaded.identity(), component.len());
    loaded.remarks().iter().for_each(|remark| eprintln!("note: {remark}"));
    crate::cli::print(&format!("{}\n", path.display()))
}

/// What cargo says of a target that it has built, as far as it is of interest here.
#[derive(Debug, Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    filenames: Vec<PathBuf>,
}

#[derive(Debug, Deserialize)]
struct Target {
    crate_types: Vec<String>,
}

/// The core module of the package.
fn cargo_build(directory: &Path, manifest: &Path) -> anyhow::Result<PathBuf> {
    let mut cargo = Command::new("cargo");
    cargo.current_dir(directory).args(["rustc", "--release", "--target", TARGET]);
    // Nothing but a module: only then is it optimised at link time.
    cargo.args(["--lib", "--crate-type", "cdylib"]);
    cargo.args(["--message-format", "json-render-diagnostics"]);
    // Standard output carries the list of artifacts; diagnostics go to the author.
    let output = cargo
        .stderr(Stdio::inherit())
        .output()
        .context("cargo cannot be run: install Rust from https://rustup.rs")?;
    if !output.status.success() {
        return Err(match target_missing(directory) {
            true => anyhow!("the Rust target {TARGET} is not installed; run `rustup target add {TARGET}`"),
            false => anyhow!("cargo failed ({}); its messages are above", output.status),
        });
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    module(&messages, manifest)
        .with_context(|| format!("{}: cargo has built no WebAssembly module of it", manifest.display()))
}

/// The module of this package among cargo's messages.
fn module(messages: &str, manifest: &Path) -> Option<PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Artifact>(line).ok())
        .filter(|artifact| artifact.manifest_path == manifest)
        .filter(|artifact| artifact.target.crate_types.iter().any(|kind| kind == "cdylib"))
        .flat_map(|artifact| artifact.filenames)
        .find(|file| file.extension().is_some_and(|extension| extension == "wasm"))
}

fn target_missing(directory: &Path) -> bool {
    Command::new("rustc")
        .current_dir(directory)
        .args(["--print", "target-libdir", "--target", TARGET])
        .output()
        .is_ok_and(|out| !Path::new(String::from_utf8_lossy(&out.stdout).trim()).is_dir())
}

fn component_of(module: &Path) -> anyhow::Result<Vec<u8>> {
    let bytes = std::fs::read(module).with_context(|| format!("cannot read {}", module.display()))?;
    component_around(&bytes).map_err(|fault| match fault {
        NotAStrategy::NoModule => anyhow!("{} is no WebAssembly module", module.display()),
        NotAStrategy::NoExports => anyhow!(
            "{} is no strategy: it does not export the interface; implement `Strategy` of dracpu-strategy-sdk for a \
             type, and hand that to `export!`",
            module.display()
        ),
    })
}

/// The component, loaded as every other is.
fn loaded(component: &[u8]) -> Result<Loaded, Failure> {
    let write = || {
        let mut file = tempfile::Builder::new().suffix(".wasm").tempfile()?;
        file.write_all(component)?;
        Ok::<_, std::io::Error>(file)
    };
    let file = write().context("cannot write a temporary file").map_err(Failure::Failed)?;
    let path = file.path().display().to_string();
    catalogue(&[])?.load_any(&path).map_err(|error| {
        // The file's name says nothing here, and its author is reading.
        let why = match error.fault {
            LoadFault::Component { fault, .. } => fault.to_string(),
            LoadFault::Description { fault, .. } => fault.to_string(),
            LoadFault::Describe { error, .. } => format!("it cannot describe itself: {error}"),
            fault => fault.to_string(),
        };
        Failure::Failed(anyhow!("what was built is no strategy that this host can run: {why}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_module_is_that_of_the_package_itself() {
        let artifact = |manifest: &str, kind: &str, file: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"{manifest}","target":{{"crate_types":["{kind}"]}},"filenames":["{file}"]}}"#
            )
        };
        let messages = [
            r#"{"reason":"build-script-executed"}"#.to_owned(),
            artifact("/other/Cargo.toml", "cdylib", "/t/other.wasm"),
            artifact("/mine/Cargo.toml", "bin", "/t/tool.wasm"),
            artifact("/mine/Cargo.toml", "cdylib", "/t/mine.wasm"),
        ]
        .join("\n");
        assert_eq!(module(&messages, Path::new("/mine/Cargo.toml")), Some("/t/mine.wasm".into()));
        assert_eq!(module(&messages, Path::new("/none/Cargo.toml")), None);
    }
}
