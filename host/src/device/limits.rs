//! What the API server takes of a device's attributes. What it would refuse is left out with a warning: it
//! refuses the whole slice, and the node would offer no CPU at all. Source: `resource.k8s.io/v1` validation.

use super::{Attribute, Device, attributes};
use dracpu_topology::Warning;
use std::collections::BTreeMap;

/// Bytes of a string or version value, each item of a list too.
const MAX_VALUE_BYTES: usize = 64;
/// Attributes and capacities of a device.
const MAX_ENTRIES: usize = 32;
/// Attribute values of a device; a list counts its items.
const MAX_VALUES: usize = 48;
/// Characters of an identifier, the part of a qualified name behind the slash.
const MAX_IDENTIFIER: usize = 32;
/// Characters of a domain, the part of a qualified name before the slash.
const MAX_DOMAIN: usize = 63;

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
    Name,
    Version,
    TooLong,
    TooManyValues,
    TooManyEntries,
}

impl Refusal {
    fn warning(self, attribute: &str, devices: &[String]) -> Warning {
        let (code, why) = match self {
            Self::Name => {
                ("attribute-name", "its name is not DOMAIN/IDENTIFIER as the API wants it".to_owned())
            }
            Self::Version => ("attribute-version", "its value is not a semantic version".to_owned()),
            Self::TooLong => (
                "attribute-too-long",
                format!("it is longer than the API's limit of {MAX_VALUE_BYTES} bytes"),
            ),
            Self::TooManyValues => (
                "attribute-values",
                format!("with its values the device would have more than the API's limit of {MAX_VALUES}"),
            ),
            Self::TooManyEntries => (
                "attribute-count",
                format!("the device would have more than {MAX_ENTRIES} attributes and capacities"),
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
    // Our own capacity is an entry too.
    let (mut entries, mut values) = (usize::from(device.capacity.is_some()), 0);
    // What comes last is left out when not all fits: lists, before them the strategy's attributes.
    let mut attributes: Vec<_> = device.attributes.iter().collect();
    attributes
        .sort_by_key(|(name, value)| (matches!(value, Attribute::Texts(_)), !attributes::is_ours(name)));
    for (name, value) in attributes {
        let (count, longest) = match value {
            Attribute::Int(_) | Attribute::Bool(_) => (1, 0),
            Attribute::Text(text) | Attribute::Version(text) => (1, text.len()),
            Attribute::Texts(texts) => (texts.len(), texts.iter().map(String::len).max().unwrap_or(0)),
        };
        let why = if !is_qualified_name(name) {
            Refusal::Name
        } else if matches!(value, Attribute::Version(text) if !is_semantic_version(text)) {
            Refusal::Version
        } else if longest > MAX_VALUE_BYTES {
            Refusal::TooLong
        } else if entries + 1 > MAX_ENTRIES {
            Refusal::TooManyEntries
        } else if values + count > MAX_VALUES {
            Refusal::TooManyValues
        } else {
            entries += 1;
            values += count;
            continue;
        };
        refused.push((name.clone(), why));
    }
    refused
}

/// `domain/identifier`: a DNS subdomain and a C identifier.
fn is_qualified_name(name: &str) -> bool {
    let Some((domain, identifier)) = name.split_once('/') else { return false };
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let lower = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |label: &str| {
        label.starts_with(lower) && label.ends_with(lower) && label.chars().all(|c| lower(c) || c == '-')
    };
    domain.len() <= MAX_DOMAIN
        && domain.split('.').all(label)
        && identifier.len() <= MAX_IDENTIFIER
        && identifier.starts_with(|c: char| word(c) && !c.is_ascii_digit())
        && identifier.chars().all(word)
}

/// Semantic Versioning 2.0.0, sections 2, 9 and 10.
fn is_semantic_version(text: &str) -> bool {
    let number = |text: &str| {
        !text.is_empty()
            && text.bytes().all(|b| b.is_ascii_digit())
            && (text == "0" || !text.starts_with('0'))
    };
    let words = |text: &str| {
        text.split('.')
            .all(|word| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-'))
    };
    let (text, build) = text.split_once('+').map_or((text, None), |(text, build)| (text, Some(build)));
    let (core, before) = text.split_once('-').map_or((text, None), |(core, before)| (core, Some(before)));
    core.split('.').count() == 3
        && core.split('.').all(number)
        && build.is_none_or(words)
        && before.is_none_or(|before| {
            let digits = |word: &str| word.bytes().all(|b| b.is_ascii_digit());
            words(before) && before.split('.').all(|word| !digits(word) || number(word))
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(attributes: impl IntoIterator<Item = (String, Attribute)>) -> Device {
        Device {
            name: "cpudevnuma000".to_owned(),
            cpus: [0].into(),
            attributes: attributes.into_iter().collect(),
            capacity: None,
        }
    }

    fn left_out(attribute: &str, value: Attribute) -> Option<&'static str> {
        let mut devices = [device([(attribute.to_owned(), value)])];
        let warnings = enforce(&mut devices);
        assert_eq!(devices[0].attributes.is_empty(), !warnings.is_empty());
        warnings.first().map(|warning| warning.code)
    }

    #[test]
    fn values_of_64_bytes_stay_and_longer_ones_are_left_out_with_a_warning() {
        assert_eq!(left_out("dra.cpu/cpuIDs", Attribute::Text("x".repeat(64))), None);
        assert_eq!(left_out("dra.cpu/cpuIDs", Attribute::Text("x".repeat(65))), Some("attribute-too-long"));
        let texts = vec!["a".to_owned(), "x".repeat(65)];
        assert_eq!(left_out("dra.cpu/texts", Attribute::Texts(texts)), Some("attribute-too-long"));
    }

    #[test]
    fn names_and_versions_that_the_api_refuses_are_left_out() {
        for name in ["a.example/x", "llc-first.dra.cpu/cacheCount", "x/_a9"] {
            assert_eq!(left_out(name, Attribute::Int(1)), None, "{name}");
        }
        let long = format!("x/{}", "a".repeat(33));
        for name in ["x", "/x", "x/", "A.example/x", "a..b/x", "-a/x", "a/9x", "a/x-y", "a/b/c", &long] {
            assert_eq!(left_out(name, Attribute::Int(1)), Some("attribute-name"), "{name}");
        }
        for version in ["1.2.3", "0.1.0-rc.1+build.05", "1.0.0-alpha-x"] {
            assert_eq!(left_out("x/v", Attribute::Version(version.to_owned())), None, "{version}");
        }
        for version in ["1.2", "01.2.3", "v1.2.3", "1.2.3-", "1.2.3-01", "1.2.3+", ""] {
            assert_eq!(
                left_out("x/v", Attribute::Version(version.to_owned())),
                Some("attribute-version"),
                "{version}"
            );
        }
    }

    #[test]
    fn a_list_that_makes_too_many_values_is_left_out_and_the_rest_stays() {
        let roots = |n: usize| Attribute::Texts((0..n).map(|i| format!("pci{i:04}:00")).collect());
        let with = |n| device([("a.b/n".to_owned(), Attribute::Int(1)), ("a.b/roots".to_owned(), roots(n))]);
        let mut devices = [with(47), with(48)];
        let warnings = enforce(&mut devices);
        assert_eq!(devices.map(|device| device.attributes.len()), [2, 1]);
        assert_eq!(warnings.len(), 1);
        assert_eq!(warnings[0].code, "attribute-values");
    }

    #[test]
    fn attributes_beyond_the_entries_of_a_device_are_left_out() {
        let mut devices = [device((0..33).map(|i| (format!("x/a{i}"), Attribute::Int(i))))];
        assert_eq!(enforce(&mut devices).len(), 1);
        assert_eq!(devices[0].attributes.len(), 32);
    }

    #[test]
    fn devices_that_lack_the_same_attribute_share_a_warning() {
        let mut devices =
            [(); 3].map(|()| device([("dra.cpu/cpuIDs".to_owned(), Attribute::Text("x".repeat(65)))]));
        let warnings = enforce(&mut devices);
        assert_eq!(
            warnings[0].message,
            "attribute dra.cpu/cpuIDs is left out of cpudevnuma000 and 2 more: it is longer than the API's limit of 64 bytes"
        );
        assert_eq!(warnings.len(), 1);
    }
}
