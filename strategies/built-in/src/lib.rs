//! The built-in strategies as component bytes, to be loaded as any other component file is.

/// Name and component of each built-in strategy.
pub static COMPONENTS: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/components.rs"));
