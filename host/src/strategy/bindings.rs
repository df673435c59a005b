//! The interface of `wit/`, as Rust types. Used inside this room only.

wasmtime::component::bindgen!({ path: "../wit", world: "strategy" });
