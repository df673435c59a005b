//! What a JSON Schema says of one value, wherever in the document it says so.

use crate::words::quoted;
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
/// (`$ref`), and its branches (`allOf`, `anyOf`, `oneOf`, `if`, `then`, `else`). Those that always apply come first.
#[must_use]
pub fn subschemas<'a>(document: &'a Value, schema: &'a Value) -> Vec<Subschema<'a>> {
    let mut found = vec![Subschema { schema, always: true }];
    for always in [true, false] {
        let mut next = 0;
        while let Some(Subschema { schema, .. }) = found.get(next).copied() {
            next += 1;
            let target = schema.get("$ref").and_then(Value::as_str).and_then(|at| within(document, at));
            let all_of = list(schema, "allOf");
            let branches = ["anyOf", "oneOf"].into_iter().flat_map(|key| list(schema, key));
            let branches =
                branches.chain(["if", "then", "else"].into_iter().filter_map(|key| schema.get(key)));
            for schema in target.into_iter().chain(all_of).chain(branches.filter(|_| !always)) {
                if found.len() < MOST && found.iter().all(|known| !std::ptr::eq(known.schema, schema)) {
                    found.push(Subschema { schema, always });
                }
            }
        }
    }
    found
}

fn list<'a>(schema: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    schema.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// Schemas that one may be made of where every reference is followed, and how deep they may lie in each other. Who checks
/// options by a schema does so as often and as deep, without the limits of the component that it comes from.
const MOST_EXPANDED: usize = 10_000;
const DEEPEST: usize = 100;
/// A compiled pattern is much larger than its text.
const MOST_PATTERNS: usize = 100;

/// Refuses a schema by which it could take long, or a deep stack, to check options.
///
/// # Errors
/// What is wrong with it, in a sentence.
pub fn check_bounds(document: &Value) -> Result<(), String> {
    if patterns(document) > MOST_PATTERNS {
        return Err(format!("more than {MOST_PATTERNS} patterns: say it with fewer"));
    }
    expanded(document, document, 0, &mut HashMap::new()).map(drop)
}

/// How many patterns are in it. What was read from text is not nested deeply.
fn patterns(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(patterns).sum(),
        Value::Object(keywords) => {
            let own = keywords.iter().map(|(keyword, value)| match (keyword.as_str(), value) {
                ("pattern", Value::String(_)) => 1,
                ("patternProperties", Value::Object(patterns)) => patterns.len(),
                _ => 0,
            });
            own.sum::<usize>() + keywords.values().map(patterns).sum::<usize>()
        }
        _ => 0,
    }
}

/// A schema, references followed.
#[derive(Clone, Copy)]
struct Expanded {
    /// How many schemas it is made of.
    size: usize,
    /// How many of them lie in each other.
    height: usize,
}

/// How large this schema is, which lies in so many others; known ones by their place in memory.
fn expanded(
    document: &Value,
    schema: &Value,
    depth: usize,
    known: &mut HashMap<*const Value, Expanded>,
) -> Result<Expanded, String> {
    let told = known.get(&std::ptr::from_ref(schema)).copied();
    if depth + told.map_or(0, |told| told.height) > DEEPEST {
        return Err(format!(
            "more than {DEEPEST} schemas in each other, references followed, or one that refers to itself: say it without"
        ));
    }
    if let Some(told) = told {
        return Ok(told);
    }
    let mut all = Expanded { size: 1, height: 1 };
    let mut add = |schema: &Value| -> Result<(), String> {
        let inner = expanded(document, schema, depth + 1, known)?;
        all.size = all.size.saturating_add(inner.size);
        all.height = all.height.max(inner.height + 1);
        match all.size > MOST_EXPANDED {
            true => Err(format!("more than {MOST_EXPANDED} schemas, references followed: make it smaller")),
            false => Ok(()),
        }
    };
    match schema {
        Value::Array(items) => items.iter().try_for_each(&mut add)?,
        Value::Object(keywords) => {
            for (keyword, value) in keywords {
                match (keyword.as_str(), value) {
                    // Values, not schemas.
                    ("const" | "enum" | "default" | "examples", _) => {}
                    ("$ref", Value::String(reference)) => {
                        add(within(document, reference).ok_or_else(|| {
                            format!(
                                "the reference `{}` is no place in it, such as `#/$defs/size`",
                                quoted(reference)
                            )
                        })?)?
                    }
                    ("$dynamicRef" | "$recursiveRef" | "$anchor" | "$dynamicAnchor", Value::String(_)) => {
                        return Err(format!(
                            "`{keyword}` is not supported: refer to places, such as `#/$defs/size`"
                        ));
                    }
                    ("$id", Value::String(_)) if depth > 0 => {
                        return Err("`$id` may only stand at its top".to_owned());
                    }
                    _ => add(value)?,
                }
            }
        }
        _ => {}
    }
    known.insert(std::ptr::from_ref(schema), all);
    Ok(all)
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

    #[test]
    fn what_always_applies_is_known_though_a_branch_leads_there_too() {
        let document = json!({
            "$defs": { "a": { "properties": { "x": true }, "required": ["x"] } },
            "anyOf": [{ "$ref": "#/$defs/a" }],
            "allOf": [{ "allOf": [{ "$ref": "#/$defs/a" }] }],
        });
        assert!(properties(&document, &document)[0].required);
    }

    #[test]
    fn a_schema_that_takes_long_or_a_deep_stack_to_check_by_is_refused() {
        // Each refers twice to the next, or once to a long chain, or to itself.
        let chain = |links: usize, times: usize| {
            let link = |at: usize| {
                (
                    format!("a{at}"),
                    json!({ "allOf": vec![json!({ "$ref": format!("#/$defs/a{}", at + 1) }); times] }),
                )
            };
            let mut defs: serde_json::Map<String, Value> = (0..links).map(link).collect();
            defs.insert(format!("a{links}"), json!(false));
            json!({ "$defs": defs, "$ref": "#/$defs/a0" })
        };
        assert_eq!(check_bounds(&chain(8, 2)), Ok(()));
        let refused = |schema: Value| check_bounds(&schema).unwrap_err();
        assert!(refused(chain(24, 2)).contains("more than 10000 schemas"), "{}", refused(chain(24, 2)));
        assert!(refused(chain(6000, 1)).contains("in each other"));
        // Short ones first, so that each part of the chain is known before the whole is looked at.
        let mut backwards = chain(60, 1);
        let parts: Vec<Value> = (0..60).rev().map(|at| json!({ "$ref": format!("#/$defs/a{at}") })).collect();
        backwards["$ref"] = json!("#/$defs/a59");
        backwards["allOf"] = json!(parts);
        assert!(refused(backwards).contains("in each other"));
        assert!(refused(json!({ "properties": { "tree": { "$ref": "#" } } })).contains("refers to itself"));
        assert!(refused(json!({ "required": vec!["a"; 20_000] })).contains("more than 10000"));
        assert!(refused(json!({ "$ref": "#/none" })).contains("no place in it"));
        assert!(refused(json!({ "items": { "$id": "https://example.org/" } })).contains("at its top"));
        assert!(refused(json!({ "$dynamicRef": "#x" })).contains("not supported"));
        let patterns =
            json!({ "anyOf": vec![json!({ "pattern": "a", "patternProperties": { "b": true } }); 60] });
        assert!(refused(patterns).contains("more than 100 patterns"));
        assert_eq!(
            check_bounds(&json!({ "enum": vec!["a"; 20_000], "$id": "https://example.org/" })),
            Ok(())
        );
    }
}
