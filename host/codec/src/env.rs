//! The variables `DRA_CPUSET_<claim UID>=<CPU list>`. A pod can set them too, so nothing here is believed:
//! it is what a container *says*.

use super::container::Container;
use crate::cdi::{ENV_PREFIX, claim_of_device};
use crate::words::quoted;
use dracpu_cpuset::CpuSet;
use dracpu_ledger::ClaimUid;

/// So much do a container's own variables hold at most: a claim for each of the 8192 CPUs that Linux can have takes
/// less. Reading them takes part of the two seconds that a hook has, and a pod can set any number of them.
const MOST_BYTES: usize = 1 << 19;

/// A variable that is not what this driver writes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvFault {
    /// Malformed.
    #[error(
        "variable `{}` is not a claim's CPU list; names that begin with {ENV_PREFIX} are the driver's, take \
         it out of the pod", quoted(.0)
    )]
    Malformed(String),
    /// The runtime knows better.
    #[error(
        "variable {ENV_PREFIX}{} is set, but the container was not given that claim; take it out of the pod",
        quoted(.0.as_str())
    )]
    NotGiven(ClaimUid),
    /// More than the driver ever writes.
    #[error(
        "variables that begin with {ENV_PREFIX} have {0} bytes, more than {MOST_BYTES} are never the driver's; take \
         them out of the pod"
    )]
    TooLong(usize),
}

/// What a container says it holds: every variable, in order, a claim as often as it is there. All of it, or
/// the first fault.
///
/// `devices_are_told`: the runtime is one that names CDI devices, so that a container without any has none.
///
/// # Errors
/// [`EnvFault`], which names the variable.
pub fn said(container: &Container, devices_are_told: bool) -> Result<Vec<(ClaimUid, CpuSet)>, EnvFault> {
    let own = || container.env.iter().filter(|variable| variable.starts_with(ENV_PREFIX));
    let bytes = own().map(String::len).sum();
    if bytes > MOST_BYTES {
        return Err(EnvFault::TooLong(bytes));
    }
    let mut said = Vec::new();
    for variable in own() {
        let (uid, cpus) = parse(variable).ok_or_else(|| EnvFault::Malformed(variable.clone()))?;
        if devices_are_told && !given(container).any(|given| given == uid) {
            return Err(EnvFault::NotGiven(uid));
        }
        said.push((uid, cpus));
    }
    Ok(said)
}

/// The claims whose CDI devices the runtime says the container was given.
pub fn given(container: &Container) -> impl Iterator<Item = ClaimUid> {
    container.cdi_devices.iter().filter_map(|device| claim_of_device(device))
}

fn parse(variable: &str) -> Option<(ClaimUid, CpuSet)> {
    let (uid, list) = variable.strip_prefix(ENV_PREFIX)?.split_once('=')?;
    let cpus = list.parse().ok().filter(|cpus: &CpuSet| !cpus.is_empty())?;
    (!uid.is_empty()).then(|| (uid.into(), cpus))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn container(env: &[&str], devices: &[&str]) -> Container {
        let strings = |list: &[&str]| list.iter().map(|&text| text.to_owned()).collect();
        Container { env: strings(env), cdi_devices: strings(devices), ..Container::default() }
    }

    #[test]
    fn every_variable_counts_and_others_are_the_users_own() {
        let env = [
            "A=1",
            "DRA_CPUSETS=x",
            "DRA_CPUSET=0-7",
            "DRA_CPUSET_u=2-3",
            "DRA_CPUSET_u=0-7",
            "DRA_CPUSET_v=5",
        ];
        let cpus = |list: &str| list.parse::<CpuSet>().unwrap();
        let expected = [("u".into(), cpus("2-3")), ("u".into(), cpus("0-7")), ("v".into(), cpus("5"))];
        assert_eq!(said(&container(&env, &[]), false), Ok(expected.to_vec()));
    }

    #[test]
    fn what_is_malformed_is_named() {
        for bad in [
            "DRA_CPUSET_",
            "DRA_CPUSET_u",
            "DRA_CPUSET_=1",
            "DRA_CPUSET_u=",
            "DRA_CPUSET_u=2-x",
            "DRA_CPUSET_u=9999",
        ] {
            let fault = said(&container(&["DRA_CPUSET_v=1", bad], &[]), false);
            assert_eq!(fault, Err(EnvFault::Malformed(bad.into())));
        }
    }

    #[test]
    fn a_variable_without_the_device_is_forged_where_the_runtime_tells_devices() {
        let own = container(&["DRA_CPUSET_u=2"], &["dra.k8s.io/cpu=claim-u", "nvidia.com/gpu=0"]);
        assert!(said(&own, true).is_ok());
        let forged = container(&["DRA_CPUSET_u=2"], &["nvidia.com/gpu=0"]);
        assert_eq!(said(&forged, true), Err(EnvFault::NotGiven("u".into())));
        assert!(said(&forged, false).is_ok());
    }

    #[test]
    fn what_is_long_is_not_quoted_whole_and_what_is_too_long_is_not_read() {
        let long = format!("DRA_CPUSET_u={}", "x".repeat(MOST_BYTES / 2));
        let fault = said(&container(&[&long], &[]), false).unwrap_err();
        assert!(fault.to_string().len() < 400, "{fault}");
        let many: Vec<&str> = vec![&long; 2];
        let bytes = 2 * long.len();
        assert_eq!(said(&container(&many, &[]), false), Err(EnvFault::TooLong(bytes)));
        let uid = "u".repeat(MOST_BYTES / 2);
        let fault = said(&container(&[&format!("DRA_CPUSET_{uid}=1")], &[]), true).unwrap_err();
        assert!(fault.to_string().len() < 400, "{fault}");
    }

    proptest! {
        #[test]
        fn no_variable_panics(text in "\\PC{0,30}", value in "[0-9,:/x-]{0,20}") {
            let env = [format!("DRA_CPUSET_{text}"), format!("DRA_CPUSET_u={value}")];
            let _ = said(&container(&[&env[0]], &[&text]), false);
            let _ = said(&container(&[&env[1]], &[]), true);
        }
    }
}
