//! `dracpu`. 
fn main() {}
