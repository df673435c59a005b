//! A project to begin with. Its files are those of `strategies/template`, which build as they are.

use super::Failure;
use crate::strategy::is_dns_label;
use crate::words::quoted;
use anyhow::{Context as _, anyhow};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Begin a strategy: a project that builds, tests itself and passes `check`
///
/// Writes a directory of the strategy's name. The SDK is not published: the project uses that of a checkout of
/// dracpu's sources, with its lock file and toolchain, so that nothing is fetched that the checkout does not need.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  \
    dracpu strategy new e-cores-for-batch --sdk ~/dracpu\n  \
    cd e-cores-for-batch && cargo test && dracpu strategy build && dracpu strategy check e-cores-for-batch.wasm")]
pub(super) struct Args {
    /// What the strategy is called, in configurations and claims: lower-case letters, digits and inner dashes
    name: String,
    /// A checkout of dracpu's sources, or its strategies/sdk [default: the checkout that this is called in]
    #[arg(long, value_name = "PATH")]
    sdk: Option<PathBuf>,
    /// The language that it is written in
    #[arg(long, value_enum, default_value_t)]
    lang: Language,
}

#[derive(Debug, Clone, Copy, Default, clap::ValueEnum)]
enum Language {
    #[default]
    Rust,
}

macro_rules! template {
    ($($name:literal)*) => {
        [$(($name, include_str!(concat!("../../../../strategies/template/", $name)))),*]
    };
}

/// Files by their place in the project.
const TEMPLATE: &[(&str, &str)] = &template![
    ".gitignore"
    "Cargo.toml"
    "README.md"
    "options.schema.json"
    "src/lib.rs"
];
/// What the template calls itself.
const TEMPLATE_NAME: &str = "my-strategy";
/// Where the template's SDK lies.
const TEMPLATE_SDK: &str = "\"../sdk\"";

/// The SDK within a checkout.
const SDK: &str = "strategies/sdk";
/// What a project takes over from a checkout: the versions of all that the SDK is built with.
const TAKEN_OVER: [&str; 2] = ["Cargo.lock", "rust-toolchain.toml"];

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let Language::Rust = args.lang;
    let directory = Path::new(&args.name);
    let checkout = checkout(&args.name, args.sdk.as_deref()).map_err(Failure::Usage)?;
    write(directory, &args.name, &checkout).map_err(Failure::Failed)?;
    crate::cli::print(&format!(
        "{name}/ is a strategy. Next:\n  \
         cd {name}\n  \
         cargo test                              # src/lib.rs is all of it\n  \
         dracpu strategy build                   # {name}.wasm\n  \
         dracpu strategy check {name}.wasm\n",
        name = args.name
    ))
}

/// The checkout whose SDK the project uses; or why there is none, or no project can be.
fn checkout(name: &str, sdk: Option<&Path>) -> anyhow::Result<PathBuf> {
    if !is_dns_label(name) {
        return Err(anyhow!(
            "`{}` is no name for a strategy: lower-case letters, digits and inner dashes, at most 63",
            quoted(name)
        ));
    }
    if Path::new(name).symlink_metadata().is_ok() {
        return Err(anyhow!("{name} is there already: choose another name, or remove it"));
    }
    let is_checkout = |path: &&Path| path.join(SDK).join("Cargo.toml").is_file();
    let absolute = |path: &Path| path.canonicalize().with_context(|| format!("--sdk {}", path.display()));
    match sdk {
        Some(path) => {
            let path = absolute(path)?;
            let mut above = path.ancestors().take(3);
            above.find(is_checkout).map(Path::to_owned).ok_or_else(|| {
                anyhow!(
                    "--sdk {}: there is no {SDK} in it: name a checkout of dracpu's sources",
                    path.display()
                )
            })
        }
        None => {
            let here = std::env::current_dir().context("the current directory cannot be read")?;
            here.ancestors().find(is_checkout).map(Path::to_owned).ok_or_else(|| {
                anyhow!(
                    "the SDK is not published, and this is no checkout of dracpu's sources: name one with --sdk PATH"
                )
            })
        }
    }
}

fn write(directory: &Path, name: &str, checkout: &Path) -> anyhow::Result<()> {
    let sdk = checkout.join(SDK);
    let sdk = sdk.to_str().with_context(|| format!("{} is no UTF-8", sdk.display()))?;
    // A JSON string is a TOML string.
    let sdk = serde_json::to_string(sdk)?;
    let mut files: Vec<(&str, String)> = TEMPLATE
        .iter()
        .map(|(place, text)| (*place, text.replace(TEMPLATE_NAME, name).replace(TEMPLATE_SDK, &sdk)))
        .collect();
    for place in TAKEN_OVER {
        let path = checkout.join(place);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        files.push((place, text));
    }
    for (place, text) in files {
        let path = directory.join(place);
        let write = || {
            std::fs::create_dir_all(path.parent().unwrap_or(directory))?;
            std::fs::write(&path, text)
        };
        write().with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

    #[test]
    fn the_project_has_the_strategys_name_and_the_checkouts_sdk() {
        let directory = tempfile::tempdir().unwrap();
        let project = directory.path().join("mine");
        let checkout = checkout("mine", Some(Path::new(ROOT))).unwrap();
        write(&project, "mine", &checkout).unwrap();
        let read = |place: &str| std::fs::read_to_string(project.join(place)).unwrap();
        for (place, _) in TEMPLATE {
            assert!(!read(place).contains(TEMPLATE_NAME), "{place}");
        }
        assert!(read("src/lib.rs").contains("name: \"mine\""));
        let sdk = format!("path = \"{}\"", checkout.join(SDK).display());
        assert!(read("Cargo.toml").contains(&sdk), "{}", read("Cargo.toml"));
    }

    #[test]
    fn what_cannot_be_is_said_before_anything_is_written() {
        let said = |name: &str, sdk: Option<&Path>| checkout(name, sdk).unwrap_err().to_string();
        assert!(said("My_Strategy", None).contains("is no name for a strategy"));
        assert!(said("src", Some(Path::new(ROOT))).contains("src is there already"));
        assert!(said("mine", Some(Path::new("/proc"))).contains("there is no strategies/sdk in it"));
        assert!(said("mine", Some(Path::new("/none"))).contains("--sdk /none"));
    }

    #[test]
    fn the_sdk_itself_names_the_checkout() {
        let sdk = Path::new(ROOT).join(SDK);
        assert_eq!(checkout("mine", Some(&sdk)).unwrap(), Path::new(ROOT).canonicalize().unwrap());
    }
}
