//! Writes to `resourceclaims/status`: a driver may only state facts of devices that the claim was given.
//! Source: `ResourceClaimStatus.Devices` in `k8s.io/api/resource/v1` (a list map with four keys).

use super::status::FieldError;
use serde_json::{Map, Value, json};

const DATA_BYTES: usize = 10 * 1024;

fn key(entry: &Value) -> [&Value; 4] {
    ["driver", "pool", "device", "shareID"].map(|field| &entry[field])
}

/// The claim with the entries of `sent` in its `status.devices`: in place of those with the same key
/// (`merge`), or of all.
pub(super) fn with_devices(claim: &Value, sent: &Value, merge: bool) -> Result<Value, Vec<FieldError>> {
    let mut claim = claim.clone();
    let sent = sent["status"]["devices"].as_array().cloned().unwrap_or_default();
    let given = claim["status"]["allocation"]["devices"]["results"].as_array().cloned().unwrap_or_default();
    let mut faults = Vec::new();
    for (n, entry) in sent.iter().enumerate() {
        let mut fault = |field: &str, reason: &'static str, message: &str| {
            let field = format!("status.devices[{n}]{field}");
            faults.push(FieldError { field, reason, message: message.to_owned() });
        };
        if !given.iter().any(|result| key(result) == key(entry)) {
            fault("", "FieldValueInvalid", "Invalid value: must be an allocated device in the claim");
        }
        if entry["data"].to_string().len() > DATA_BYTES {
            fault(".data", "FieldValueTooLong", "Too long: may not be more than 10240 bytes");
        }
        if entry["conditions"].as_array().is_some_and(|all| all.len() > 8) {
            fault(".conditions", "FieldValueTooMany", "Too many: must have at most 8 items");
        }
    }
    if !faults.is_empty() {
        return Err(faults);
    }
    let old = claim["status"]["devices"].as_array().cloned().unwrap_or_default();
    let kept = old.into_iter().filter(|old| merge && !sent.iter().any(|new| key(new) == key(old)));
    let devices: Vec<_> = kept.chain(sent.iter().cloned()).collect();
    let claim_map = claim.as_object_mut().expect("a stored claim is an object");
    let status = claim_map.entry("status").or_insert_with(|| Value::Object(Map::new()));
    status["devices"] = json!(devices);
    Ok(claim)
}
