//! Builds the built-in strategies and writes a table of them for `lib.rs` to include.

use anyhow::Context as _;
use flate2::Compression;
use flate2::write::DeflateEncoder;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Crates of `strategies/`, by the name of the strategy.
const BUILT_IN: [&str; 3] = ["external", "llc-first", "packed"];

fn main() -> ExitCode {
    // Cargo shows what was written to standard error, the compiler's messages among it, only on failure.
    build().map_or_else(
        |error| {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    )
}

fn build() -> anyhow::Result<()> {
    let out = PathBuf::from(std::env::var_os("OUT_DIR").context("OUT_DIR is not set")?);
    // As it is now: a cached build script may come from another checkout.
    let package =
        PathBuf::from(std::env::var_os("CARGO_MANIFEST_DIR").context("CARGO_MANIFEST_DIR is not set")?);
    let workspace = package.ancestors().nth(2).context("no workspace above")?;
    let packages = BUILT_IN.map(|name| format!("dracpu-strategy-{name}"));
    let built = dracpu_guest_build::Guests {
        workspace,
        target_directory: &dracpu_guest_build::guests_directory(&out)?,
        packages: &packages.each_ref().map(String::as_str),
        examples: false,
    }
    .build()?;
    let mut table = String::from("&[");
    for (artifact, component) in &built.components {
        let name = artifact.trim_start_matches("dracpu_strategy_").replace('_', "-");
        let path = out.join(&name).with_extension("wasm.deflate");
        std::fs::write(&path, compressed(component)?)
            .with_context(|| format!("cannot write {}", path.display()))?;
        write!(table, "BuiltIn {{ name: {name:?}, compressed: include_bytes!({path:?}) }},")?;
    }
    table.push(']');
    std::fs::write(out.join("components.rs"), table).context("cannot write components.rs")?;
    for input in built.inputs {
        println!("cargo::rerun-if-changed={}", input.display());
    }
    Ok(())
}

fn compressed(component: &[u8]) -> anyhow::Result<Vec<u8>> {
    let mut encoder = DeflateEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(component)?;
    Ok(encoder.finish()?)
}
