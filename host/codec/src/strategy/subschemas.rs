//! What a JSON Schema says of one value, wherever in the document it says so.

use serde_json::Value;
use std::collections::HashMap;

/// Schemas that are looked at for one value; branches may name each other without end.
const MOST: usize = 256;

/// One schema that may apply to a value.
#[derive(Debug, Clone, Copy)]
pub struct Subschema<'a> {
    /// The schema.
    pub schema: &'a Value,
    /// Whether it applies whatever the value is; else in one branch of several.
    pub always: bool,
}

/// The schemas that apply to the same value as this one of the document: itself, what it refers to within the document
/// (`$ref`), and its branches (`allOf`, `anyOf`, `oneOf`, `if`, `then`, `else`).
#[must_use]
pub fn subschemas<'a>(document: &'a Value, schema: &'a Value) -> Vec<Subschema<'a>> {
    let mut found = vec![Subschema { schema, always: true }];
    let mut next = 0;
    while let Some(Subschema { schema, always }) = found.get(next).copied() {
        next += 1;
        let mut add = |schema: &'a Value, always| {
            if found.len() < MOST && found.iter().all(|known| !std::ptr::eq(known.schema, schema)) {
                found.push(Subschema { schema, always });
            }
        };
        if let Some(target) = schema.get("$ref").and_then(Value::as_str).and_then(|at| within(document, at)) {
            add(target, always);
        }
        for key in ["allOf", "anyOf", "oneOf"] {
            let branches = schema.get(key).and_then(Value::as_array);
            branches.into_iter().flatten().for_each(|branch| add(branch, always && key == "allOf"));
        }
        ["if", "then", "else"].iter().filter_map(|key| schema.get(key)).for_each(|branch| add(branch, false));
    }
    found
}

/// What a reference points at: `#` is the document, `#/a/b` a place in it (RFC 6901). None outside the document.
fn within<'a>(document: &'a Value, reference: &str) -> Option<&'a Value> {
    document.pointer(reference.strip_prefix('#')?)
}

/// A key of an object, by its schema.
#[derive(Debug, Clone, PartialEq)]
pub struct Property<'a> {
    /// The key.
    pub key: &'a str,
    /// All that is said of its value.
    pub schemas: Vec<&'a Value>,
    /// Whether it must be there.
    pub required: bool,
}

/// The keys of an object by this schema of the document, in the order in which they are first named.
#[must_use]
pub fn properties<'a>(document: &'a Value, schema: &'a Value) -> Vec<Property<'a>> {
    let all = subschemas(document, schema);
    let mut found: Vec<Property<'a>> = Vec::new();
    let mut place_of: HashMap<&str, usize> = HashMap::new();
    for (key, schema) in all.iter().filter_map(|sub| sub.schema.get("properties")?.as_object()).flatten() {
        let at = *place_of.entry(key).or_insert(found.len());
        match found.get_mut(at) {
            Some(known) => known.schemas.push(schema),
            None => found.push(Property { key, schemas: vec![schema], required: false }),
        }
    }
    let always = all.iter().filter(|sub| sub.always);
    let lists = always.filter_map(|sub| sub.schema.get("required")?.as_array());
    for key in lists.flatten().filter_map(Value::as_str) {
        if let Some(property) = place_of.get(key).and_then(|at| found.get_mut(*at)) {
            property.required = true;
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn keys_are_found_behind_references_and_in_branches() {
        let document = json!({
            "$ref": "#/$defs/all",
            "$defs": {
                "all": { "properties": { "a": true }, "allOf": [{ "$ref": "#" }, { "required": ["a", "c"] }] },
                "one": { "properties": { "c": { "type": "boolean" } }, "required": ["b"] },
            },
            "oneOf": [{ "properties": { "b": true } }, { "$ref": "#/$defs/one" }, { "$ref": "https://example.org/" }],
        });
        let found = properties(&document, &document);
        let found: Vec<_> = found.iter().map(|property| (property.key, property.required)).collect();
        assert_eq!(found, [("a", true), ("b", false), ("c", true)]);
        assert_eq!(properties(&json!(false), &json!(false)), []);
    }
}
