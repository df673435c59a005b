//! A project to begin with: `strategies/template`, or an example in another language with the interface beside it. All
//! build as they are.

use super::Failure;
use crate::config::strategy_name;
use crate::strategy::is_dns_label;
use crate::words::quoted;
use anyhow::{Context as _, anyhow};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Begin a strategy: a project that builds, tests itself and passes `check`
///
/// Writes a directory of the strategy's name. In Rust it uses the SDK, which is not published: that of a checkout of
/// dracpu's sources, with its lock file and toolchain, so that nothing is fetched that the checkout does not need. In
/// another language it has the interface and a script that fetches the language's tools and builds the component.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dracpu strategy new e-cores-for-batch --sdk ~/dracpu\n  \
    cd e-cores-for-batch && cargo test && dracpu strategy build && dracpu strategy check e-cores-for-batch.wasm\n\n  \
    dracpu strategy new mine --lang python\n  \
    cd mine && ./build.sh && dracpu strategy check mine.wasm --cases 300")]
pub(super) struct Args {
    /// What the strategy is called, in configurations and claims: lower-case letters, digits and inner dashes
    name: String,
    /// A checkout of dracpu's sources, or its strategies/sdk; for Rust [default: the checkout that this is called in]
    #[arg(long, value_name = "PATH")]
    sdk: Option<PathBuf>,
    /// The language that it is written in
    #[arg(long, value_enum, default_value_t)]
    lang: Language,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
enum Language {
    #[default]
    Rust,
    Python,
    Javascript,
}

macro_rules! files {
    ($directory:literal: $($name:literal)*) => {
        &[$(($name, include_str!(concat!("../../../../", $directory, "/", $name)))),*]
    };
}

/// What a project begins with.
struct Template {
    /// Texts by their place in the project.
    files: &'static [(&'static str, &'static str)],
    /// What the template calls itself.
    name: &'static str,
    /// What refers to something outside the template.
    outside: &'static str,
    /// What to do next in the project's directory.
    next: &'static str,
}

const RUST: Template = Template {
    files: files!("strategies/template": ".gitignore" "Cargo.toml" "README.md" "options.schema.json" "src/lib.rs"),
    name: "my-strategy",
    outside: "\"../sdk\"",
    next: "cargo test                              # src/lib.rs is all of it\n  dracpu strategy build",
};
const PYTHON: Template = Template {
    files: files!("examples/python-strategy": ".gitignore" "README.md" "app.py" "build.sh"),
    name: "spread-over-caches",
    outside: "../../wit",
    next: "./build.sh                              # app.py is all of it",
};
const JAVASCRIPT: Template = Template {
    files: files!("examples/javascript-strategy": ".gitignore" "README.md" "strategy.js" "build.sh"),
    name: "emptiest-node",
    outside: "../../wit",
    next: "./build.sh                              # strategy.js is all of it",
};

/// The interface, for projects without SDK.
const WIT: (&str, &str) = ("wit/strategy.wit", include_str!("../../../../wit/strategy.wit"));

/// The SDK within a checkout.
const SDK: &str = "strategies/sdk";
/// What a project takes over from a checkout: the versions of all that the SDK is built with.
const TAKEN_OVER: [&str; 2] = ["Cargo.lock", "rust-toolchain.toml"];

pub(super) fn run(args: &Args) -> Result<ExitCode, Failure> {
    let name = &args.name;
    check_name(name).map_err(Failure::Usage)?;
    let (template, outside, more) = match args.lang {
        Language::Rust => {
            let checkout = checkout(args.sdk.as_deref()).map_err(Failure::Usage)?;
            let (sdk, more) = of_checkout(&checkout).map_err(Failure::Failed)?;
            check_crate_name(name, &more).map_err(Failure::Usage)?;
            (RUST, sdk, more)
        }
        _ if args.sdk.is_some() => {
            return Err(Failure::Usage(anyhow!(
                "--sdk is for Rust: a project in another language has all that it needs; leave it out"
            )));
        }
        Language::Python => (PYTHON, "wit".to_owned(), vec![interface()]),
        Language::Javascript => (JAVASCRIPT, "wit".to_owned(), vec![interface()]),
    };
    write(Path::new(name), &template.project(name, &outside, more)).map_err(Failure::Failed)?;
    crate::cli::print(&format!(
        "{name}/ is a strategy. Next:\n  \
         cd {name}\n  \
         {}\n  \
         dracpu strategy check {name}.wasm\n",
        template.next
    ))
}

/// A file of a project: its place and its text.
type Text = (String, String);

impl Template {
    /// The project of a strategy with this name.
    fn project(&self, name: &str, outside: &str, more: Vec<Text>) -> Vec<Text> {
        let own = self.files.iter().map(|(place, text)| {
            ((*place).to_owned(), text.replace(self.name, name).replace(self.outside, outside))
        });
        own.chain(more).collect()
    }
}

fn interface() -> Text {
    (WIT.0.to_owned(), WIT.1.to_owned())
}

/// Refuses what no strategy can be called, and what is there already.
fn check_name(name: &str) -> anyhow::Result<()> {
    if !is_dns_label(name) {
        return Err(anyhow!(
            "`{}` is no name for a strategy: lower-case letters, digits and inner dashes, at most 63",
            quoted(name)
        ));
    }
    if strategy_name(name.to_owned()) != name {
        return Err(anyhow!("{name} is another word for packed: choose another name"));
    }
    if Path::new(name).symlink_metadata().is_ok() {
        return Err(anyhow!("{name} is there already: choose another name, or remove it"));
    }
    Ok(())
}

/// Refuses what no crate can be called that is built with those of the lock file. Crates of Rust's own come first where a
/// test links its package by name.
fn check_crate_name(name: &str, taken_over: &[Text]) -> anyhow::Result<()> {
    if name.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(anyhow!("{name}: a crate's name cannot begin with a digit; choose another name"));
    }
    let line = format!("name = \"{name}\"");
    let is_locked = taken_over.iter().any(|(_, text)| text.lines().any(|known| known == line));
    if is_locked || ["alloc", "core", "proc-macro", "std", "test"].contains(&name) {
        return Err(anyhow!("{name} is a crate that the project is built with; choose another name"));
    }
    Ok(())
}

/// The checkout whose SDK the project uses.
fn checkout(sdk: Option<&Path>) -> anyhow::Result<PathBuf> {
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

/// What stands for the SDK in a project's manifest, and the files that the project takes over.
fn of_checkout(checkout: &Path) -> anyhow::Result<(String, Vec<Text>)> {
    let sdk = checkout.join(SDK);
    let sdk = sdk.to_str().with_context(|| format!("{} is no UTF-8", sdk.display()))?;
    let take_over = |place: &str| {
        let path = checkout.join(place);
        let text =
            std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok((place.to_owned(), text))
    };
    let taken = TAKEN_OVER.into_iter().map(take_over).collect::<anyhow::Result<_>>()?;
    // A JSON string is a TOML string.
    Ok((serde_json::to_string(sdk)?, taken))
}

fn write(directory: &Path, files: &[Text]) -> anyhow::Result<()> {
    for (place, text) in files {
        let path = directory.join(place);
        let write = || {
            std::fs::create_dir_all(path.parent().unwrap_or(directory))?;
            std::fs::write(&path, text)?;
            match place.ends_with(".sh") {
                true => std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)),
                false => Ok(()),
            }
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
        let checkout = checkout(Some(Path::new(ROOT))).unwrap();
        let (sdk, taken) = of_checkout(&checkout).unwrap();
        let project = RUST.project("mine", &sdk, taken);
        let text = |place: &str| &project.iter().find(|(there, _)| there == place).unwrap().1;
        assert!(text("src/lib.rs").contains("name: \"mine\""));
        let sdk = format!("path = \"{}\"", checkout.join(SDK).display());
        assert!(text("Cargo.toml").contains(&sdk), "{}", text("Cargo.toml"));
    }

    #[test]
    fn nothing_of_a_template_is_left_in_a_project() {
        for template in [RUST, PYTHON, JAVASCRIPT] {
            let before: String = template.files.iter().map(|(_, text)| *text).collect();
            assert!(before.contains(template.outside), "{}", template.name);
            for (place, text) in template.project("mine", "elsewhere", Vec::new()) {
                assert!(!text.contains(template.name) && !text.contains(template.outside), "{place}: {text}");
            }
        }
    }

    #[test]
    fn what_cannot_be_is_said_before_anything_is_written() {
        let named = |name: &str| check_name(name).unwrap_err().to_string();
        assert!(named("My_Strategy").contains("is no name for a strategy"));
        assert!(named("src").contains("src is there already"));
        assert!(named("cpumanager").contains("another word for packed"));
        let (_, taken_over) = of_checkout(Path::new(ROOT)).unwrap();
        for name in ["1abc", "serde", "dracpu-strategy-sdk", "packed-again", "std"] {
            assert_eq!(check_crate_name(name, &taken_over).is_err(), name != "packed-again", "{name}");
        }
        let said = |sdk: &str| checkout(Some(Path::new(sdk))).unwrap_err().to_string();
        assert!(said("/proc").contains("there is no strategies/sdk in it"));
        assert!(said("/none").contains("--sdk /none"));
    }

    #[test]
    fn the_sdk_itself_names_the_checkout() {
        let sdk = Path::new(ROOT).join(SDK);
        assert_eq!(checkout(Some(&sdk)).unwrap(), Path::new(ROOT).canonicalize().unwrap());
    }
}
