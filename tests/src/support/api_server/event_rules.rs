//! What the server has against an event of `events.k8s.io/v1`.
//!
//! Source: `ValidateEventCreate`, `ValidateEventUpdate` in Kubernetes' `pkg/apis/core/validation/events.go`; times are
//! `MicroTime`, which reads exactly six decimals.

use super::slice_rules::is_dns_word;
use super::status::FieldError;
use serde_json::Value;

const NOTE_BYTES: usize = 1024;
const WORD_BYTES: usize = 128;

/// Fields that an update may not change.
const FIXED: [&str; 8] = [
    "eventTime",
    "reportingController",
    "reportingInstance",
    "action",
    "reason",
    "regarding",
    "note",
    "type",
];

/// The faults of a new event in this namespace.
pub(super) fn faults(event: &Value, namespace: &str) -> Vec<FieldError> {
    let mut faults = Vec::new();
    let mut fault = |field: &str, reason: &'static str, message: &str| {
        faults.push(FieldError { field: field.to_owned(), reason, message: message.to_owned() });
    };
    let text = |field: &str| event[field].as_str().unwrap_or("");
    for field in ["eventTime", "reportingController", "reportingInstance", "action", "reason"] {
        if text(field).is_empty() {
            fault(field, "FieldValueRequired", "Required value");
        }
    }
    for field in ["reportingInstance", "action", "reason"] {
        if text(field).len() > WORD_BYTES {
            fault(field, "FieldValueInvalid", "Invalid value: \"\": can have at most 128 characters");
        }
    }
    if text("note").len() > NOTE_BYTES {
        fault("message", "FieldValueInvalid", "Invalid value: \"\": can have at most 1024 characters");
    }
    if !["Normal", "Warning"].contains(&text("type")) {
        fault("type", "FieldValueInvalid", "Invalid value: \"\": has invalid value");
    }
    if !is_qualified_name(text("reportingController")) {
        fault("reportingController", "FieldValueInvalid", "Invalid value: must be a qualified name");
    }
    if event["regarding"]["namespace"].as_str().unwrap_or("").is_empty()
        && !["default", "kube-system"].contains(&namespace)
    {
        fault(
            "involvedObject.namespace",
            "FieldValueInvalid",
            "Invalid value: does not match event.namespace",
        );
    }
    for field in
        ["deprecatedCount", "deprecatedFirstTimestamp", "deprecatedLastTimestamp", "deprecatedSource"]
    {
        if !event[field].is_null() {
            fault(field, "FieldValueInvalid", "Invalid value: needs to be unset");
        }
    }
    if !is_subdomain(event["metadata"]["name"].as_str().unwrap_or("")) {
        fault(
            "metadata.name",
            "FieldValueInvalid",
            "Invalid value: a lowercase RFC 1123 subdomain must consist of …",
        );
    }
    faults.extend(series_faults(&event["series"]));
    faults
}

/// The faults of an event that is to take the place of `old`.
pub(super) fn changes(old: &Value, new: &Value) -> Vec<FieldError> {
    let fixed = FIXED.into_iter().filter(|field| old[*field] != new[*field]).map(|field| FieldError {
        field: field.to_owned(),
        reason: "FieldValueInvalid",
        message: "Invalid value: field is immutable".to_owned(),
    });
    fixed.chain(series_faults(&new["series"])).collect()
}

/// Times that cannot be read: the body as a whole is refused.
pub(super) fn unreadable_time(event: &Value) -> Option<String> {
    let times = [&event["eventTime"], &event["series"]["lastObservedTime"]];
    let bad = times.into_iter().find(|time| !time.is_null() && !time.as_str().is_some_and(is_micro_time));
    bad.map(|time| format!("parsing time {time} as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse"))
}

/// The object with the fields of a merge patch (RFC 7386).
pub(super) fn merged(object: &Value, patch: &Value) -> Value {
    let Value::Object(fields) = patch else { return patch.clone() };
    let mut merged = object.as_object().cloned().unwrap_or_default();
    for (name, value) in fields {
        if value.is_null() {
            merged.shift_remove(name);
        } else {
            let inner = self::merged(merged.get(name).unwrap_or(&Value::Null), value);
            merged.insert(name.clone(), inner);
        }
    }
    merged.into()
}

fn series_faults(series: &Value) -> Vec<FieldError> {
    let mut faults = Vec::new();
    if series.is_null() {
        return faults;
    }
    if series["count"].as_i64().is_none_or(|count| count < 2) {
        let message = "Invalid value: \"\": should be at least 2".to_owned();
        faults.push(FieldError { field: "series.count".to_owned(), reason: "FieldValueInvalid", message });
    }
    if series["lastObservedTime"].is_null() {
        let (field, message) = ("series.lastObservedTime".to_owned(), "Required value".to_owned());
        faults.push(FieldError { field, reason: "FieldValueRequired", message });
    }
    faults
}

fn is_micro_time(text: &str) -> bool {
    let form = "2006-01-02T15:04:05.000000Z";
    let like = |(given, form): (char, char)| {
        if form.is_ascii_digit() { given.is_ascii_digit() } else { given == form }
    };
    text.len() == form.len() && text.chars().zip(form.chars()).all(like)
}

fn is_subdomain(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_dns_word)
}

fn is_qualified_name(name: &str) -> bool {
    let (prefix, name) = name.rsplit_once('/').unwrap_or(("x", name));
    let inner = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let end = |c: char| c.is_ascii_alphanumeric();
    is_subdomain(prefix)
        && name.len() <= 63
        && name.chars().all(inner)
        && name.starts_with(end)
        && name.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn event() -> Value {
        json!({
            "metadata": {"name": "c.17979cfe", "namespace": "ns"}, "eventTime": "2026-01-01T00:00:00.000000Z",
            "reportingController": "dra.cpu", "reportingInstance": "n", "action": "Prepare", "reason": "Full",
            "type": "Warning", "note": "no", "regarding": {"kind": "ResourceClaim", "name": "c", "namespace": "ns"},
        })
    }

    fn fields(faults: Vec<FieldError>) -> Vec<String> {
        faults.into_iter().map(|fault| fault.field).collect()
    }

    #[test]
    fn each_rule_has_its_fault() {
        assert_eq!(faults(&event(), "ns"), []);
        for (field, value, fault) in [
            ("eventTime", json!(null), "eventTime"),
            ("reportingController", json!("a b"), "reportingController"),
            ("reportingInstance", json!("x".repeat(129)), "reportingInstance"),
            ("action", json!(""), "action"),
            ("reason", json!(null), "reason"),
            ("type", json!("Error"), "type"),
            ("note", json!("ä".repeat(513)), "message"),
            ("regarding", json!({"kind": "Pod"}), "involvedObject.namespace"),
            ("deprecatedCount", json!(1), "deprecatedCount"),
            ("metadata", json!({"name": "a..b"}), "metadata.name"),
            ("series", json!({"count": 1, "lastObservedTime": "x"}), "series.count"),
            ("series", json!({"count": 2}), "series.lastObservedTime"),
        ] {
            let mut event = event();
            event[field] = value;
            assert_eq!(fields(faults(&event, "ns")), [fault], "{field}");
        }
    }

    #[test]
    fn a_series_can_be_patched_and_nothing_else() {
        let series = json!({"series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:01.000000Z"}});
        let patched = merged(&event(), &series);
        assert_eq!(changes(&event(), &patched), []);
        assert_eq!(patched["series"], series["series"]);
        let other = merged(&event(), &json!({"note": "other", "action": null}));
        assert_eq!(fields(changes(&event(), &other)), ["action", "note"]);
    }

    #[test]
    fn times_have_six_decimals() {
        assert_eq!(unreadable_time(&event()), None);
        for bad in ["2026-01-01T00:00:00Z", "2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000000000Z"] {
            let mut event = event();
            event["eventTime"] = bad.into();
            assert!(unreadable_time(&event).is_some(), "{bad}");
        }
    }
}
