//! What a strategy says of itself, checked when it is loaded.

use crate::strategy::options::Schema;
use crate::strategy::{Description, answer};
use crate::words::plain;

/// Attributes that the host can compute for a strategy.
const PUBLISHABLE: [&str; 2] = ["dra.cpu/cpuIDs", "dra.cpu/smtLayout"];
/// Costly inputs that a strategy can ask for.
const NEEDS: [&str; 1] = [OTHER_CLAIMS];
/// What other claims hold.
pub const OTHER_CLAIMS: &str = "other-claims";

/// A description that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DescriptionFault {
    /// Not a DNS label.
    #[error("the name `{0}` is not a DNS label (lower-case letters, digits and inner dashes, at most 63)")]
    Name(String),
    /// Not a semantic version.
    #[error("the version `{0}` is not a semantic version such as 1.0.0")]
    Version(String),
    /// The schema is no JSON.
    #[error("the options schema is no JSON: {0}")]
    SchemaText(String),
    /// The schema is no schema, or one that this host does not take.
    #[error("the options schema cannot be used: {0}")]
    Schema(String),
    /// The host does not know how to compute the attribute.
    #[error("publishes the attribute `{0}`, which this host cannot compute; known are {list}", list = PUBLISHABLE.join(", "))]
    Publishes(String),
    /// The host does not have the input.
    #[error("needs `{0}`, which this host does not have; known are {list}", list = NEEDS.join(", "))]
    Needs(String),
}

/// The description, and the schema of the strategy's options, if all of it can be used.
///
/// # Errors
/// What cannot.
pub fn checked(described: answer::Description) -> Result<(Description, Schema), DescriptionFault> {
    if !is_dns_label(&described.name) {
        return Err(DescriptionFault::Name(plain(&described.name)));
    }
    if !is_semantic_version(&described.version) {
        return Err(DescriptionFault::Version(plain(&described.version)));
    }
    if let Some(unknown) = described.publishes.iter().find(|name| !PUBLISHABLE.contains(&name.as_str())) {
        return Err(DescriptionFault::Publishes(plain(unknown)));
    }
    if let Some(unknown) = described.needs.iter().find(|name| !NEEDS.contains(&name.as_str())) {
        return Err(DescriptionFault::Needs(plain(unknown)));
    }
    let options_schema = serde_json::from_str(&described.options_schema)
        .map_err(|error| DescriptionFault::SchemaText(error.to_string()))?;
    let schema = Schema::compile(&options_schema).map_err(|error| DescriptionFault::Schema(plain(&error)))?;
    let description = Description {
        name: described.name,
        version: described.version,
        summary: plain(&described.summary),
        options_schema,
        explicit_cpuset: described.explicit_cpuset,
        publishes: described.publishes,
        needs: described.needs,
    };
    Ok((description, schema))
}

/// RFC 1123: lower-case letters, digits and inner dashes, 1 to 63.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(|first| plain(*first))
        && bytes.last().is_some_and(|last| plain(*last))
        && bytes.iter().all(|byte| plain(*byte) || *byte == b'-')
}

/// `MAJOR.MINOR.PATCH[-PRE][+BUILD]`: <https://semver.org>, version 2.0.0.
pub(super) fn is_semantic_version(text: &str) -> bool {
    let (rest, build) = text.split_once('+').map_or((text, None), |(rest, build)| (rest, Some(build)));
    let (core, pre) = rest.split_once('-').map_or((rest, None), |(core, pre)| (core, Some(pre)));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let number = |part: &str| digits(part) && (part == "0" || !part.starts_with('0'));
    let word = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    core.split('.').count() == 3
        && core.split('.').all(number)
        && pre.is_none_or(|pre| pre.split('.').all(|part| word(part) && (!digits(part) || number(part))))
        && build.is_none_or(|build| build.split('.').all(word))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described() -> answer::Description {
        answer::Description {
            name: "packed".to_owned(),
            version: "0.1.0".to_owned(),
            summary: "packs".to_owned(),
            options_schema: "{}".to_owned(),
            explicit_cpuset: crate::strategy::ExplicitCpuset::Refused,
            publishes: vec!["dra.cpu/cpuIDs".to_owned()],
            needs: vec!["other-claims".to_owned()],
        }
    }

    #[test]
    fn a_good_description_passes() {
        assert_eq!(checked(described()).unwrap().0.name, "packed");
    }

    #[test]
    fn each_fault_has_its_name() {
        let fault = |change: fn(&mut answer::Description)| {
            let mut described = described();
            change(&mut described);
            checked(described).unwrap_err()
        };
        assert_eq!(fault(|it| it.name = "Packed".to_owned()), DescriptionFault::Name("Packed".to_owned()));
        assert_eq!(fault(|it| it.version = "1".to_owned()), DescriptionFault::Version("1".to_owned()));
        assert_eq!(
            fault(|it| it.publishes.push("x".to_owned())),
            DescriptionFault::Publishes("x".to_owned())
        );
        assert_eq!(fault(|it| it.needs.push("time".to_owned())), DescriptionFault::Needs("time".to_owned()));
        assert!(matches!(fault(|it| it.options_schema = String::new()), DescriptionFault::SchemaText(_)));
        assert!(matches!(
            fault(|it| it.options_schema = "{\"type\":1}".to_owned()),
            DescriptionFault::Schema(_)
        ));
    }

    #[test]
    fn semantic_versions_are_told_from_others() {
        for good in ["0.1.0", "1.22.333-rc.1+build.05", "1.0.0--", "1.0.0+001"] {
            assert!(is_semantic_version(good), "{good}");
        }
        for bad in
            ["", "1", "1.0", "1.0.0.0", "01.0.0", "1.0.0-01", "1.0.0-", "1.0.0+", "v1.0.0", "1.0.x", "1.0.0 "]
        {
            assert!(!is_semantic_version(bad), "{bad}");
        }
    }

    #[test]
    fn dns_labels_are_told_from_others() {
        assert!(["a", "llc-first", "0", &"a".repeat(63)].into_iter().all(is_dns_label));
        assert!(!["", "-a", "a-", "A", "a.b", "ü", &"a".repeat(64)].into_iter().any(is_dns_label));
    }
}
