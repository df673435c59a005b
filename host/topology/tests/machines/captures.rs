//! Real machines: every capture of sysfs in a directory of captures is read and compared with what is
//! known to be true of it.
//!
//! The captures are not part of this project. `DRACPU_CAPTURES` names the directory; without it, the
//! test looks beside the source tree, and says how many captures it skipped when there is none.

use crate::drawing::assert_svg;
use dracpu_topology::{Overlay, machine, to_json};
use serde_json::Value;
use std::collections::BTreeMap;
use std::error::Error;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

type Failure = Box<dyn Error>;

/// How many captures the directory is known to hold.
const CAPTURES: usize = 118;

#[test]
fn captured_machines_are_read_as_they_are() -> Result<(), Failure> {
    let dir = std::env::var_os("DRACPU_CAPTURES").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/topologies"),
        PathBuf::from,
    );
    let Ok(index) = std::fs::read_to_string(dir.join("index.json")) else {
        println!("skipped: {CAPTURES} captures, because there is no {}/index.json", dir.display());
        return Ok(());
    };
    let index: Value = serde_json::from_str(&index)?;
    let captures = index["captures"].as_array().ok_or("the index names no captures")?;
    let (mut strict, mut wrong) = (0, Vec::new());
    for capture in captures {
        let name = capture["name"].as_str().ok_or("a capture without a name")?;
        let truth: Value =
            serde_json::from_str(&std::fs::read_to_string(dir.join(format!("{name}.truth.json")))?)?;
        let archive = dir.join(format!("{name}.tar.gz"));
        let machine = machine::load_with(&archive.display().to_string(), &overlay_of(&archive)?)?;
        let found = to_json(&machine.topology, &machine.reserved);
        assert_svg(name, &machine.topology);
        let differences = differences(&truth, &found);
        if truth["strict"] == Value::Bool(true) {
            strict += 1;
            wrong.extend(differences.into_iter().map(|difference| format!("{name}: {difference}")));
        } else if found["warnings"].as_array().is_none_or(Vec::is_empty) {
            wrong.push(format!("{name}: contradicts itself, and no warning says so"));
        }
        if capture["has_overlay"] != Value::Bool(true) {
            continue;
        }
        // As captured, files that the recording tool left out are missing: it must still be readable.
        let as_captured = machine::load(&archive.display().to_string())?.topology;
        assert_svg(name, &as_captured);
        if as_captured.sockets.is_empty() || as_captured.cores.is_empty() {
            wrong.push(format!("{name}: no sockets or no cores as captured"));
        }
    }
    println!("checked: {} captures, {strict} of them strictly; skipped: 0", captures.len());
    assert!(wrong.is_empty(), "{} differences:\n{}", wrong.len(), wrong.join("\n"));
    Ok(())
}

/// What the archive's `overlay` completes: files that a running kernel has and the recording lacks.
fn overlay_of(archive: &Path) -> Result<Overlay, Failure> {
    let mut files = BTreeMap::new();
    let mut entries = tar::Archive::new(flate2::read::GzDecoder::new(File::open(archive)?));
    for entry in entries.entries()? {
        let mut entry = entry?;
        let path = entry.path()?.display().to_string();
        if let Some(path) =
            path.trim_start_matches("./").strip_prefix("overlay/").map(|path| format!("/{path}"))
            && entry.header().entry_type().is_file()
        {
            let mut content = String::new();
            entry.read_to_string(&mut content)?;
            files.insert(path, content);
        }
    }
    Ok(Overlay::from_files(files)?)
}

/// Where the machine differs from the truth. What the truth does not know (null) is not compared, but for
/// `l3`, where null means that there is none.
fn differences(truth: &Value, found: &Value) -> Vec<String> {
    let rows = |value: &Value| -> BTreeMap<u64, Value> {
        let cpus = value["cpus"].as_array().into_iter().flatten();
        cpus.filter_map(|cpu| Some((cpu["cpu"].as_u64()?, cpu.clone()))).collect()
    };
    let mut found_rows = rows(found);
    let mut differences = Vec::new();
    for (id, truth) in rows(truth) {
        let Some(found) = found_rows.remove(&id) else {
            differences.push(format!("cpu{id} is online and not found"));
            continue;
        };
        for (key, truth_key) in [
            ("siblings", "siblings"),
            ("socket", "socket"),
            ("numa", "numa"),
            ("l3", "l3"),
            ("kind", "kind_pmu"),
        ] {
            let (found, truth) = (&found[key], &truth[truth_key]);
            if found != truth && (key == "l3" || !truth.is_null()) {
                differences.push(format!("cpu{id} {key}: found {found}, truth {truth}"));
            }
        }
    }
    differences.extend(found_rows.keys().map(|id| format!("cpu{id} found, not online")));
    for key in ["online", "offline"] {
        if found[key] != truth[key] {
            differences.push(format!("{key}: found {}, truth {}", found[key], truth[key]));
        }
    }
    differences
}
