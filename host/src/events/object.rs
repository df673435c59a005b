//! What an event looks like (`events.k8s.io/v1`). Required fields and their limits: `ValidateEventCreate` in
//! Kubernetes' `pkg/apis/core/validation/events.go`.

use super::series::{Event, Key};
use crate::DRIVER_NAME;
use crate::driver::{Kind, Matter, Subject};
use k8s_openapi::jiff::Timestamp;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

/// Bytes of a note.
const MOST_NOTE: usize = 1024;
/// Bytes of `reportingInstance`.
const MOST_INSTANCE: usize = 128;
/// Bytes of an object's name.
const MOST_NAME: usize = 253;

/// The name of an event: whose it is and when it happened first, so that a second try makes no second event.
pub(super) fn name(about: &Subject, first: SystemTime) -> String {
    let nanos = first.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos();
    let when = format!(".{nanos:x}");
    let stem = beginning(&about.name, MOST_NAME - when.len());
    format!("{}{when}", stem.trim_end_matches(['-', '.']))
}

/// A new event, told by the driver of this node.
pub(super) fn new((about, matter): &Key, event: &Event, node: &str) -> Value {
    let Subject { kind, uid, namespace, name } = about;
    let (api_version, kind, named) = match kind {
        Kind::Claim => {
            ("resource.k8s.io/v1", "ResourceClaim", format!("claim {namespace}/{name}: {}", event.text))
        }
        Kind::Pod => ("v1", "Pod", event.text.clone()),
    };
    let (reason, action) = words(*matter);
    let mut object = json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"namespace": namespace, "name": event.name},
        "eventTime": time(event.first),
        "reportingController": DRIVER_NAME,
        "reportingInstance": beginning(node, MOST_INSTANCE),
        "type": "Warning",
        "reason": reason,
        "action": action,
        "regarding": {"apiVersion": api_version, "kind": kind, "namespace": namespace, "name": name, "uid": uid},
        "note": note(&named),
    });
    if event.count > 1
        && let (Some(object), Value::Object(series)) = (object.as_object_mut(), again(event))
    {
        object.extend(series);
    }
    object
}

/// The fields that change when it has happened again.
pub(super) fn again(event: &Event) -> Value {
    json!({"series": {"count": event.count, "lastObservedTime": time(event.last)}})
}

/// Why, and during what: one word each.
fn words(matter: Matter) -> (&'static str, &'static str) {
    match matter {
        Matter::NotPrepared => ("CPUsNotPrepared", "Prepare"),
        Matter::Stranded => ("CPUsStranded", "Keep"),
        Matter::Conflicted => ("CPUsConflicted", "Keep"),
        Matter::Orphaned => ("ClaimOrphaned", "Keep"),
        Matter::NotBelieved => ("ClaimNotBelieved", "CheckContainer"),
        Matter::Throttled => ("CPUsThrottled", "CreateContainer"),
    }
}

/// With six decimals, as the API reads it.
fn time(time: SystemTime) -> String {
    let time = Timestamp::try_from(time).unwrap_or_default();
    format!("{time:.6}")
}

fn note(text: &str) -> String {
    const END: &str = "…";
    if text.len() <= MOST_NOTE {
        return text.to_owned();
    }
    format!("{}{END}", beginning(text, MOST_NOTE - END.len()))
}

/// So many bytes of it at most, no character cut.
fn beginning(text: &str, most: usize) -> &str {
    text.get(..text.floor_char_boundary(most)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn about(name: &str) -> Subject {
        Subject { kind: Kind::Claim, uid: "u".into(), namespace: "ns".into(), name: name.into() }
    }

    fn event(text: &str, count: u32) -> Event {
        let first = UNIX_EPOCH + Duration::from_micros(1_700_000_000_000_001);
        let last = first + Duration::from_secs(60);
        Event { name: name(&about("c"), first), text: text.into(), first, last, count, again: None }
    }

    #[test]
    fn an_event_says_what_happened_to_which_object_and_how_often() {
        let key = (about("c"), Matter::NotPrepared);
        let expected = json!({
            "apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"namespace": "ns", "name": "c.17979cfe362a03e8"},
            "eventTime": "2023-11-14T22:13:20.000001Z",
            "reportingController": "dra.cpu", "reportingInstance": "node",
            "type": "Warning", "reason": "CPUsNotPrepared", "action": "Prepare",
            "regarding": {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "namespace": "ns",
                "name": "c", "uid": "u"},
            "note": "claim ns/c: full",
        });
        assert_eq!(new(&key, &event("full", 1), "node"), expected);
        let series = json!({"count": 3, "lastObservedTime": "2023-11-14T22:14:20.000001Z"});
        assert_eq!(new(&key, &event("full", 3), "node")["series"], series);
        assert_eq!(again(&event("full", 3)), json!({"series": series}));
    }

    #[test]
    fn what_is_too_long_for_the_api_is_cut_between_characters() {
        let long = "ä".repeat(2000);
        let new = new(&(about("c"), Matter::Throttled), &event(&long, 1), &"n".repeat(253));
        let note = new["note"].as_str().unwrap();
        assert!(note.len() <= MOST_NOTE && note.len() > MOST_NOTE - 4 && note.ends_with("ä…"), "{note}");
        assert_eq!(new["reportingInstance"].as_str().map(str::len), Some(MOST_INSTANCE));
        let dotted = format!("{}.{}", "a".repeat(235), "b".repeat(17));
        let name = name(&about(&dotted), event("", 1).first);
        assert!(name.len() <= MOST_NAME && !name.contains("..") && name.starts_with("aaa"), "{name}");
    }
}
