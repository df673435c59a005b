//! What the status of a claim says of this driver's devices, as `resource.k8s.io/v1` has it
//! (`AllocatedDeviceStatus`, KEP-4817).

use crate::DRIVER_NAME;
use crate::driver::{ClaimStatus, DeviceStatus};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};
use std::time::UNIX_EPOCH;

/// In whose name the entries are written.
pub(super) const FIELD_MANAGER: &str = DRIVER_NAME;

/// The most that an entry's data may hold, in bytes.
const MOST_DATA: usize = 10 * 1024;

/// The object to apply. The same status is the same object, byte for byte. With its UID in it the server
/// refuses to write to another claim of the same name.
pub(super) fn applied(status: &ClaimStatus) -> Value {
    let ClaimStatus { claim, prepared_at, strategy, devices } = status;
    let seconds = prepared_at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let time = i64::try_from(seconds).ok().and_then(|seconds| Timestamp::from_second(seconds).ok());
    let time = time.unwrap_or_default().to_string();
    let devices: Vec<Value> =
        devices.iter().map(|device| entry(device, strategy.as_deref(), &time)).collect();
    json!({
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": claim.uid},
        "status": {"devices": devices},
    })
}

fn entry(device: &DeviceStatus, strategy: Option<&str>, time: &str) -> Value {
    let DeviceStatus { pool, device, share_id, cpus, blocked } = device;
    let blocked = (!blocked.is_empty()).then(|| blocked.to_string());
    let data = [
        ("cpus", Some(cpus.to_string())),
        ("blockedCPUs", blocked),
        ("strategy", strategy.map(str::to_owned)),
    ];
    let data = Value::Object(known(data));
    let fits = data.to_string().len() <= MOST_DATA;
    let count = cpus.len();
    let condition = json!({
        "type": "Ready",
        "status": "True",
        "reason": "Prepared",
        "message": format!(
            "{count} CPU{} prepared{}",
            if count == 1 { "" } else { "s" },
            if fits { "" } else { "; the list is too long for a claim's status, the container's variable has it" },
        ),
        "lastTransitionTime": time,
    });
    Value::Object(known([
        ("driver", Some(json!(DRIVER_NAME))),
        ("pool", Some(json!(pool))),
        ("device", Some(json!(device))),
        ("shareID", share_id.as_ref().map(|id| json!(id))),
        ("data", fits.then_some(data)),
        ("conditions", Some(json!([condition]))),
    ]))
}

/// An object of those fields that have a value.
fn known<T: Into<Value>, const N: usize>(fields: [(&str, Option<T>); N]) -> Map<String, Value> {
    let known = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?.into())));
    known.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::ClaimRef;
    use std::time::Duration;

    fn device(cpus: &str) -> DeviceStatus {
        DeviceStatus {
            pool: "n".to_owned(),
            device: "cpudevnuma000".to_owned(),
            share_id: Some("s-1".to_owned()),
            cpus: cpus.parse().unwrap(),
            blocked: Default::default(),
        }
    }

    fn status(devices: Vec<DeviceStatus>) -> ClaimStatus {
        let claim = ClaimRef { uid: "u".to_owned(), namespace: "ns".to_owned(), name: "c".to_owned() };
        let prepared_at = UNIX_EPOCH + Duration::from_millis(1_700_000_000_999);
        ClaimStatus { claim, prepared_at, strategy: Some("packed".to_owned()), devices }
    }

    #[test]
    fn each_device_has_its_cpus_and_is_ready() {
        let blocked = DeviceStatus { blocked: "8".parse().unwrap(), share_id: None, ..device("0") };
        let condition = |message: &str| {
            json!([{"type": "Ready", "status": "True", "reason": "Prepared", "message": message,
                    "lastTransitionTime": "2023-11-14T22:13:20Z"}])
        };
        let expected = json!({
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "c", "namespace": "ns", "uid": "u"},
            "status": {"devices": [
                {"driver": "dra.cpu", "pool": "n", "device": "cpudevnuma000", "shareID": "s-1",
                 "data": {"cpus": "2-3,6", "strategy": "packed"}, "conditions": condition("3 CPUs prepared")},
                {"driver": "dra.cpu", "pool": "n", "device": "cpudevnuma000",
                 "data": {"cpus": "0", "blockedCPUs": "8", "strategy": "packed"},
                 "conditions": condition("1 CPU prepared")},
            ]},
        });
        assert_eq!(applied(&status(vec![device("2-3,6"), blocked])), expected);
    }

    #[test]
    fn data_that_the_api_would_refuse_is_left_out_and_said() {
        let every_other: Vec<String> = (0..8192).step_by(2).map(|cpu| cpu.to_string()).collect();
        let applied = applied(&status(vec![device(&every_other.join(","))]));
        let entry = &applied["status"]["devices"][0];
        assert_eq!(entry.get("data"), None);
        let message = entry["conditions"][0]["message"].as_str().unwrap();
        assert!(message.starts_with("4096 CPUs prepared; the list is too long"), "{message}");
    }
}
