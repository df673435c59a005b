//! Strategies for stories about strategies.

/// `examples/highest-first`, a strategy that gives the highest free cores.
pub const HIGHEST_FIRST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/highest-first.wasm"));

/// The same component with a custom section of so many bytes behind it: another file, another digest, the same
/// strategy.
#[must_use]
pub fn padded(component: &[u8], bytes: usize) -> Vec<u8> {
    let name = b"padding";
    let mut padded = component.to_vec();
    padded.push(0); // custom section
    let mut size = 1 + name.len() + bytes;
    // LEB128
    while size >= 0x80 {
        padded.push(u8::try_from(size & 0x7f).unwrap() | 0x80);
        size >>= 7;
    }
    padded.push(u8::try_from(size).unwrap());
    padded.push(u8::try_from(name.len()).unwrap());
    padded.extend_from_slice(name);
    padded.resize(padded.len() + bytes, 0);
    padded
}
