//! CPU sets as text, in the kernel's list format.

use dracpu_cpuset::CpuSet;
use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

pub(super) fn serialize<S: Serializer>(cpus: &CpuSet, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(cpus)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CpuSet, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
}

/// The same where there may be none.
pub(super) mod optional {
    use super::{CpuSet, Deserializer, Serializer};
    use serde::{Deserialize as _, Serialize as _, de::Error as _};

    pub(in super::super) fn serialize<S: Serializer>(
        cpus: &Option<CpuSet>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        cpus.as_ref().map(ToString::to_string).serialize(serializer)
    }

    pub(in super::super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<CpuSet>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(D::Error::custom)).transpose()
    }
}
