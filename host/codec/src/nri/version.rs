//! Which NRI a runtime speaks. Runtimes say it since 0.12; of older ones it follows from their own version.
//! Source: the `go.mod` files of the containerd and CRI-O releases.

use dracpu_proto::nri::ConfigureRequest;
use std::fmt;

/// Major, minor, patch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(pub u32, pub u32, pub u32);

impl Version {
    /// Older runtimes can dead-lock when a plugin registers while containers start.
    pub const LEAST: Self = Self(0, 6, 1);

    /// From here on an update outside of hooks cannot dead-lock the runtime.
    pub const BEARS_PUSHES: Self = Self(0, 12, 1);

    /// From here on a container's CDI devices are named in hooks.
    pub const NAMES_DEVICES: Self = Self(0, 12, 0);

    /// Reads `1.2.3` with whatever stands before and behind it: `v0.12.3`, `2.4.2+unknown`, `1.7.26~ds1`.
    pub fn parse(text: &str) -> Option<Self> {
        let text = text.strip_prefix('v').unwrap_or(text);
        let end = text.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(text.len());
        let mut numbers = text.get(..end)?.split('.').map(str::parse);
        match (numbers.next(), numbers.next(), numbers.next()) {
            (Some(Ok(major)), Some(Ok(minor)), Some(Ok(patch))) => Some(Self(major, minor, patch)),
            _ => None,
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.0, self.1, self.2)
    }
}

/// First runtime version → its NRI version.
type Table = [(Version, Version)];

const CONTAINERD: &Table = &[
    (Version(1, 7, 0), Version(0, 3, 0)),
    (Version(1, 7, 7), Version(0, 4, 0)),
    (Version(1, 7, 14), Version(0, 6, 0)),
    (Version(1, 7, 16), Version(0, 6, 1)),
    (Version(1, 7, 26), Version(0, 8, 0)),
    (Version(2, 2, 0), Version(0, 10, 0)),
    (Version(2, 2, 1), Version(0, 11, 0)),
    (Version(2, 3, 0), Version(0, 12, 0)),
];

const CRIO: &Table = &[
    (Version(1, 30, 0), Version(0, 6, 0)),
    (Version(1, 31, 0), Version(0, 6, 1)),
    (Version(1, 32, 0), Version(0, 9, 0)),
    (Version(1, 34, 0), Version(0, 10, 0)),
    (Version(1, 35, 0), Version(0, 11, 0)),
];

/// The runtime's NRI version; none = nothing tells.
pub fn nri_version(runtime: &ConfigureRequest) -> Option<Version> {
    Version::parse(&runtime.nri_version).or_else(|| {
        let table = match &*runtime.runtime_name {
            "containerd" => CONTAINERD,
            "cri-o" => CRIO,
            _ => return None,
        };
        let version = Version::parse(&runtime.runtime_version)?;
        table.iter().rev().find(|(first, _)| *first <= version).map(|(_, nri)| *nri)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nri(name: &str, version: &str, nri: &str) -> Option<String> {
        let runtime = ConfigureRequest {
            runtime_name: name.into(),
            runtime_version: version.into(),
            nri_version: nri.into(),
            ..Default::default()
        };
        nri_version(&runtime).map(|version| version.to_string())
    }

    #[test]
    fn the_version_that_the_runtime_states_counts() {
        assert_eq!(nri("containerd", "2.4.2+unknown", "v0.12.3").as_deref(), Some("0.12.3"));
        assert_eq!(nri("other", "", "v0.12.1-rc.1").as_deref(), Some("0.12.1"));
    }

    #[test]
    fn without_a_statement_it_follows_from_name_and_version() {
        for (name, version, expected) in [
            ("containerd", "1.6.40", None),
            ("containerd", "1.7.0", Some("0.3.0")),
            ("containerd", "v1.7.13", Some("0.4.0")),
            ("containerd", "1.7.25-0ubuntu1", Some("0.6.1")),
            ("containerd", "1.7.34", Some("0.8.0")),
            ("containerd", "2.1.9~ds1", Some("0.8.0")),
            ("containerd", "2.2.0", Some("0.10.0")),
            ("containerd", "2.4.0-beta.0", Some("0.12.0")),
            ("cri-o", "1.33.2", Some("0.9.0")),
            ("cri-o", "1.36.0", Some("0.11.0")),
            ("cri-o", "unknown", None),
            ("containerd", "2.4", None),
            ("other", "2.4.2", None),
        ] {
            for silent in ["", "(devel)", "unknown"] {
                assert_eq!(nri(name, version, silent).as_deref(), expected, "{name} {version} {silent}");
            }
        }
    }

    #[test]
    fn versions_are_ordered_by_number() {
        assert!(Version(0, 6, 1) >= Version::LEAST && Version(0, 12, 0) > Version(0, 9, 9));
        assert!(Version(0, 6, 0) < Version::LEAST);
    }
}
