//! Compiles the `.proto` files of this crate. Needs no `protoc`.

type AnyError = Box<dyn std::error::Error>;

fn main() -> Result<(), AnyError> {
    // Carried over ttrpc or by hand: messages only.
    generate(false, &["nri.proto", "ttrpc.proto"])?;
    // gRPC: the node serves, the stand-in for the kubelet calls.
    generate(
        std::env::var_os("CARGO_FEATURE_SERVICES").is_some(),
        &[
            "pluginregistration.proto",
            "dra_v1.proto",
            "dra_v1beta1.proto",
            "health_v1.proto",
            "health_v1alpha1.proto",
        ],
    )
}

fn generate(services: bool, files: &[&str]) -> Result<(), AnyError> {
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    tonic_prost_build::configure()
        .build_client(services)
        .build_server(services)
        // Ordered, so that equal messages are equal bytes.
        .btree_map(".")
        .compile_fds(protox::compile(files, ["."])?)?;
    Ok(())
}
