//! Compiles the `.proto` files of this crate. Needs no `protoc`.

use std::path::Path;

type AnyError = Box<dyn std::error::Error>;

fn main() -> Result<(), AnyError> {
    // Carried over ttrpc or by hand: messages only.
    generate("", false, &["nri.proto", "ttrpc.proto"])?;
    let services = std::env::var_os("CARGO_FEATURE_SERVICES").is_some();
    // gRPC: the node serves, the stand-in for the kubelet calls.
    generate(
        "",
        services,
        &[
            "pluginregistration.proto",
            "dra_v1.proto",
            "dra_v1beta1.proto",
            "health_v1.proto",
            "health_v1alpha1.proto",
        ],
    )?;
    // gRPC: the kubelet serves. Its package has the name of another one above.
    generate("pod_resources", services, &["podresources_v1.proto"])
}

/// Generates into a directory of the output directory.
fn generate(directory: &str, services: bool, files: &[&str]) -> Result<(), AnyError> {
    let directory = Path::new(&std::env::var("OUT_DIR")?).join(directory);
    std::fs::create_dir_all(&directory)?;
    for file in files {
        println!("cargo::rerun-if-changed={file}");
    }
    tonic_prost_build::configure()
        .build_client(services)
        .build_server(services)
        // Ordered, so that equal messages are equal bytes.
        .btree_map(".")
        .out_dir(directory)
        .compile_fds(protox::compile(files, ["."])?)?;
    Ok(())
}
