//! Builds the example strategy as a component, for the demo and the stories; and the library by which a process sees other
//! clocks than the machine's.

use anyhow::Context as _;
use std::path::{Path, PathBuf};
use std::process::Command;

const EXAMPLE: &str = "dracpu-example-highest-first";

fn main() -> anyhow::Result<()> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").context("OUT_DIR is not set")?);
    // As it is now: a cached build script may come from another checkout.
    let package =
        PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").context("CARGO_MANIFEST_DIR is not set")?);
    let built = dracpu_guest_build::Guests {
        workspace: package.parent().context("no workspace above")?,
        target_directory: &dracpu_guest_build::guests_directory(&out)?,
        packages: &[EXAMPLE],
        examples: false,
    }
    .build()?;
    let [(_, component)] = built.components.as_slice() else {
        anyhow::bail!("{EXAMPLE} gave {} components, not one", built.components.len());
    };
    let path = out.join("highest-first.wasm");
    std::fs::write(&path, component).with_context(|| format!("cannot write {}", path.display()))?;
    for input in built.inputs {
        println!("cargo::rerun-if-changed={}", input.display());
    }
    library(&package.join("src/support/process_clock.c"), &out.join("process_clock.so"))
}

fn library(source: &Path, library: &Path) -> anyhow::Result<()> {
    println!("cargo::rerun-if-changed={}", source.display());
    let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
    let mut compile = Command::new(&compiler);
    compile.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(library).arg(source).arg("-ldl");
    let status =
        compile.status().with_context(|| format!("cannot run the C compiler {}", compiler.display()))?;
    anyhow::ensure!(status.success(), "{} could not be compiled", source.display());
    Ok(())
}
