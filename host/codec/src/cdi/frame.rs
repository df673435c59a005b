use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A CDI spec whose devices make edits of one kind.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spec<Edits> {
    /// Version of the specification that the file keeps to.
    pub cdi_version: String,
    /// `vendor/class`
    pub kind: String,
    /// What containers can ask for.
    pub devices: Vec<Device<Edits>>,
}

/// A device of a spec. The edits come before the annotations: of a file that was cut off, they are then the last
/// to go.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device<Edits> {
    /// Its name within the kind.
    pub name: String,
    /// What is done to a container that gets it.
    pub container_edits: Edits,
    /// For readers of the file; runtimes look away. Since version 0.6.0.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
}
