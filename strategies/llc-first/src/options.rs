use serde::Deserialize;

/// The options as a node, class or claim sets them. Described for users in `options.schema.json`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Options {
    /// Whether a claim may take more caches than it would take on an idle machine.
    pub align: Align,
    /// What a claim shares with nobody.
    pub isolate: Isolate,
    /// Which kind of cores a claim gets.
    pub kind: Kind,
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

/// What a claim shares with nobody.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolate {
    /// Only its CPUs.
    #[default]
    None,
    /// Its cores: threads that it does not use stay idle.
    Core,
}

/// Which kind of cores.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The fastest that has room for the whole claim, mixed if none has.
    #[default]
    Any,
    /// Performance cores only.
    PCore,
    /// Efficient cores only.
    ECore,
}

impl Kind {
    /// The name of the machine's kind that is demanded.
    pub(crate) fn name(self) -> Option<&'static str> {
        match self {
            Self::Any => None,
            Self::PCore => Some("p-core"),
            Self::ECore => Some("e-core"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schema_names_every_option_and_value() {
        let schema: serde_json::Value = serde_json::from_str(include_str!("../options.schema.json")).unwrap();
        assert_eq!(schema["additionalProperties"], false);
        let properties = schema["properties"].as_object().unwrap();
        assert_eq!(properties.len(), 3);
        let mut values = 0;
        for (name, property) in properties {
            for value in property["enum"].as_array().unwrap() {
                let options = serde_json::json!({name: value});
                let parsed = serde_json::from_value::<Options>(options.clone());
                assert!(parsed.is_ok(), "{options}: {parsed:?}");
                values += 1;
            }
            let default = serde_json::json!({name: property["default"]});
            assert_eq!(serde_json::from_value::<Options>(default).unwrap(), Options::default());
        }
        assert_eq!(values, 7);
        assert!(serde_json::from_str::<Options>(r#"{"alignment":"required"}"#).is_err());
    }
}
