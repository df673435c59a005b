//! What stands in the pages and examples.

use anyhow::{Context as _, Result};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

/// The root of the repository.
pub(crate) const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// Runs a tool of `tests/tools/docs`.
pub(crate) fn tool(name: &str, arguments: &[&str]) -> Output {
    let script = Path::new(REPOSITORY).join("tests/tools/docs").join(name);
    Command::new("python3")
        .arg(script)
        .args(arguments)
        .output()
        .expect("python3 runs the tools of the documentation")
}

#[derive(Deserialize)]
struct Block {
    place: String,
    language: String,
    note: String,
    text: String,
}

/// YAML that stands somewhere.
pub(crate) struct Yaml {
    /// File and line.
    pub(crate) place: String,
    /// Its documents.
    pub(crate) documents: Vec<Value>,
}

fn documents(text: &str) -> Result<Vec<Value>> {
    // A digest as it would be.
    let text = text.replace("sha256:…", &format!("sha256:{}", "0".repeat(64)));
    serde_saphyr::from_multiple(&text).map_err(|error| anyhow::anyhow!("{error}"))
}

/// Every whole YAML of pages and examples: excerpts are part of a file that is there.
pub(crate) fn yaml() -> Result<Vec<Yaml>> {
    let listed = tool("blocks.py", &[]);
    let blocks: Vec<Block> = serde_json::from_slice(&listed.stdout)
        .with_context(|| String::from_utf8_lossy(&listed.stderr).into_owned())?;
    let mut found = Vec::new();
    for block in blocks.iter().filter(|block| block.language == "yaml" && !block.note.starts_with("from: ")) {
        let documents = documents(&block.text).with_context(|| block.place.clone())?;
        found.push(Yaml { place: block.place.clone(), documents });
    }
    for directory in ["claims", "classes", "values"] {
        let examples = examples(directory)?.into_iter();
        found.extend(
            examples
                .map(|(name, documents)| Yaml { place: format!("examples/{directory}/{name}"), documents }),
        );
    }
    Ok(found)
}

/// The examples of a directory, by file.
pub(crate) fn examples(directory: &str) -> Result<BTreeMap<String, Vec<Value>>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(Path::new(REPOSITORY).join("examples").join(directory))? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).context("a name")?.to_owned();
        let text = std::fs::read_to_string(&path)?;
        found.insert(name.clone(), documents(&text).with_context(|| name)?);
    }
    Ok(found)
}
