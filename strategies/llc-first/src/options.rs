use dracpu_strategy_sdk::{Wishes, wish_properties};
use serde::Deserialize;

/// The options as a node, class or claim sets them. The schema describes them for users.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Options {
    /// Whether a claim may take more caches than it would take on an idle machine.
    pub align: Align,
    /// What other strategies take too.
    #[serde(flatten)]
    pub wishes: Wishes,
}

/// Whether more caches than needed are acceptable.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Align {
    /// As few as possible at the moment.
    #[default]
    Preferred,
    /// As few as on an idle machine, or none.
    Required,
}

/// The JSON Schema of [`Options`].
pub(crate) const SCHEMA: &str = concat!(
    r#"{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "Options of the strategy llc-first",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "align": {
      "enum": ["preferred", "required"],
      "default": "preferred",
      "description": "preferred: as few last-level caches as the free CPUs allow. required: as few as an idle machine would allow, else the claim is refused and retried; a claim that fits in one cache then gets one cache or waits."
    },"#,
    wish_properties!(),
    "\n  }\n}\n"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_names_every_option_and_value() {
        let schema: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
        assert_eq!(schema["additionalProperties"], false);
        let properties = schema["properties"].as_object().unwrap();
        assert_eq!(properties.len(), 7);
        for (name, property) in properties {
            for value in property["enum"].as_array().into_iter().flatten() {
                let options = serde_json::json!({name: value});
                let parsed = serde_json::from_value::<Options>(options.clone());
                assert!(parsed.is_ok(), "{options}: {parsed:?}");
            }
            let default = serde_json::json!({name: property["default"]});
            assert_eq!(serde_json::from_value::<Options>(default).unwrap(), Options::default());
        }
        assert!(serde_json::from_str::<Options>(r#"{"alignment":"required"}"#).is_err());
    }
}
