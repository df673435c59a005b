use crate::DRIVER_NAME;
use dracpu_codec::cdi::{Device, Spec};
use dracpu_ledger::{Booking, ClaimUid};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// What the names of these specs begin with.
pub(super) const PREFIX: &str = "dra.cpu_metadata_";

/// What they end with.
pub(super) const END: &str = ".json";

/// The lowest version in which a device's name may begin with a digit.
const CDI_VERSION: &str = "0.5.0";

const CLASS: &str = "metadata";

/// Where files of devices are in a container.
const IN_CONTAINER: &str = "/var/run/kubernetes.io/dra-device-attributes";

/// The fully qualified name of the CDI device that mounts the file of a request.
#[must_use]
pub fn device_id(uid: &ClaimUid, request: &str) -> String {
    format!("{DRIVER_NAME}/{CLASS}={}", device_name(uid, request))
}

fn device_name(uid: &ClaimUid, request: &str) -> String {
    format!("{uid}_{request}")
}

/// The name of a spec's file.
pub(super) fn file_name(uid: &ClaimUid, request: &str) -> String {
    format!("{PREFIX}{}{END}", device_name(uid, request))
}

/// The claim that a spec's file is for, by its name. A request has no `_` in its name, a UID may.
pub(super) fn claim_of(file_name: &str) -> Option<ClaimUid> {
    let device = file_name.strip_prefix(PREFIX)?.strip_suffix(END)?;
    device.rsplit_once('_').map(|(uid, _)| uid.into())
}

#[derive(Serialize, Deserialize)]
struct Edits {
    #[serde(default)]
    mounts: Vec<Mount>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Mount {
    host_path: PathBuf,
    container_path: String,
    options: Vec<String>,
}

/// The text of the spec that mounts the file at `host_path`.
pub(super) fn text(uid: &ClaimUid, request: &str, booking: &Booking, host_path: &Path) -> String {
    let claim = match &booking.pod_claim_name {
        Some(pod_claim_name) => format!("resourceclaimtemplates/{pod_claim_name}"),
        None => format!("resourceclaims/{}", booking.name),
    };
    let mount = Mount {
        host_path: host_path.to_owned(),
        container_path: format!("{IN_CONTAINER}/{claim}/{request}/{DRIVER_NAME}-metadata.json"),
        options: vec!["ro".to_owned(), "bind".to_owned()],
    };
    let device = Device {
        name: device_name(uid, request),
        container_edits: Edits { mounts: vec![mount] },
        annotations: BTreeMap::new(),
    };
    let spec = Spec {
        cdi_version: CDI_VERSION.to_owned(),
        kind: format!("{DRIVER_NAME}/{CLASS}"),
        devices: vec![device],
    };
    // A path that is no text fails here; the configuration's paths were checked to be.
    serde_json::to_string(&spec).unwrap_or_default()
}

/// The files that a spec mounts; none for one that cannot be read.
pub(super) fn mounted(bytes: &[u8]) -> Vec<PathBuf> {
    let spec: Option<Spec<Edits>> = serde_json::from_slice(bytes).ok();
    let devices = spec.into_iter().flat_map(|spec| spec.devices);
    devices.flat_map(|device| device.container_edits.mounts).map(|mount| mount.host_path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn spec(pod_claim_name: Option<&str>) -> Value {
        let booking = Booking {
            name: "claim".to_owned(),
            pod_claim_name: pod_claim_name.map(str::to_owned),
            ..Booking::default()
        };
        let text = text(&"7c-1".into(), "r", &booking, Path::new("/k/metadata.json"));
        assert_eq!(mounted(text.as_bytes()), [Path::new("/k/metadata.json")]);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn a_spec_mounts_the_file_where_its_reader_looks() {
        let path =
            "/var/run/kubernetes.io/dra-device-attributes/resourceclaims/claim/r/dra.cpu-metadata.json";
        let expected = json!({
            "cdiVersion": "0.5.0",
            "kind": "dra.cpu/metadata",
            "devices": [{"name": "7c-1_r", "containerEdits": {"mounts": [
                {"hostPath": "/k/metadata.json", "containerPath": path, "options": ["ro", "bind"]},
            ]}}],
        });
        assert_eq!(spec(None), expected);
        let path = "/var/run/kubernetes.io/dra-device-attributes/resourceclaimtemplates/cpus/r/dra.cpu-metadata.json";
        assert_eq!(spec(Some("cpus"))["devices"][0]["containerEdits"]["mounts"][0]["containerPath"], path);
        assert_eq!(device_id(&"7c-1".into(), "r"), "dra.cpu/metadata=7c-1_r");
    }

    #[test]
    fn the_claim_of_a_file_is_read_from_its_name() {
        for uid in ["7c-1", "with_line"] {
            assert_eq!(claim_of(&file_name(&uid.into(), "r-1")), Some(uid.into()));
        }
        for other in
            ["dra.cpu_metadata_.json", "dra.k8s.io-cpu_claim-a.json", "dra.cpu_metadata_a_r.json.tmp"]
        {
            assert_eq!(claim_of(other), None, "{other}");
        }
    }
}
