use wit_component::ComponentEncoder;

/// Encodes a core module that carries its interface (as `wit-bindgen` leaves it) as a component.
///
/// # Errors
/// The encoder's own: missing exports, imports outside the interface, no WebAssembly.
pub fn encode(module: &[u8]) -> anyhow::Result<Vec<u8>> {
    ComponentEncoder::default().validate(true).module(module)?.encode()
}
