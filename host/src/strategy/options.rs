//! A strategy's options: JSON objects, later ones over earlier ones key by key, checked against the
//! strategy's own schema before it sees them.

use crate::words::{listed, quoted, sentence};
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
pub(crate) struct Schema {
    validator: jsonschema::Validator,
    keys: Vec<String>,
}

impl Schema {
    /// Compiles a schema. References to other documents are refused, patterns run in linear time: the
    /// schema comes from the component.
    pub(crate) fn compile(schema: &Value) -> Result<Self, String> {
        let validator = jsonschema::options()
            .with_draft(jsonschema::Draft::Draft202012)
            .with_pattern_options(jsonschema::PatternOptions::regex())
            .build(schema)
            .map_err(|error| error.to_string())?;
        let properties = schema.get("properties").and_then(Value::as_object);
        let keys = properties.map(|keys| keys.keys().cloned().collect()).unwrap_or_default();
        Ok(Self { validator, keys })
    }

    pub(crate) fn check(&self, options: &Value, whose: impl FnOnce() -> String) -> Result<(), OptionsError> {
        if self.validator.is_valid(options) {
            return Ok(());
        }
        let mistakes = self.validator.iter_errors(options).map(|error| self.mistake(&error)).collect();
        Err(OptionsError { whose: whose(), mistakes })
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
            true => format!("{error}; this strategy has the options {}", self.keys.join(", ")),
        }
    }
}

/// `over` on top of `under`, key by key.
pub(crate) fn merged(under: &Map<String, Value>, over: &Map<String, Value>) -> Map<String, Value> {
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
            [
                "Additional properties are not allowed ('hole' was unexpected); this strategy has the options whole, isolated"
            ]
        );
    }

    #[test]
    fn long_values_and_many_keys_are_not_told_whole() {
        let long = mistakes(json!({ "whole": "x".repeat(1 << 20) }));
        assert!(long[0].len() < 300 && long[0].ends_with("x… is not of type \"boolean\""), "{}", long[0]);
        let many: Map<String, Value> = (0..20_000).map(|n| (format!("key{n}"), json!(1))).collect();
        let [many] = &mistakes(Value::Object(many))[..] else { panic!("one mistake") };
        assert!(
            many.len() < 2000 && many.ends_with("this strategy has the options whole, isolated"),
            "{many}"
        );
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
