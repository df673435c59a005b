use crate::algorithm::Placement;
use dracpu_strategy_sdk::{Denial, Isolate, Threads, Wishes, deny, wish_properties};
use serde::Deserialize;

/// The options as a node, class or claim sets them: those of the kubelet's CPU manager policy by its names and
/// meaning, and the wishes that strategies share. The schema describes them for users.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Options {
    /// Whole cores only.
    pub full_pcpus_only: bool,
    /// An even split over the fewest NUMA nodes.
    pub distribute_cpus_across_numa: bool,
    /// Threads of different cores.
    pub distribute_cpus_across_cores: bool,
    /// As few L3 caches as possible; when left out, true unless a distribute option is set.
    pub prefer_align_cpus_by_uncorecache: Option<bool>,
    /// Refused: the driver's grouping does this.
    pub align_by_socket: Option<bool>,
    /// Refused: the driver always does this.
    pub strict_cpu_reservation: Option<bool>,
    /// What other strategies take too.
    #[serde(flatten)]
    pub wishes: Wishes,
}

/// The JSON Schema of [`Options`].
pub(crate) const SCHEMA: &str = concat!(
    r#"{
  "$schema": "https://json-schema.org/draft/2020-12/schema",
  "title": "Options of the strategy packed",
  "type": "object",
  "additionalProperties": false,
  "properties": {
    "full-pcpus-only": {
      "type": "boolean",
      "default": false,
      "description": "Whole cores only: a request must be a multiple of the threads per core. In the node's strategyOptions, devices offer whole cores."
    },
    "distribute-cpus-across-numa": {
      "type": "boolean",
      "default": false,
      "description": "Split a request evenly over the fewest NUMA nodes that hold it."
    },
    "distribute-cpus-across-cores": {
      "type": "boolean",
      "default": false,
      "description": "Prefer threads of different cores."
    },
    "prefer-align-cpus-by-uncorecache": {
      "type": "boolean",
      "description": "Keep a request in as few L3 caches as possible, best effort. Default: true, unless a distribute option is set."
    },
    "align-by-socket": {
      "type": "boolean",
      "description": "Refused with an explanation: set groupBy to socket in the driver's configuration instead."
    },
    "strict-cpu-reservation": {
      "type": "boolean",
      "description": "Refused with an explanation: reserved CPUs are always kept from every container."
    },"#,
    wish_properties!(),
    "\n  }\n}\n"
);

/// Options that can be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) full_cores: bool,
    pub(crate) method: Method,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Pack { placement: Placement, prefer_llc: bool },
    DistributeAcrossNuma,
}

impl Options {
    /// What to do. `isolation`: the units that a claim is given, its own wish or the node's.
    ///
    /// # Errors
    /// Invalid, for combinations that the kubelet refuses too, for those that contradict each other, and for
    /// options that are not for a strategy.
    pub(crate) fn plan(&self, isolation: Isolate) -> Result<Plan, Denial> {
        if self.align_by_socket.is_some() {
            return Err(deny!(
                Invalid,
                "option align-by-socket is not for this strategy: a claim stays within its device, so set groupBy: \
                 socket in the driver's configuration and leave the option out"
            ));
        }
        if self.strict_cpu_reservation.is_some() {
            return Err(deny!(
                Invalid,
                "option strict-cpu-reservation is not for this strategy: the driver always keeps reserved CPUs from \
                 claims and from shared containers; leave the option out"
            ));
        }
        let prefer_llc = self.prefer_align_cpus_by_uncorecache;
        let set = [
            ("distribute-cpus-across-cores", self.distribute_cpus_across_cores),
            ("distribute-cpus-across-numa", self.distribute_cpus_across_numa),
            ("prefer-align-cpus-by-uncorecache", prefer_llc == Some(true)),
        ];
        let mut set = set.into_iter().filter(|(_, set)| *set).map(|(name, _)| name);
        let first = set.next();
        // Of those three at most one, and whole cores exclude a spread over cores.
        let clash = set.next().or_else(|| {
            (self.full_pcpus_only && self.distribute_cpus_across_cores).then_some("full-pcpus-only")
        });
        if let (Some(first), Some(second)) = (first, clash) {
            return Err(deny!(
                Invalid,
                "options {first} and {second} cannot be combined, as in the kubelet; set one of them to false"
            ));
        }
        self.check_units(isolation)?;
        let method = if self.distribute_cpus_across_numa {
            Method::DistributeAcrossNuma
        } else if self.distribute_cpus_across_cores {
            Method::Pack { placement: Placement::Spread, prefer_llc: false }
        } else {
            Method::Pack { placement: Placement::Packed, prefer_llc: prefer_llc.unwrap_or(true) }
        };
        Ok(Plan { full_cores: self.full_pcpus_only, method })
    }

    /// Options that spread a claim over what `isolation` and `threads` keep together.
    fn check_units(&self, isolation: Isolate) -> Result<(), Denial> {
        let clashes = [
            (
                self.full_pcpus_only && self.wishes.threads == Threads::One,
                "full-pcpus-only",
                "threads: one",
                "one is whole cores, the other a thread of each",
            ),
            (
                self.distribute_cpus_across_cores && isolation != Isolate::None,
                "distribute-cpus-across-cores",
                if isolation == Isolate::Cache { "isolate: cache" } else { "isolate: core" },
                "a claim would keep idle as many CPUs as it uses; threads: one gives one thread of each core",
            ),
            (
                self.distribute_cpus_across_numa && isolation == Isolate::Cache,
                "distribute-cpus-across-numa",
                "isolate: cache",
                "a claim gets as few whole caches as hold it, wherever they are",
            ),
        ];
        match clashes.into_iter().find(|(clash, ..)| *clash) {
            None => Ok(()),
            Some((_, first, second, why)) => Err(deny!(
                Invalid,
                "options {first} and {second} cannot be combined: {why}; leave one of them out"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dracpu_strategy_sdk::Reason;

    fn plan(json: &str) -> Result<Plan, Denial> {
        let options = serde_json::from_str::<Options>(json).unwrap();
        options.plan(options.wishes.isolate)
    }

    #[test]
    fn caches_are_preferred_unless_a_distribute_option_is_set() {
        let packed = |prefer_llc| Method::Pack { placement: Placement::Packed, prefer_llc };
        let spread = Method::Pack { placement: Placement::Spread, prefer_llc: false };
        let cases = [
            ("{}", packed(true)),
            (r#"{"prefer-align-cpus-by-uncorecache":false}"#, packed(false)),
            (r#"{"full-pcpus-only":true}"#, packed(true)),
            (r#"{"distribute-cpus-across-cores":true}"#, spread),
            (r#"{"distribute-cpus-across-numa":true}"#, Method::DistributeAcrossNuma),
            (
                r#"{"distribute-cpus-across-numa":true,"prefer-align-cpus-by-uncorecache":false,"full-pcpus-only":true}"#,
                Method::DistributeAcrossNuma,
            ),
        ];
        for (json, method) in cases {
            assert_eq!(plan(json).unwrap().method, method, "{json}");
        }
    }

    #[test]
    fn combinations_that_the_kubelet_refuses_are_refused_by_name() {
        let cases = [
            ("distribute-cpus-across-cores", "full-pcpus-only"),
            ("distribute-cpus-across-cores", "distribute-cpus-across-numa"),
            ("distribute-cpus-across-cores", "prefer-align-cpus-by-uncorecache"),
            ("distribute-cpus-across-numa", "prefer-align-cpus-by-uncorecache"),
        ];
        for (first, second) in cases {
            let denial = plan(&format!(r#"{{"{first}":true,"{second}":true}}"#)).unwrap_err();
            assert_eq!(denial.reason, Reason::Invalid);
            assert!(denial.message.contains(first) && denial.message.contains(second), "{}", denial.message);
            assert!(plan(&format!(r#"{{"{first}":true,"{second}":false}}"#)).is_ok());
        }
    }

    #[test]
    fn options_that_contradict_each_other_are_refused_by_name() {
        let cases = [
            (r#""full-pcpus-only":true"#, r#""threads":"one""#),
            (r#""distribute-cpus-across-cores":true"#, r#""isolate":"core""#),
            (r#""distribute-cpus-across-cores":true"#, r#""isolate":"cache""#),
            (r#""distribute-cpus-across-numa":true"#, r#""isolate":"cache""#),
        ];
        for (first, second) in cases {
            let denial = plan(&format!("{{{first},{second}}}")).unwrap_err();
            assert_eq!(denial.reason, Reason::Invalid);
            for option in [first, second] {
                let option = option.replace(":true", "").replace('"', "").replace(':', ": ");
                assert!(denial.message.contains(&option), "{}", denial.message);
            }
        }
        for fine in [
            r#"{"full-pcpus-only":true,"isolate":"cache"}"#,
            r#"{"distribute-cpus-across-cores":true,"threads":"one"}"#,
            r#"{"distribute-cpus-across-numa":true,"isolate":"core"}"#,
        ] {
            assert!(plan(fine).is_ok(), "{fine}");
        }
    }

    #[test]
    fn options_that_the_driver_answers_for_are_explained() {
        let message = |json| plan(json).unwrap_err().message;
        assert!(message(r#"{"align-by-socket":true}"#).contains("groupBy: socket"));
        assert!(message(r#"{"strict-cpu-reservation":true}"#).contains("always keeps reserved CPUs"));
    }

    #[test]
    fn the_schema_names_every_option() {
        let schema: serde_json::Value = serde_json::from_str(SCHEMA).unwrap();
        let mut all = serde_json::Map::new();
        for (name, property) in schema["properties"].as_object().unwrap() {
            let default = property.get("default").cloned();
            let value = default.unwrap_or(serde_json::Value::Bool(true));
            all.insert(name.clone(), value);
        }
        assert_eq!(all.len(), 12);
        assert!(serde_json::from_value::<Options>(all.into()).is_ok());
        assert!(serde_json::from_str::<Options>(r#"{"full-pcpu-only":true}"#).is_err());
    }
}
