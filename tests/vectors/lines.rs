//! The lines of the files beside it.

use flate2::read::GzDecoder;
use serde::Deserialize;
use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::path::Path;

/// CPU, core, socket, NUMA node, L3 (-1: none).
pub(crate) type Row = (u32, u32, i64, u32, i64);

/// The lines of a file in the directory of the vectors.
pub(crate) fn lines<T: for<'a> Deserialize<'a>>(directory: &str, file: &str) -> impl Iterator<Item = T> {
    let file = File::open(Path::new(directory).join(file)).unwrap();
    let lines = BufReader::new(GzDecoder::new(file)).lines();
    lines.map(|line| serde_json::from_str(&line.unwrap()).unwrap())
}
