//! The built-in strategies as components, to be loaded as any other component file is; and components around
//! other modules that were made as theirs were.

mod around;

pub use around::{NotAStrategy, component_around};

use flate2::read::DeflateDecoder;
use std::io::Read as _;

/// A built-in strategy. Compressed, since a daemon loads one of them, once.
#[derive(Debug)]
pub struct BuiltIn {
    /// What it calls itself.
    pub name: &'static str,
    compressed: &'static [u8],
}

impl BuiltIn {
    /// The component.
    #[must_use]
    pub fn component(&self) -> Vec<u8> {
        let mut component = Vec::new();
        let unpacked = DeflateDecoder::new(self.compressed).read_to_end(&mut component);
        unpacked.expect("the build script compressed it");
        component
    }
}

/// The built-in strategies, by name.
pub static BUILT_IN: &[BuiltIn] = include!(concat!(env!("OUT_DIR"), "/components.rs"));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_a_component_again() {
        let names: Vec<&str> = BUILT_IN.iter().map(|built_in| built_in.name).collect();
        assert_eq!(names, ["external", "llc-first", "packed"]);
        for built_in in BUILT_IN {
            // The preamble of a component: magic, version 13, layer 1.
            assert!(built_in.component().starts_with(b"\0asm\x0d\0\x01\0"), "{}", built_in.name);
        }
    }
}
