use crate::DRIVER_NAME;
use crate::device::{ALLOCATED_NUM_CPUS, Attribute, Device, allocated};
use dracpu_ledger::{Booking, ClaimUid, Part};
use dracpu_topology::Topology;
use serde_json::{Map, Value, json};

const API_VERSION: &str = "metadata.resource.k8s.io/v1beta1";

/// Most attributes of a device in a file.
const MOST_ATTRIBUTES: usize = 32;

/// Where the attributes of the devices come from.
#[derive(Debug, Clone, Copy)]
pub struct Attributes<'a> {
    /// The machine.
    pub topology: &'a Topology,
    /// The devices as they are published.
    pub published: &'a [Device],
}

/// The text of the file of one request: its parts, of which there is at least one.
pub(super) fn text(uid: &ClaimUid, booking: &Booking, parts: &[&Part], attributes: Attributes<'_>) -> String {
    let devices: Vec<Value> = parts
        .iter()
        .map(|part| {
            json!({
                "driver": DRIVER_NAME, "pool": part.pool, "name": part.device,
                "attributes": of_part(part, attributes),
            })
        })
        .collect();
    let mut document = json!({
        "kind": "DeviceMetadata",
        "apiVersion": API_VERSION,
        "metadata": {"name": booking.name, "namespace": booking.namespace, "uid": uid.as_str(), "generation": 1},
    });
    if let (Some(document), Some(name)) = (document.as_object_mut(), &booking.pod_claim_name) {
        document.insert("podClaimName".to_owned(), name.as_str().into());
    }
    if let (Some(document), Some(part)) = (document.as_object_mut(), parts.first()) {
        document.insert("requests".to_owned(), json!([{"name": part.request, "devices": devices}]));
    }
    // Readers take a stream of documents, each with a newline behind it.
    format!("{document}\n")
}

/// Whether a file is about this claim and whole.
pub(super) fn is_of(uid: &ClaimUid, bytes: &[u8]) -> bool {
    let document: Result<Value, _> = serde_json::from_slice(bytes);
    document.is_ok_and(|document| {
        let of = document.pointer("/metadata/uid").and_then(Value::as_str);
        document.pointer("/apiVersion").and_then(Value::as_str) == Some(API_VERSION)
            && of == Some(uid.as_str())
    })
}

/// The device's published attributes and those of the allocation, as far as a file may have them.
fn of_part(part: &Part, attributes: Attributes<'_>) -> Map<String, Value> {
    let device = attributes.published.iter().find(|device| device.name == part.device);
    let published = device.into_iter().flat_map(|device| &device.attributes);
    let published = published.map(|(name, attribute)| (name.as_str(), value(attribute)));
    let count = (ALLOCATED_NUM_CPUS, json!({"int": part.cpus.len()}));
    let lists = allocated(attributes.topology, &part.cpus).into_iter();
    let lists = lists.map(|(name, list)| (name, json!({"ints": list})));
    let all = std::iter::once(count).chain(published).chain(lists).take(MOST_ATTRIBUTES);
    let mut all: Vec<(&str, Value)> = all.collect();
    all.sort_by_key(|(name, _)| *name);
    all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// An attribute as a ResourceSlice has it.
fn value(attribute: &Attribute) -> Value {
    match attribute {
        Attribute::Int(value) => json!({"int": value}),
        Attribute::Bool(value) => json!({"bool": value}),
        Attribute::Text(value) => json!({"string": value}),
        Attribute::Version(value) => json!({"version": value}),
        Attribute::Texts(values) => json!({"strings": values}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::fixtures;

    fn device(attributes: usize) -> Device {
        let mut all = vec![
            ("dra.cpu/smtEnabled".to_owned(), Attribute::Bool(false)),
            ("resource.kubernetes.io/numaNode".to_owned(), Attribute::Int(0)),
            ("dra.cpu/cpuIDs".to_owned(), Attribute::Text("0-7".to_owned())),
            ("resource.kubernetes.io/pcieRoot".to_owned(), Attribute::Texts(vec!["pci0000:00".to_owned()])),
            ("example.org/abi".to_owned(), Attribute::Version("1.2.3".to_owned())),
        ];
        all.extend((all.len()..attributes).map(|n| (format!("example.org/a{n:02}"), Attribute::Int(1))));
        Device {
            name: "d0".to_owned(),
            cpus: "0-7".parse().unwrap(),
            attributes: all.into_iter().collect(),
            capacity: None,
        }
    }

    fn written(booking: &Booking, device: &Device) -> Value {
        let topology = fixtures::machine(&fixtures::rows(1, 8, 1));
        let attributes = Attributes { topology: &topology, published: std::slice::from_ref(device) };
        let parts: Vec<&Part> = booking.parts.iter().collect();
        let text = text(&"u-1".into(), booking, &parts, attributes);
        assert!(text.ends_with("}\n") && is_of(&"u-1".into(), text.as_bytes()), "{text}");
        serde_json::from_str(&text).unwrap()
    }

    fn booking(pod_claim_name: Option<&str>) -> Booking {
        let part = Part {
            request: "r/small".to_owned(),
            pool: "n".to_owned(),
            device: "d0".to_owned(),
            cpus: "2-3".parse().unwrap(),
            ..Part::default()
        };
        Booking {
            namespace: "ns".to_owned(),
            name: "claim".to_owned(),
            pod_claim_name: pod_claim_name.map(str::to_owned),
            parts: vec![part],
            ..Booking::default()
        }
    }

    #[test]
    fn a_file_has_the_devices_published_attributes_and_those_of_the_allocation() {
        let expected = json!({
            "kind": "DeviceMetadata",
            "apiVersion": "metadata.resource.k8s.io/v1beta1",
            "metadata": {"name": "claim", "namespace": "ns", "uid": "u-1", "generation": 1},
            "podClaimName": "cpus",
            "requests": [{"name": "r/small", "devices": [{
                "driver": "dra.cpu", "pool": "n", "name": "d0",
                "attributes": {
                    "dra.cpu/allocatedCPUs": {"ints": [2, 3]},
                    "dra.cpu/allocatedCaches": {"ints": [0, 0]},
                    "dra.cpu/allocatedCores": {"ints": [2, 3]},
                    "dra.cpu/allocatedNUMANodes": {"ints": [0, 0]},
                    "dra.cpu/allocatedNumCPUs": {"int": 2},
                    "dra.cpu/allocatedSockets": {"ints": [0, 0]},
                    "dra.cpu/cpuIDs": {"string": "0-7"},
                    "dra.cpu/smtEnabled": {"bool": false},
                    "example.org/abi": {"version": "1.2.3"},
                    "resource.kubernetes.io/numaNode": {"int": 0},
                    "resource.kubernetes.io/pcieRoot": {"strings": ["pci0000:00"]},
                },
            }]}],
        });
        assert_eq!(written(&booking(Some("cpus")), &device(0)), expected);
        let direct = written(&booking(None), &device(0));
        assert_eq!(direct.get("podClaimName"), None);
    }

    #[test]
    fn of_many_attributes_the_number_of_cpus_comes_first_and_the_lists_last() {
        let attributes = |count| {
            let found = written(&booking(None), &device(count));
            found["requests"][0]["devices"][0]["attributes"].as_object().unwrap().clone()
        };
        let all = attributes(31);
        assert_eq!(all.len(), 32);
        assert_eq!(all["dra.cpu/allocatedNumCPUs"], json!({"int": 2}));
        assert!(!all.contains_key("dra.cpu/allocatedCPUs"));
        assert!(attributes(29).contains_key("dra.cpu/allocatedCores"));
    }

    #[test]
    fn what_is_not_whole_or_of_another_claim_is_not_the_claims() {
        let whole = text(
            &"u-1".into(),
            &booking(None),
            &[],
            Attributes { topology: &Topology::default(), published: &[] },
        );
        assert!(is_of(&"u-1".into(), whole.as_bytes()));
        assert!(!is_of(&"u-2".into(), whole.as_bytes()));
        assert!(!is_of(&"u-1".into(), &whole.as_bytes()[..whole.len() / 2]));
        assert!(!is_of(&"u-1".into(), b""));
    }
}
