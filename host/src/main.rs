//! `dracpu`.
fn main() {}
