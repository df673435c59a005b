//! Between the API's and the kubelet's forms and the driver's.

use crate::DRIVER_NAME;
use crate::device::{CPU_CAPACITY, PCIE_ROOT};
use crate::driver::{AllocationResult, Claim, ClaimRef, ConfigSource, OpaqueConfig, PodRef, PreparedDevice};
use crate::words::quoted;
use k8s_openapi::api::resource::v1::{
    DeviceAllocationConfiguration, DeviceRequestAllocationResult, ResourceClaim, ResourceSlice,
};

/// The annotation of a claim that was made from a template: the controller of claims writes it.
const POD_CLAIM_NAME: &str = "resource.kubernetes.io/pod-claim-name";

/// The parts of a claim object that the driver reads.
///
/// # Errors
/// One sentence, when the object has a form that the API server does not store.
pub(super) fn claim(object: ResourceClaim) -> Result<Claim, String> {
    let missing = |what: &str| format!("the claim object has no {what}");
    let id = ClaimRef {
        uid: object.metadata.uid.ok_or_else(|| missing("metadata.uid"))?,
        namespace: object.metadata.namespace.ok_or_else(|| missing("metadata.namespace"))?,
        name: object.metadata.name.ok_or_else(|| missing("metadata.name"))?,
    };
    let pod_claim_name = object.metadata.annotations.and_then(|mut all| all.remove(POD_CLAIM_NAME));
    let pod_claim_name = pod_claim_name.map(pod_claim_name_of).transpose()?;
    let status = object.status.unwrap_or_default();
    let pods =
        status.reserved_for.unwrap_or_default().into_iter().filter(|consumer| consumer.resource == "pods");
    let reserved_for = pods.map(|pod| PodRef { uid: pod.uid, name: pod.name }).collect();
    let Some(allocation) = status.allocation else {
        let (config, pcie_root_matches) = (Vec::new(), Vec::new());
        return Ok(Claim { id, pod_claim_name, results: None, config, pcie_root_matches, reserved_for });
    };
    let devices = allocation.devices.unwrap_or_default();
    let results = devices.results.unwrap_or_default().into_iter().map(result).collect();
    let config =
        devices.config.unwrap_or_default().into_iter().filter_map(config).collect::<Result<_, _>>()?;
    let constraints = object.spec.and_then(|spec| spec.devices?.constraints).unwrap_or_default();
    let on_root = constraints.into_iter().filter(|one| one.match_attribute.as_deref() == Some(PCIE_ROOT));
    let pcie_root_matches = on_root.map(|constraint| constraint.requests.unwrap_or_default()).collect();
    Ok(Claim { id, pod_claim_name, results: Some(results), config, pcie_root_matches, reserved_for })
}

/// A name that can stand in a path: what a pod can call a claim is a DNS label.
fn pod_claim_name_of(name: String) -> Result<String, String> {
    let label = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if name.is_empty() || name.len() > 63 || !name.chars().all(label) {
        return Err(format!(
            "the claim's annotation {POD_CLAIM_NAME} is `{}`, which is no name",
            quoted(&name)
        ));
    }
    Ok(name)
}

fn result(result: DeviceRequestAllocationResult) -> AllocationResult {
    AllocationResult {
        request: result.request,
        driver: result.driver,
        pool: result.pool,
        device: result.device,
        share_id: result.share_id,
        admin_access: result.admin_access.unwrap_or(false),
        consumed_cpus: result
            .consumed_capacity
            .and_then(|mut capacity| capacity.remove(CPU_CAPACITY))
            .map(|quantity| quantity.0),
    }
}

/// Parameters for this driver; none for others'.
fn config(entry: DeviceAllocationConfiguration) -> Option<Result<OpaqueConfig, String>> {
    let opaque = entry.opaque.filter(|opaque| opaque.driver == DRIVER_NAME)?;
    let source = match entry.source.as_str() {
        "FromClass" => ConfigSource::Class,
        "FromClaim" => ConfigSource::Claim,
        other => {
            return Some(Err(format!(
                "an entry of the claim's configuration has the unknown source `{other}`"
            )));
        }
    };
    let requests = entry.requests.unwrap_or_default();
    Some(Ok(OpaqueConfig { source, requests, parameters: opaque.parameters.0 }))
}

/// The roots of a device, where the slice has it. The attribute is one text, or a list of them.
pub(super) fn pcie_roots(slice: ResourceSlice, pool: &str, device: &str) -> Vec<String> {
    let devices = slice.spec.devices.filter(|_| slice.spec.pool.name == pool).unwrap_or_default();
    let device = devices.into_iter().find(|found| found.name == device);
    let attribute = device.and_then(|device| device.attributes?.remove(PCIE_ROOT));
    attribute
        .map(|roots| roots.string.into_iter().chain(roots.strings.into_iter().flatten()).collect())
        .unwrap_or_default()
}

/// The request as the kubelet knows it: an allocation result may name `request/subrequest`.
pub(super) fn base_request(device: &PreparedDevice) -> String {
    device.request.split('/').next().unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn convert(object: serde_json::Value) -> Result<Claim, String> {
        claim(serde_json::from_value(object).unwrap())
    }

    #[test]
    fn allocated_claim_has_results_and_own_parameters() {
        let claim = convert(json!({
            "metadata": {"name": "c", "namespace": "n", "uid": "u"},
            "spec": {"devices": {"constraints": [
                {"matchAttribute": "resource.kubernetes.io/pcieRoot", "requests": ["r", "g"]},
                {"matchAttribute": "resource.kubernetes.io/numaNode"},
                {"matchAttribute": "resource.kubernetes.io/pcieRoot"},
            ]}},
            "status": {"reservedFor": [{"resource": "pods", "name": "p", "uid": "pu"},
                                       {"apiGroup": "batch", "resource": "jobs", "name": "j", "uid": "ju"}],
                       "allocation": {"devices": {
                "results": [
                    {"request": "r/s", "driver": "dra.cpu", "pool": "p", "device": "cpudevnuma000",
                     "shareID": "x", "consumedCapacity": {"dra.cpu/cpu": "2", "other/cpu": "7"}},
                    {"request": "g", "driver": "gpu", "pool": "q", "device": "gpu0", "adminAccess": true},
                ],
                "config": [
                    {"source": "FromClass", "requests": [], "opaque": {"driver": "dra.cpu", "parameters": {"a": 1}}},
                    {"source": "FromClaim", "requests": ["g"], "opaque": {"driver": "gpu", "parameters": {}}},
                    {"source": "FromClaim", "requests": ["r/s"], "opaque": {"driver": "dra.cpu", "parameters": {"b": 2}}},
                    {"source": "FromClaim"},
                ],
            }}},
        }))
        .unwrap();
        let ours = AllocationResult {
            request: "r/s".to_owned(),
            driver: "dra.cpu".to_owned(),
            pool: "p".to_owned(),
            device: "cpudevnuma000".to_owned(),
            share_id: Some("x".to_owned()),
            admin_access: false,
            consumed_cpus: Some("2".to_owned()),
        };
        let foreign = AllocationResult {
            request: "g".to_owned(),
            driver: "gpu".to_owned(),
            pool: "q".to_owned(),
            device: "gpu0".to_owned(),
            share_id: None,
            admin_access: true,
            consumed_cpus: None,
        };
        assert_eq!(claim.results, Some(vec![ours, foreign]));
        assert_eq!(claim.pod_claim_name, None);
        assert_eq!(claim.reserved_for, [PodRef { uid: "pu".to_owned(), name: "p".to_owned() }]);
        assert_eq!(claim.pcie_root_matches, [vec!["r".to_owned(), "g".to_owned()], vec![]]);
        let config = |source, requests: &[&str], parameters| OpaqueConfig {
            source,
            requests: requests.iter().map(|&request| request.to_owned()).collect(),
            parameters,
        };
        assert_eq!(
            claim.config,
            [
                config(ConfigSource::Class, &[], json!({"a": 1})),
                config(ConfigSource::Claim, &["r/s"], json!({"b": 2})),
            ]
        );
    }

    #[test]
    fn claim_without_allocation_has_no_results() {
        for status in [json!(null), json!({}), json!({"allocation": null})] {
            let claim = convert(json!({
                "metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": {}, "status": status,
            }));
            assert_eq!(claim.unwrap().results, None);
        }
        let claim = convert(json!({
            "metadata": {"name": "c", "namespace": "n", "uid": "u"}, "spec": {}, "status": {"allocation": {}},
        }));
        assert_eq!(claim.unwrap().results, Some(Vec::new()));
    }

    #[test]
    fn a_claim_from_a_template_has_the_name_that_its_pod_gives_it() {
        let named = |name: &str| {
            convert(json!({
                "metadata": {"name": "c-x7f", "namespace": "n", "uid": "u",
                             "annotations": {"resource.kubernetes.io/pod-claim-name": name}},
                "spec": {},
            }))
        };
        assert_eq!(named("cpus-1").unwrap().pod_claim_name.as_deref(), Some("cpus-1"));
        for strange in ["", "../../etc", "A", &"x".repeat(64)] {
            assert!(named(strange).unwrap_err().contains("pod-claim-name"), "{strange}");
        }
    }

    #[test]
    fn strange_objects_are_refused() {
        let error = convert(json!({"metadata": {"name": "c", "namespace": "n"}, "spec": {}})).unwrap_err();
        assert!(error.contains("metadata.uid"), "{error}");
        let error = convert(json!({
            "metadata": {"name": "c", "namespace": "n", "uid": "u"},
            "spec": {},
            "status": {"allocation": {"devices": {"config": [
                {"source": "FromMoon", "opaque": {"driver": "dra.cpu", "parameters": {}}},
            ]}}},
        }));
        assert!(error.unwrap_err().contains("`FromMoon`"));
    }
}
