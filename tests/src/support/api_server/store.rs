//! Objects, their revisions, and every change since the start.

use super::status::{Refusal, Subject, expired};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use tokio::sync::watch;

/// A kind of object that the server knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Resource {
    /// core/v1
    Nodes,
    /// core/v1
    Pods,
    /// resource.k8s.io/v1
    DeviceClasses,
    /// resource.k8s.io/v1
    ResourceClaims,
    /// resource.k8s.io/v1
    ResourceSlices,
    /// events.k8s.io/v1
    Events,
}

impl Resource {
    /// Group, plural name, kind.
    #[must_use]
    pub fn names(self) -> (&'static str, &'static str, &'static str) {
        match self {
            Self::Nodes => ("", "nodes", "Node"),
            Self::Pods => ("", "pods", "Pod"),
            Self::DeviceClasses => ("resource.k8s.io", "deviceclasses", "DeviceClass"),
            Self::ResourceClaims => ("resource.k8s.io", "resourceclaims", "ResourceClaim"),
            Self::ResourceSlices => ("resource.k8s.io", "resourceslices", "ResourceSlice"),
            Self::Events => ("events.k8s.io", "events", "Event"),
        }
    }

    pub(super) fn namespaced(self) -> bool {
        matches!(self, Self::Pods | Self::ResourceClaims | Self::Events)
    }

    pub(super) fn api_version(self) -> &'static str {
        match self.names().0 {
            "" => "v1",
            "events.k8s.io" => "events.k8s.io/v1",
            _ => "resource.k8s.io/v1",
        }
    }

    pub(super) fn subject(self, name: &str) -> Subject<'_> {
        let (group, resource, kind) = self.names();
        Subject { group, resource, kind, name }
    }
}

/// Where an object is kept.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) resource: Resource,
    pub(super) namespace: String,
    pub(super) name: String,
}

/// `ADDED`, `MODIFIED` or `DELETED`.
#[derive(Debug, Clone)]
pub(super) struct Change {
    pub(super) revision: u64,
    pub(super) resource: Resource,
    pub(super) kind: &'static str,
    pub(super) object: Value,
}

#[derive(Debug)]
pub(super) struct Store {
    revision: u64,
    /// Changes up to here are forgotten.
    forgotten: u64,
    made: u64,
    objects: BTreeMap<Key, Value>,
    changes: Vec<Change>,
    feed: watch::Sender<u64>,
}

impl Store {
    pub(super) fn new() -> Self {
        let revision = 100; // never 0 or 1 in life: both have a meaning of their own in requests
        Self {
            revision,
            forgotten: revision,
            made: 0,
            objects: BTreeMap::new(),
            changes: Vec::new(),
            feed: watch::channel(revision).0,
        }
    }

    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    pub(super) fn feed(&self) -> watch::Receiver<u64> {
        self.feed.subscribe()
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Value> {
        self.objects.get(key)
    }

    pub(super) fn list(&self, resource: Resource, namespace: Option<&str>) -> Vec<&Value> {
        let wanted = |key: &Key| key.resource == resource && namespace.is_none_or(|ns| ns == key.namespace);
        self.objects.iter().filter(|(key, _)| wanted(key)).map(|(_, object)| object).collect()
    }

    /// A new object: gets its uid, creation time, first revision, and a name if it has only a stem.
    pub(super) fn create(&mut self, resource: Resource, mut object: Value) -> Result<Value, Refusal> {
        self.made += 1;
        let made = self.made;
        let metadata = metadata(&mut object);
        let name = match (text(metadata, "name"), text(metadata, "generateName")) {
            ("", "") => String::new(), // refused by validation
            ("", stem) => format!("{stem}{}", suffix(made)),
            (name, _) => name.to_owned(),
        };
        let namespace = text(metadata, "namespace").to_owned();
        let key = Key { resource, namespace, name: name.clone() };
        if self.objects.contains_key(&key) {
            return Err(resource.subject(&name).already_exists());
        }
        let metadata = self::metadata(&mut object);
        metadata.insert("name".to_owned(), name.into());
        if text(metadata, "uid").is_empty() {
            metadata.insert("uid".to_owned(), uid(made).into());
        }
        metadata.insert("creationTimestamp".to_owned(), "2026-01-01T00:00:00Z".into());
        metadata.insert("generation".to_owned(), 1.into());
        Ok(self.put(key, "ADDED", object))
    }

    /// Replaces an object's content; equal content is no change and no new revision.
    pub(super) fn replace(&mut self, key: &Key, mut object: Value) -> Result<Value, Refusal> {
        let subject = key.resource.subject(&key.name);
        let Some(old) = self.objects.get(key) else { return Err(subject.not_found()) };
        let mut old = old.clone();
        let (sent, kept) = (metadata(&mut object), metadata(&mut old));
        let same = |field: &str| matches!(text(sent, field), "") || text(sent, field) == text(kept, field);
        if !same("uid") {
            let (kept, sent) = (text(kept, "uid"), text(sent, "uid"));
            let why = format!("Precondition failed: UID in precondition: {sent}, UID in object meta: {kept}");
            return Err(subject.conflict(&why));
        }
        if !same("resourceVersion") {
            return Err(subject.conflict(
                "the object has been modified; please apply your changes to the latest version and try again",
            ));
        }
        for field in ["uid", "resourceVersion", "creationTimestamp", "generation", "name", "namespace"] {
            match kept.get(field) {
                Some(value) => sent.insert(field.to_owned(), value.clone()),
                None => sent.remove(field),
            };
        }
        if object == old {
            return Ok(object);
        }
        if object.get("spec") != old.get("spec") {
            let generation = old["metadata"]["generation"].as_u64().unwrap_or(0) + 1;
            metadata(&mut object).insert("generation".to_owned(), generation.into());
        }
        Ok(self.put(key.clone(), "MODIFIED", object))
    }

    /// Deletes if uid and resourceVersion, where given, are the present ones.
    pub(super) fn delete(&mut self, key: &Key, preconditions: &Value) -> Result<Value, Refusal> {
        let subject = key.resource.subject(&key.name);
        let Some(old) = self.objects.get(key) else { return Err(subject.not_found()) };
        for (field, shown) in [("uid", "UID"), ("resourceVersion", "ResourceVersion")] {
            let (wanted, kept) = (&preconditions[field], &old["metadata"][field]);
            if !wanted.is_null() && wanted != kept {
                let why = format!(
                    "Precondition failed: {shown} in precondition: {wanted}, {shown} in object meta: {kept}"
                );
                return Err(subject.conflict(&why));
            }
        }
        let mut object = self.objects.remove(key).unwrap();
        self.revision += 1;
        metadata(&mut object).insert("resourceVersion".to_owned(), self.revision.to_string().into());
        self.record(key.resource, "DELETED", object.clone());
        Ok(object)
    }

    /// Changes after `revision`; refused when some of them are forgotten.
    pub(super) fn since(&self, revision: u64) -> Result<&[Change], Refusal> {
        if revision < self.forgotten {
            return Err(expired());
        }
        let first = self.changes.partition_point(|change| change.revision <= revision);
        Ok(&self.changes[first..])
    }

    /// Forgets all changes, as compaction does; watches that lag are ended with 410.
    pub(super) fn compact(&mut self) {
        self.revision += 1;
        self.forgotten = self.revision;
        self.changes.clear();
        self.feed.send_replace(self.revision);
    }

    fn put(&mut self, key: Key, kind: &'static str, mut object: Value) -> Value {
        self.revision += 1;
        metadata(&mut object).insert("resourceVersion".to_owned(), self.revision.to_string().into());
        self.objects.insert(key.clone(), object.clone());
        self.record(key.resource, kind, object.clone());
        object
    }

    fn record(&mut self, resource: Resource, kind: &'static str, object: Value) {
        self.changes.push(Change { revision: self.revision, resource, kind, object });
        self.feed.send_replace(self.revision);
    }
}

pub(super) fn metadata(object: &mut Value) -> &mut Map<String, Value> {
    let object = object.as_object_mut().expect("an object was checked to be a JSON object");
    let metadata = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    metadata.as_object_mut().expect("metadata was checked to be a JSON object")
}

fn text<'a>(map: &'a Map<String, Value>, field: &str) -> &'a str {
    map.get(field).and_then(Value::as_str).unwrap_or("")
}

/// Five characters of the alphabet that the server uses behind `generateName`.
fn suffix(mut seed: u64) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let letter = |n: u32| {
        let at = usize::try_from((seed >> (8 * n)) % 27).unwrap();
        char::from(ALPHABET[at])
    };
    (0..5).map(letter).collect()
}

fn uid(made: u64) -> String {
    format!("0b1ec700-0000-4000-8000-{made:012x}")
}
