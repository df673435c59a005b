//! Writes to `resourceclaims/status`: a driver may only state facts of devices that the claim was given, and
//! applies them in its own name.
//!
//! Sources: `ResourceClaimStatus.Devices` in `k8s.io/api/resource/v1` (a list map with four keys), its
//! validation, and server-side apply (`structured-merge-diff`): what an applier has set is its own; what it
//! does not set any more goes; what another one has set conflicts unless forced. Ownership is kept by field
//! of an entry here, not deeper.

use super::status::FieldError;
use k8s_openapi::api::resource::v1::AllocatedDeviceStatus;
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;

const DATA_BYTES: usize = 10 * 1024;
const KEY: [&str; 4] = ["driver", "pool", "device", "shareID"];

fn key(entry: &Value) -> [&Value; 4] {
    KEY.map(|field| &entry[field])
}

/// How a write is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Write {
    /// PUT and merge patches: the list is replaced as a whole.
    Replace,
    /// Server-side apply.
    Apply {
        /// `fieldManager`
        manager: String,
        /// Takes over what others own.
        force: bool,
    },
}

/// Why a write is refused.
#[derive(Debug, PartialEq)]
pub(super) enum Fault {
    /// 422
    Invalid(Vec<FieldError>),
    /// 409: fields that somebody else owns, and who that is.
    Conflict(String),
    /// 400
    BadRequest(String),
}

/// The claim with the entries of `sent` in its `status.devices`.
pub(super) fn written(claim: &Value, sent: &Value, how: &Write) -> Result<Value, Fault> {
    let entries = sent["status"]["devices"].as_array().cloned().unwrap_or_default();
    let (devices, managed) = match how {
        Write::Replace => (entries, claim["metadata"].get("managedFields").cloned()),
        Write::Apply { manager, force } => apply(claim, sent, entries, manager, *force)?,
    };
    let given = claim["status"]["allocation"]["devices"]["results"].as_array().cloned().unwrap_or_default();
    let faults: Vec<FieldError> =
        devices.iter().enumerate().flat_map(|(n, entry)| faults(n, entry, &given, &devices)).collect();
    if !faults.is_empty() {
        return Err(Fault::Invalid(faults));
    }
    let mut claim = claim.clone();
    let claim_map = claim.as_object_mut().expect("a stored claim is an object");
    claim_map.entry("status").or_insert_with(|| Value::Object(Map::new()))["devices"] = json!(devices);
    if let Some(managed) = managed {
        claim["metadata"]["managedFields"] = managed;
    }
    Ok(claim)
}

fn faults(n: usize, entry: &Value, given: &[Value], all: &[Value]) -> Vec<FieldError> {
    let mut faults = Vec::new();
    let mut fault = |field: &str, reason: &'static str, message: &str| {
        let field = format!("status.devices[{n}]{field}");
        faults.push(FieldError { field, reason, message: message.to_owned() });
    };
    if !given.iter().any(|result| key(result) == key(entry)) {
        fault("", "FieldValueInvalid", "Invalid value: must be an allocated device in the claim");
    }
    if all[..n].iter().any(|other| key(other) == key(entry)) {
        fault("", "FieldValueDuplicate", "Duplicate value");
    }
    if entry["data"].to_string().len() > DATA_BYTES {
        fault(".data", "FieldValueTooLong", "Too long: may not be more than 10240 bytes");
    }
    let conditions = entry["conditions"].as_array().cloned().unwrap_or_default();
    if conditions.len() > 8 {
        fault(".conditions", "FieldValueTooMany", "Too many: must have at most 8 items");
    }
    for condition in conditions {
        let text = |field: &str| condition[field].as_str().unwrap_or("").to_owned();
        for field in ["type", "lastTransitionTime", "reason"] {
            if text(field).is_empty() {
                fault(&format!(".conditions.{field}"), "FieldValueRequired", "Required value");
            }
        }
        if !["True", "False", "Unknown"].contains(&text("status").as_str()) {
            fault(".conditions.status", "FieldValueNotSupported", "Unsupported value");
        }
    }
    faults
}

/// Entries with whoever owns their fields.
type Applied = (Vec<Value>, Option<Value>);

fn apply(
    claim: &Value,
    sent: &Value,
    entries: Vec<Value>,
    manager: &str,
    force: bool,
) -> Result<Applied, Fault> {
    let bad = |why: &str| Err(Fault::BadRequest(why.to_owned()));
    if manager.is_empty() {
        return bad(
            "PatchOptions.meta.k8s.io \"\" is invalid: fieldManager: Required value: is required for apply patch",
        );
    }
    if sent["apiVersion"] != "resource.k8s.io/v1" || sent["kind"] != "ResourceClaim" {
        return bad("an applied object needs its apiVersion and kind");
    }
    for entry in &entries {
        check_fields(entry)?;
    }
    let mut owners = owners(claim);
    let mut devices = claim["status"]["devices"].as_array().cloned().unwrap_or_default();
    let own = owners.iter().find(|owner| owner.manager == manager).cloned();
    let mut conflicts = BTreeSet::new();
    for entry in &entries {
        let at = devices.iter().position(|old| key(old) == key(entry));
        for field in fields(entry) {
            let path = path(entry, &field);
            let same = at.is_some_and(|at| devices[at][&field] == entry[&field]);
            for owner in owners.iter_mut().filter(|owner| owner.manager != manager && !same) {
                if owner.fields.contains(&path) {
                    if force {
                        owner.fields.remove(&path);
                    } else {
                        conflicts.insert(format!("conflict with \"{}\": {path}", owner.manager));
                    }
                }
            }
        }
        match at {
            None => devices.push(entry.clone()),
            Some(at) => {
                for field in fields(entry) {
                    devices[at][&field] = entry[&field].clone();
                }
            }
        }
    }
    if !conflicts.is_empty() {
        let list: Vec<String> = conflicts.into_iter().collect();
        let count = list.len();
        return Err(Fault::Conflict(format!("Apply failed with {count} conflicts: {}", list.join(", "))));
    }
    let paths: BTreeSet<String> = entries.iter().flat_map(|e| fields(e).map(|f| path(e, &f))).collect();
    owners.retain(|owner| owner.manager != manager);
    let others: BTreeSet<&String> = owners.iter().flat_map(|owner| &owner.fields).collect();
    let gone = |path: &String| !paths.contains(path) && !others.contains(path);
    for path_gone in own.iter().flat_map(|own| &own.fields).filter(|path| gone(path)) {
        for device in &mut devices {
            let lost: Vec<String> =
                fields(device).filter(|field| path(device, field) == *path_gone).collect();
            for field in lost {
                device.as_object_mut().expect("an entry is an object").shift_remove(&field);
            }
        }
    }
    // an entry of which nobody owns anything is one without anything but its key
    devices.retain(|device| fields(device).next().is_some() || entries.iter().any(|e| key(e) == key(device)));
    owners.push(Owner { manager: manager.to_owned(), fields: paths });
    owners.retain(|owner| !owner.fields.is_empty());
    owners.sort_by(|a, b| a.manager.cmp(&b.manager));
    let managed = owners.iter().map(Owner::entry).collect();
    Ok((devices, Some(managed)))
}

/// What an applied entry may have: apply knows the schema, and drops nothing.
fn check_fields(entry: &Value) -> Result<(), Fault> {
    let typed: Result<AllocatedDeviceStatus, _> = serde_json::from_value(entry.clone());
    let known = typed.and_then(serde_json::to_value).map_err(|why| Fault::BadRequest(why.to_string()))?;
    let mut unknown = BTreeSet::new();
    super::http::unknown_fields(".status.devices", entry, &known, &mut unknown);
    match unknown.first() {
        None => Ok(()),
        Some(field) => Err(Fault::BadRequest(format!("failed to create typed patch object: {field}"))),
    }
}

/// The fields of an entry beside its key.
fn fields(entry: &Value) -> impl Iterator<Item = String> + use<> {
    let all: Vec<String> = entry.as_object().into_iter().flat_map(|entry| entry.keys().cloned()).collect();
    all.into_iter().filter(|field| !KEY.contains(&field.as_str()))
}

fn path(entry: &Value, field: &str) -> String {
    let key: Vec<String> = key(entry).iter().map(ToString::to_string).collect();
    format!(".status.devices[{}].{field}", key.join(","))
}

/// Who has applied which fields.
#[derive(Debug, Clone)]
struct Owner {
    manager: String,
    fields: BTreeSet<String>,
}

impl Owner {
    fn entry(&self) -> Value {
        let fields: Map<String, Value> = self.fields.iter().map(|field| (field.clone(), json!({}))).collect();
        json!({"manager": self.manager, "operation": "Apply", "subresource": "status",
               "apiVersion": "resource.k8s.io/v1", "fieldsType": "FieldsV1", "fieldsV1": fields})
    }
}

fn owners(claim: &Value) -> Vec<Owner> {
    let entries = claim["metadata"]["managedFields"].as_array().cloned().unwrap_or_default();
    let owner = |entry: Value| Owner {
        manager: entry["manager"].as_str().unwrap_or("").to_owned(),
        fields: entry["fieldsV1"].as_object().into_iter().flat_map(|all| all.keys().cloned()).collect(),
    };
    entries.into_iter().map(owner).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim() -> Value {
        let result = |device: &str| json!({"driver": "a", "pool": "p", "device": device, "request": "r"});
        json!({"metadata": {"name": "c"}, "status": {"allocation": {"devices": {
            "results": [result("d1"), result("d2")]}}}})
    }

    fn entry(device: &str, cpus: &str) -> Value {
        json!({"driver": "a", "pool": "p", "device": device, "data": {"cpus": cpus}})
    }

    fn applied(claim: &Value, manager: &str, force: bool, entries: &[Value]) -> Result<Value, Fault> {
        let sent = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
                          "status": {"devices": entries}});
        written(claim, &sent, &Write::Apply { manager: manager.to_owned(), force })
    }

    #[test]
    fn what_is_applied_again_is_no_change_and_what_is_left_out_goes() {
        let first = applied(&claim(), "me", false, &[entry("d1", "1"), entry("d2", "2")]).unwrap();
        assert_eq!(first["status"]["devices"], json!([entry("d1", "1"), entry("d2", "2")]));
        assert_eq!(first["metadata"]["managedFields"][0]["manager"], "me");
        assert_eq!(applied(&first, "me", false, &[entry("d1", "1"), entry("d2", "2")]).unwrap(), first);
        let less = applied(&first, "me", false, &[entry("d2", "3")]).unwrap();
        assert_eq!(less["status"]["devices"], json!([entry("d2", "3")]));
    }

    #[test]
    fn another_managers_field_conflicts_unless_it_is_forced() {
        let theirs = applied(&claim(), "them", false, &[entry("d1", "1")]).unwrap();
        let Err(Fault::Conflict(why)) = applied(&theirs, "me", false, &[entry("d1", "2")]) else { panic!() };
        assert!(why.contains("conflict with \"them\""), "{why}");
        let mine = applied(&theirs, "me", true, &[entry("d1", "2")]).unwrap();
        assert_eq!(mine["status"]["devices"], json!([entry("d1", "2")]));
        let managers: Vec<_> = mine["metadata"]["managedFields"].as_array().unwrap().iter().collect();
        assert_eq!((managers.len(), &managers[0]["manager"]), (1, &json!("me")));
        let shared = applied(&theirs, "me", false, &[entry("d1", "1")]).unwrap();
        assert_eq!(shared["metadata"]["managedFields"].as_array().unwrap().len(), 2, "the same value");
    }

    #[test]
    fn entries_must_be_of_allocated_devices_and_of_the_known_form() {
        let condition = |time: &str| json!({"type": "Ready", "status": "True", "reason": "Prepared", "message": "", "lastTransitionTime": time});
        let with = |condition: Value| {
            let mut entry = entry("d1", "1");
            entry["conditions"] = json!([condition]);
            entry
        };
        assert!(applied(&claim(), "me", false, &[with(condition("2026-01-01T00:00:00Z"))]).is_ok());
        let field = |entry: Value| match applied(&claim(), "me", false, &[entry]) {
            Err(Fault::Invalid(faults)) => faults[0].field.clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(field(entry("d3", "1")), "status.devices[0]");
        assert_eq!(field(entry("d1", &"1,".repeat(6000))), "status.devices[0].data");
        let mut nameless = condition("2026-01-01T00:00:00Z");
        nameless["reason"] = "".into();
        assert_eq!(field(with(nameless)), "status.devices[0].conditions.reason");
        let mut strange = entry("d1", "1");
        strange["cpus"] = "1".into();
        assert!(matches!(applied(&claim(), "me", false, &[strange]), Err(Fault::BadRequest(_))));
        assert!(matches!(applied(&claim(), "", false, &[entry("d1", "1")]), Err(Fault::BadRequest(_))));
    }
}
