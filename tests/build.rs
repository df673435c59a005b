//! Builds the example strategy as a component, for the demo and the stories.

use anyhow::Context as _;
use std::path::PathBuf;

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
    Ok(())
}
