use crate::algorithm::Placement;
use dracpu_strategy_sdk::{CpuSet, Denial, deny};
use serde::Deserialize;

/// The options as a node, class or claim sets them: names and meaning are those of the kubelet's CPU
/// manager policy options, `isolated` aside. Described for users in `options.schema.json`.
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
    /// What becomes of isolated CPUs.
    pub isolated: Isolated,
}

/// What becomes of CPUs that the kernel isolates.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Isolated {
    /// They are not given out.
    #[default]
    Exclude,
    /// They are given out like others.
    Include,
    /// Only they are given out.
    Only,
}

impl Isolated {
    /// What may be given out of these CPUs.
    pub(crate) fn eligible(self, cpus: &CpuSet, isolated: &CpuSet) -> CpuSet {
        match self {
            Self::Exclude => cpus.difference(isolated),
            Self::Include => cpus.clone(),
            Self::Only => cpus.intersection(isolated),
        }
    }
}

/// Options that can be followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) full_cores: bool,
    pub(crate) method: Method,
    pub(crate) isolated: Isolated,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Method {
    Pack { placement: Placement, prefer_llc: bool },
    DistributeAcrossNuma,
}

impl Options {
    /// # Errors
    /// Invalid, for combinations that the kubelet refuses too, and for options that are not for a strategy.
    pub(crate) fn plan(&self) -> Result<Plan, Denial> {
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
        let method = if self.distribute_cpus_across_numa {
            Method::DistributeAcrossNuma
        } else if self.distribute_cpus_across_cores {
            Method::Pack { placement: Placement::Spread, prefer_llc: false }
        } else {
            Method::Pack { placement: Placement::Packed, prefer_llc: prefer_llc.unwrap_or(true) }
        };
        Ok(Plan { full_cores: self.full_pcpus_only, method, isolated: self.isolated })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dracpu_strategy_sdk::Reason;

    fn plan(json: &str) -> Result<Plan, Denial> {
        serde_json::from_str::<Options>(json).unwrap().plan()
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
    fn options_that_the_driver_answers_for_are_explained() {
        let message = |json| plan(json).unwrap_err().message;
        assert!(message(r#"{"align-by-socket":true}"#).contains("groupBy: socket"));
        assert!(message(r#"{"strict-cpu-reservation":true}"#).contains("always keeps reserved CPUs"));
    }

    #[test]
    fn the_schema_names_every_option() {
        let schema: serde_json::Value = serde_json::from_str(include_str!("../options.schema.json")).unwrap();
        let mut all = serde_json::Map::new();
        for (name, property) in schema["properties"].as_object().unwrap() {
            let value = property["enum"].get(0).cloned().unwrap_or(serde_json::Value::Bool(true));
            all.insert(name.clone(), value);
        }
        assert_eq!(all.len(), 7);
        assert!(serde_json::from_value::<Options>(all.into()).is_ok());
        assert!(serde_json::from_str::<Options>(r#"{"full-pcpu-only":true}"#).is_err());
    }
}
