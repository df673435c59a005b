//! A strategy's options: JSON objects, later ones over earlier ones key by key, checked against the
//! strategy's own schema before it sees them.

use super::subschemas::{check_bounds, properties, subschemas};
use crate::words::{listed, plain, quoted, sentence};
use jsonschema::error::ValidationErrorKind;
use serde_json::{Map, Value, json};

/// Options that do not fit the schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{whose}: {}", listed(mistakes))]
pub struct OptionsError {
    /// Whose options: `options of the node`, `request r`.
    pub whose: String,
    /// Mistakes, not all where they are very many: the key, the value, what is allowed.
    pub mistakes: Vec<String>,
}

/// What a compiled pattern may take, about.
const MOST_PATTERN_BYTES: usize = 256 << 10;
/// So many mistakes are looked at.
const MOST_MISTAKES: usize = 1000;
/// So much that is odd about a schema is told.
const MOST_REMARKS: usize = 20;

/// The compiled schema.
#[derive(Debug)]
pub struct Schema {
    validator: jsonschema::Validator,
    keys: Vec<String>,
    /// Which options there are, in words. Their names are the component's.
    has: String,
}

impl Schema {
    /// Compiles a schema. References to other documents are refused, patterns run in linear time: the
    /// schema comes from the component.
    ///
    /// # Errors
    /// What is wrong with it, in the words of the validator.
    pub fn compile(schema: &Value) -> Result<Self, String> {
        check_bounds(schema)?;
        let patterns = jsonschema::PatternOptions::regex();
        let patterns = patterns.size_limit(MOST_PATTERN_BYTES).dfa_size_limit(MOST_PATTERN_BYTES);
        let validator = jsonschema::options()
            .with_draft(jsonschema::Draft::Draft202012)
            .with_pattern_options(patterns)
            .build(schema)
            .map_err(|error| not_a_schema(&error))?;
        let keys: Vec<String> =
            properties(schema, schema).into_iter().map(|property| property.key.to_owned()).collect();
        let has = format!("this strategy has the options {}", sentence(&plain(&keys.join(", "))));
        Ok(Self { validator, keys, has })
    }

    /// What is odd about the schema, though options can be held against it: a sentence each.
    #[must_use]
    pub fn remarks(&self, schema: &Value) -> Vec<String> {
        let empty = self.check(&json!({}), || "a node that sets no options cannot open it".to_owned());
        let empty = empty.err().map(|error| sentence(&error.to_string()).into_owned());
        let keys = properties(schema, schema).into_iter();
        let defaults = keys.flat_map(|property| {
            let all = property.schemas.into_iter().flat_map(|of_key| subschemas(schema, of_key));
            let defaults = all.filter_map(|sub| sub.schema.get("default"));
            defaults.filter_map(move |default| self.misfit(property.key, default))
        });
        let defaults = defaults.map(|why| format!("the default of an option is none of its values: {why}"));
        empty.into_iter().chain(defaults).take(MOST_REMARKS).collect()
    }

    /// Why this option cannot have this value, whatever others have.
    #[must_use]
    pub fn misfit(&self, key: &str, value: &Value) -> Option<String> {
        let options = json!({ key: value });
        let at_key = |error: &jsonschema::ValidationError<'_>| !error.instance_path().as_str().is_empty();
        let error = self.validator.iter_errors(&options).find(at_key)?;
        Some(self.mistake(&error))
    }

    /// Holds options against the schema; `whose` they are is said of mistakes.
    ///
    /// # Errors
    /// Every mistake.
    pub fn check(&self, options: &Value, whose: impl FnOnce() -> String) -> Result<(), OptionsError> {
        if self.validator.is_valid(options) {
            return Ok(());
        }
        let errors = self.validator.iter_errors(options).take(MOST_MISTAKES);
        let (unknown, others): (Vec<_>, Vec<_>) = errors.partition(|error| is_about_keys(error));
        let mut mistakes: Vec<String> = others.iter().map(|error| self.mistake(error)).collect();
        if !unknown.is_empty() {
            mistakes.extend(self.unknown(options));
        }
        if mistakes.is_empty() {
            mistakes.extend(unknown.iter().map(|error| self.mistake(error)));
        }
        Err(OptionsError { whose: whose(), mistakes })
    }

    /// A mistake for each key that is no option.
    fn unknown(&self, options: &Value) -> Vec<String> {
        let known = match self.keys.is_empty() {
            true => "this strategy has no options".to_owned(),
            false => self.has.clone(),
        };
        let keys = options.as_object().into_iter().flatten().filter(|(key, _)| !self.keys.contains(key));
        keys.map(|(key, value)| {
            format!("`{}` (set to {}) is no option; {known}", quoted(key), quoted(&value.to_string()))
        })
        .collect()
    }

    fn mistake(&self, error: &jsonschema::ValidationError<'_>) -> String {
        let path = error.instance_path().to_string();
        let key = path.trim_start_matches('/');
        let error = shortened(error);
        match key.is_empty() {
            false => format!("option `{}`: {error}", quoted(key)),
            true if self.keys.is_empty() => error,
            true => format!("{error}; {}", self.has),
        }
    }
}

/// The validator's words, without the whole of a value that they quote.
fn shortened(error: &jsonschema::ValidationError<'_>) -> String {
    let value = error.instance().to_string();
    sentence(&error.to_string().replace(&value, &quoted(&value))).into_owned()
}

/// Where in the schema is what.
fn not_a_schema(error: &jsonschema::ValidationError<'_>) -> String {
    let place = error.instance_path().to_string();
    let is_pattern = place.ends_with("/pattern");
    let place = quoted(&place);
    let words = shortened(error);
    let hint = match error.kind() {
        ValidationErrorKind::Format { .. } if is_pattern => {
            "; if it has look-around or back-references: patterns have neither here, so that they match in linear time"
        }
        _ => "",
    };
    match place.is_empty() {
        true => format!("{words}{hint}"),
        false => format!("{place}: {words}{hint}"),
    }
}

/// Whether the options object has a key that it must not have.
fn is_about_keys(error: &jsonschema::ValidationError<'_>) -> bool {
    let kind = error.kind();
    // A schema without properties says so of the value.
    matches!(kind, ValidationErrorKind::AdditionalProperties { .. } | ValidationErrorKind::FalseSchema)
        && error.instance_path().as_str().is_empty()
}

/// `over` on top of `under`, key by key.
#[must_use]
pub fn merged(under: &Map<String, Value>, over: &Map<String, Value>) -> Map<String, Value> {
    let mut options = under.clone();
    options.extend(over.iter().map(|(key, value)| (key.clone(), value.clone())));
    options
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn mistakes(options: Value) -> Vec<String> {
        let schema = json!({
            "type": "object",
            "additionalProperties": false,
            "properties": { "whole": { "type": "boolean" }, "isolated": { "enum": ["include", "exclude"] } },
        });
        match Schema::compile(&schema).unwrap().check(&options, || "request r".to_owned()) {
            Ok(()) => Vec::new(),
            Err(error) => error.mistakes,
        }
    }

    #[test]
    fn mistakes_name_key_value_and_what_is_allowed() {
        assert_eq!(mistakes(json!({ "whole": true, "isolated": "include" })), Vec::<String>::new());
        assert_eq!(
            mistakes(json!({ "whole": "yes" })),
            ["option `whole`: \"yes\" is not of type \"boolean\""]
        );
        assert_eq!(
            mistakes(json!({ "isolated": "no" })),
            ["option `isolated`: \"no\" is not one of \"include\" or \"exclude\""]
        );
        assert_eq!(
            mistakes(json!({ "hole": true })),
            ["`hole` (set to true) is no option; this strategy has the options whole, isolated"]
        );
        let none = Schema::compile(&json!({"type": "object", "additionalProperties": false})).unwrap();
        let error = none.check(&json!({"x": {"y": 1}}), || "request r".to_owned()).unwrap_err();
        assert_eq!(error.mistakes, [r#"`x` (set to {"y":1}) is no option; this strategy has no options"#]);
    }

    #[test]
    fn long_values_and_many_keys_are_not_told_whole() {
        let long = mistakes(json!({ "whole": "x".repeat(1 << 20) }));
        assert!(long[0].len() < 300 && long[0].ends_with("x… is not of type \"boolean\""), "{}", long[0]);
        let many: Map<String, Value> = (0..20_000).map(|n| (format!("key{n}"), json!(1))).collect();
        let error = OptionsError { whose: "options".to_owned(), mistakes: mistakes(Value::Object(many)) };
        let error = error.to_string();
        assert!(error.len() < 3000 && error.ends_with("; and 19980 more"), "{error}");
    }

    #[test]
    fn later_options_win_key_by_key() {
        let map = |value: Value| value.as_object().unwrap().clone();
        let merged = merged(&map(json!({ "a": 1, "b": { "c": 1 } })), &map(json!({ "b": { "d": 2 } })));
        assert_eq!(merged, map(json!({ "a": 1, "b": { "d": 2 } })));
    }

    #[test]
    fn what_is_odd_about_a_schema_is_said() {
        let remarks = |schema: Value| Schema::compile(&schema).unwrap().remarks(&schema);
        assert_eq!(remarks(json!({ "properties": { "n": { "type": "integer", "default": 2 } } })), [""; 0]);
        let bad = remarks(json!({
            "$defs": { "n": { "type": "integer", "default": "two" } },
            "properties": { "n": { "$ref": "#/$defs/n" }, "m": { "minimum": 3, "default": 2 } },
            "required": ["m"],
        }));
        assert_eq!(
            bad,
            [
                "a node that sets no options cannot open it: \"m\" is a required property; this strategy has the options n, m",
                "the default of an option is none of its values: option `n`: \"two\" is not of type \"integer\"",
                "the default of an option is none of its values: option `m`: 2 is less than the minimum of 3",
            ]
        );
        assert_eq!(
            remarks(json!({ "type": "array" })),
            ["a node that sets no options cannot open it: {} is not of type \"array\""]
        );
        assert_eq!(remarks(json!(false)).len(), 1);
    }

    #[test]
    fn faults_of_a_schema_are_told_with_their_place() {
        let fault = |schema: Value| Schema::compile(&schema).unwrap_err();
        let said = fault(json!({ "properties": { "x": { "minLength": -1 } } }));
        assert_eq!(said, "/properties/x/minLength: -1 is less than the minimum of 0");
        let said = fault(json!({ "properties": { "x": { "pattern": "(?=a)b" } } }));
        assert!(said.starts_with("/properties/x/pattern: ") && said.contains("look-around"), "{said}");
    }

    #[test]
    fn a_pattern_that_would_take_much_memory_is_refused() {
        assert!(Schema::compile(&json!({ "pattern": "(a{100}){100}" })).is_err());
        assert!(Schema::compile(&json!({ "pattern": "^[a-z][a-z0-9-]{0,62}$" })).is_ok());
    }

    #[test]
    fn options_of_branches_are_known() {
        let schema = json!({ "oneOf": [
            { "properties": { "a": { "const": 1 } }, "required": ["a"], "additionalProperties": false },
            { "properties": { "b": { "const": 1 } }, "required": ["b"], "additionalProperties": false },
        ] });
        let error = Schema::compile(&schema).unwrap().check(&json!({ "c": 1 }), || "request r".to_owned());
        let error = error.unwrap_err().to_string();
        assert!(error.ends_with("this strategy has the options a, b"), "{error}");
    }

    #[test]
    fn schemas_that_reach_outside_are_refused() {
        assert!(Schema::compile(&json!({ "$ref": "https://example.org/schema.json" })).is_err());
        assert!(Schema::compile(&json!({ "$ref": "file:///etc/passwd" })).is_err());
        assert!(Schema::compile(&json!({ "type": "objekt" })).is_err());
    }
}
