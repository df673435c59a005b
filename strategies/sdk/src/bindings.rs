//! What `wit-bindgen` makes of `wit/strategy.wit`: plain Rust types, the host's `log`, and the export
//! glue that [`export!`](crate::export) uses. Authors work with the types of the crate root instead.
#![allow(
    missing_docs,
    unsafe_code,
    unreachable_pub,
    clippy::all,
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::allow_attributes_without_reason,
    reason = "generated code: the component ABI passes pointers and lengths"
)]

wit_bindgen::generate!({
    path: "../../wit",
    world: "strategy",
    generate_unused_types: true,
    pub_export_macro: true,
    runtime_path: "dracpu_strategy_sdk::__private::rt",
    default_bindings_module: "dracpu_strategy_sdk::bindings",
    additional_derives: [PartialEq],
});
