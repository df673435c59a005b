//! A strategy's options: JSON objects, later ones over earlier ones key by key, checked against the
//! strategy's own schema before it sees them.

use crate::words::{listed, plain, quoted, sentence};
use jsonschema::error::ValidationErrorKind;
use serde_json::{Map, Value};

/// Options that do not fit the schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{whose}: {}", listed(mistakes))]
pub struct OptionsError {
    /// Whose options: `options of the node`, `request r`.
    pub whose: String,
    /// Every mistake: the key, the value, what is allowed.
    pub mistakes: Vec<String>,
}

/// The compiled schema.
#[derive(Debug)]
pub struct Schema {
    validator: jsonschema::Validator,
    keys: Vec<String>,
}

impl Schema {
    /// Compiles a schema. References to other documents are refused, patterns run in linear time: the
    /// schema comes from the component.
    ///
    /// # Errors
    /// What is wrong with it, in the words of the validator.
    pub fn compile(schema: &Value) -> Result<Self, String> {
        let validator = jsonschema::options()
            .with_draft(jsonschema::Draft::Draft202012)
            .with_pattern_options(jsonschema::PatternOptions::regex())
            .build(schema)
            .map_err(|error| error.to_string())?;
        let properties = schema.get("properties").and_then(Value::as_object);
        let keys = properties.map(|keys| keys.keys().cloned().collect()).unwrap_or_default();
        Ok(Self { validator, keys })
    }

    /// Holds options against the schema; `whose` they are is said of mistakes.
    ///
    /// # Errors
    /// Every mistake.
    pub fn check(&self, options: &Value, whose: impl FnOnce() -> String) -> Result<(), OptionsError> {
        if self.validator.is_valid(options) {
            return Ok(());
        }
        let (unknown, others): (Vec<_>, Vec<_>) =
            self.validator.iter_errors(options).partition(|error| is_about_keys(error));
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
            false => self.has(),
        };
        let keys = options.as_object().into_iter().flatten().filter(|(key, _)| !self.keys.contains(key));
        keys.map(|(key, value)| {
            format!("`{}` (set to {}) is no option; {known}", quoted(key), quoted(&value.to_string()))
        })
        .collect()
    }

    /// Which options there are. Their names are the component's.
    fn has(&self) -> String {
        format!("this strategy has the options {}", sentence(&plain(&self.keys.join(", "))))
    }

    fn mistake(&self, error: &jsonschema::ValidationError<'_>) -> String {
        let path = error.instance_path().to_string();
        let key = path.trim_start_matches('/');
        // It quotes the whole value.
        let value = error.instance().to_string();
        let error = error.to_string().replace(&value, &quoted(&value));
        let error = sentence(&error);
        match key.is_empty() {
            false => format!("option `{}`: {error}", quoted(key)),
            true if self.keys.is_empty() => format!("{error}; this strategy has no options"),
            true => format!("{error}; {}", self.has()),
        }
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
    fn schemas_that_reach_outside_are_refused() {
        assert!(Schema::compile(&json!({ "$ref": "https://example.org/schema.json" })).is_err());
        assert!(Schema::compile(&json!({ "$ref": "file:///etc/passwd" })).is_err());
        assert!(Schema::compile(&json!({ "type": "objekt" })).is_err());
    }
}
