//! What the API server takes of a device's attribute values. What it would refuse is left out with a
//! warning: it refuses the whole slice, and the node would offer no CPU at all. Source: validation of
//! `resource.k8s.io/v1`. Names, versions and the number of a strategy's attributes are checked when the
//! strategy is opened.

use super::{Attribute, Device};
use dracpu_topology::Warning;
use std::collections::BTreeMap;

/// Bytes of a string or version value, each item of a list too.
const MAX_VALUE_BYTES: usize = 64;
/// Attribute values of a device; a list counts its items.
const MAX_VALUES: usize = 48;

/// Takes out of the devices whatever the API would refuse; one warning for each attribute and reason.
pub(super) fn enforce(devices: &mut [Device]) -> Vec<Warning> {
    let mut refused: BTreeMap<(String, Refusal), Vec<String>> = BTreeMap::new();
    for device in devices {
        for (attribute, why) in refusals(device) {
            device.attributes.remove(&attribute);
            refused.entry((attribute, why)).or_default().push(device.name.clone());
        }
    }
    refused.into_iter().map(|((attribute, why), devices)| why.warning(&attribute, &devices)).collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Refusal {
    TooLong,
    TooManyValues,
}

impl Refusal {
    fn warning(self, attribute: &str, devices: &[String]) -> Warning {
        let (code, why) = match self {
            Self::TooLong => (
                "attribute-too-long",
                format!("it is longer than the API's limit of {MAX_VALUE_BYTES} bytes"),
            ),
            Self::TooManyValues => (
                "attribute-values",
                format!("with its values the device would have more than the API's limit of {MAX_VALUES}"),
            ),
        };
        let first = devices.first().map_or("no device", String::as_str);
        let others = match devices.len() {
            0 | 1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        Warning { code, message: format!("attribute {attribute} is left out of {first}{others}: {why}") }
    }
}

fn refusals(device: &Device) -> Vec<(String, Refusal)> {
    let mut refused = Vec::new();
    let mut values = 0;
    // Lists last: of what does not fit together, they are what is left out.
    let is_list = |value: &Attribute| matches!(value, Attribute::Texts(_));
    let (lists, scalars): (Vec<_>, Vec<_>) = device.attributes.iter().partition(|(_, value)| is_list(value));
    for (name, value) in scalars.into_iter().chain(lists) {
        let (count, longest) = match value {
            Attribute::Int(_) | Attribute::Bool(_) => (1, 0),
            Attribute::Text(text) | Attribute::Version(text) => (1, text.len()),
            Attribute::Texts(texts) => (texts.len(), texts.iter().map(String::len).max().unwrap_or(0)),
        };
        if longest > MAX_VALUE_BYTES {
            refused.push((name.clone(), Refusal::TooLong));
        } else if values + count > MAX_VALUES {
            refused.push((name.clone(), Refusal::TooManyValues));
        } else {
            values += count;
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device<const N: usize>(attributes: [(&str, Attribute); N]) -> Device {
        Device {
            name: "cpudevnuma000".to_owned(),
            cpus: [0].into(),
            attributes: attributes.map(|(name, value)| (name.to_owned(), value)).into(),
            capacity: None,
        }
    }

    fn left_out(value: Attribute) -> Option<&'static str> {
        let mut devices = [device([("dra.cpu/cpuIDs", value)])];
        let warnings = enforce(&mut devices);
        assert_eq!(devices[0].attributes.is_empty(), !warnings.is_empty());
        warnings.first().map(|warning| warning.code)
    }

    #[test]
    fn values_of_64_bytes_stay_and_longer_ones_are_left_out_with_a_warning() {
        assert_eq!(left_out(Attribute::Text("x".repeat(64))), None);
        assert_eq!(left_out(Attribute::Text("x".repeat(65))), Some("attribute-too-long"));
        assert_eq!(
            left_out(Attribute::Texts(vec!["a".to_owned(), "x".repeat(65)])),
            Some("attribute-too-long")
        );
    }

    #[test]
    fn a_list_that_makes_too_many_values_is_left_out_and_the_rest_stays() {
        let roots = |n: usize| Attribute::Texts((0..n).map(|i| format!("pci{i:04}:00")).collect());
        let with = |n| device([("a.b/roots", roots(n)), ("a.b/z", Attribute::Int(1))]);
        let mut devices = [with(47), with(48)];
        let warnings = enforce(&mut devices);
        assert_eq!(devices.map(|device| device.attributes.len()), [2, 1]);
        assert_eq!(warnings.iter().map(|warning| warning.code).collect::<Vec<_>>(), ["attribute-values"]);
    }

    #[test]
    fn devices_that_lack_the_same_attribute_share_a_warning() {
        let mut devices = [(); 3].map(|()| device([("dra.cpu/cpuIDs", Attribute::Text("x".repeat(65)))]));
        let warnings = enforce(&mut devices);
        assert_eq!(
            warnings[0].message,
            "attribute dra.cpu/cpuIDs is left out of cpudevnuma000 and 2 more: it is longer than the API's limit of 64 bytes"
        );
        assert_eq!(warnings.len(), 1);
    }
}
