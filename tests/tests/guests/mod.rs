//! The guests of `tests/guests`, built from source.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::LazyLock;

/// The guests by name, as components.
pub(crate) static GUESTS: LazyLock<BTreeMap<String, Vec<u8>>> = LazyLock::new(|| {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let guests = dracpu_guest_build::Guests {
        workspace,
        target_directory: &dracpu_guest_build::guests_directory(&std::env::current_exe().unwrap()).unwrap(),
        packages: &["dracpu-test-guests"],
        examples: true,
    };
    let built = guests.build().unwrap_or_else(|error| panic!("{error}"));
    let mut components: BTreeMap<String, Vec<u8>> =
        built.components.into_iter().map(|(name, component)| (name.replace('_', "-"), component)).collect();
    components.insert("many-memories".to_owned(), many_memories(&components["honest"]));
    components
});

/// The hand-written module, with the interface taken from a component that has the same.
fn many_memories(honest: &[u8]) -> Vec<u8> {
    let decoded = wit_component::decode(honest).unwrap();
    let wit_component::DecodedWasm::Component(resolve, world) = decoded else { panic!("a WIT package") };
    let mut module = wat::parse_str(include_str!("../../guests/many_memories.wat")).unwrap();
    wit_component::embed_component_metadata(
        &mut module,
        &resolve,
        world,
        wit_component::StringEncoding::UTF8,
    )
    .unwrap();
    dracpu_guest_build::encode(&module).unwrap()
}
