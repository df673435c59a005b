//! Devices → the specs of the slices that publish them. Rules and limits: `resource.k8s.io/v1`.

use crate::DRIVER_NAME;
use crate::config::Config;
use crate::device::{Attribute, CPU_CAPACITY, Capacity, Device};
use k8s_openapi::api::resource::v1 as api;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use std::collections::BTreeMap;

/// Most devices of a slice, and that where a device of the pool has a list among its attributes.
const DEVICES: usize = 128;
const DEVICES_WITH_LISTS: usize = 64;

/// The node's pool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pool {
    /// The node's name, which is the pool's too.
    pub node_name: String,
    /// Whether devices say how much of the node's allocatable `cpu` they stand for.
    pub map_node_allocatable: bool,
}

impl From<&Config> for Pool {
    fn from(config: &Config) -> Self {
        Self {
            node_name: config.node_name.clone(),
            map_node_allocatable: config.publish_node_allocatable_resource_mapping,
        }
    }
}

impl Pool {
    /// The specs of the pool's slices, at generation 1, in the order in which the scheduler shall look at
    /// them. A pool without devices is one empty slice: none at all would mean that it is not known.
    #[must_use]
    pub fn desired(&self, devices: &[Device]) -> Vec<api::ResourceSliceSpec> {
        let has_list = |device: &Device| device.attributes.values().any(|a| matches!(a, Attribute::Texts(_)));
        let limit = if devices.iter().any(has_list) { DEVICES_WITH_LISTS } else { DEVICES };
        let chunks: Vec<&[Device]> = match devices {
            [] => vec![&[]],
            devices => devices.chunks(limit).collect(),
        };
        let count = i64::try_from(chunks.len()).expect("there are at most 8192 devices");
        let slice = |chunk: &&[Device]| api::ResourceSliceSpec {
            driver: DRIVER_NAME.to_owned(),
            node_name: Some(self.node_name.clone()),
            pool: api::ResourcePool {
                name: self.node_name.clone(),
                generation: 1,
                resource_slice_count: count,
            },
            devices: Some(chunk.iter().map(|device| self.device(device)).collect()),
            ..Default::default()
        };
        chunks.iter().map(slice).collect()
    }

    fn device(&self, device: &Device) -> api::Device {
        let attributes = device.attributes.iter().map(|(name, value)| (name.clone(), attribute(value)));
        api::Device {
            name: device.name.clone(),
            attributes: Some(attributes.collect()),
            capacity: device.capacity.map(|of| BTreeMap::from([(CPU_CAPACITY.to_owned(), capacity(of))])),
            allow_multiple_allocations: device.capacity.map(|_| true),
            node_allocatable_resources: self.map_node_allocatable.then(|| {
                let one = Some(quantity(1));
                let mapping = match device.capacity {
                    Some(_) => api::NodeAllocatableMapping {
                        capacity_key: Some(CPU_CAPACITY.to_owned()),
                        capacity_multiplier: one,
                        ..Default::default()
                    },
                    None => api::NodeAllocatableMapping { device_multiplier: one, ..Default::default() },
                };
                let resource = api::NodeAllocatableResource { mapping: Some(mapping), ..Default::default() };
                BTreeMap::from([("cpu".to_owned(), resource)])
            }),
            ..Default::default()
        }
    }
}

/// What the API server makes the name of a slice from: the place in the pool first, since the allocator
/// looks at slices in the order of their names; then the driver and the node. The names are those of the
/// Kubernetes helper library for drivers, so that a change of driver does not rebuild the pool.
#[must_use]
pub fn generate_name(index: usize, node_name: &str) -> String {
    format!("{index:05x}-{DRIVER_NAME}-{node_name}-")
}

fn attribute(value: &Attribute) -> api::DeviceAttribute {
    let mut attribute = api::DeviceAttribute::default();
    match value {
        Attribute::Int(value) => attribute.int = Some(*value),
        Attribute::Bool(value) => attribute.bool = Some(*value),
        Attribute::Text(value) => attribute.string = Some(value.clone()),
        Attribute::Version(value) => attribute.version = Some(value.clone()),
        Attribute::Texts(values) => attribute.strings = Some(values.clone()),
    }
    attribute
}

fn capacity(Capacity { cpus, step, .. }: Capacity) -> api::DeviceCapacity {
    let policy = (step > 1).then(|| {
        let policy = api::CapacityRequestPolicy { default: Some(quantity(step)), ..Default::default() };
        // A range must have room for one step above its start.
        if cpus >= step.saturating_mul(2) {
            let range = api::CapacityRequestPolicyRange {
                min: quantity(step),
                step: Some(quantity(step)),
                max: None,
            };
            api::CapacityRequestPolicy { valid_range: Some(range), ..policy }
        } else {
            api::CapacityRequestPolicy { valid_values: Some(vec![quantity(step)]), ..policy }
        }
    });
    api::DeviceCapacity { value: quantity(cpus), request_policy: policy }
}

/// In the canonical form, as the API server stores it: what is read back is compared as text.
fn quantity(number: u32) -> Quantity {
    Quantity(match (number, number % 1000) {
        (1.., 0) => format!("{}k", number / 1000),
        _ => number.to_string(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn devices(count: usize, capacity: Option<Capacity>, attribute: &Attribute) -> Vec<Device> {
        let device = |i| Device {
            name: format!("d{i}"),
            cpus: [0].into(),
            attributes: [("dra.cpu/a".to_owned(), attribute.clone())].into(),
            capacity,
        };
        (0..count).map(device).collect()
    }

    fn pool(map_node_allocatable: bool) -> Pool {
        Pool { node_name: "n".to_owned(), map_node_allocatable }
    }

    fn first_device(map_node_allocatable: bool, capacity: Option<Capacity>) -> Value {
        let slices = pool(map_node_allocatable).desired(&devices(1, capacity, &Attribute::Int(7)));
        serde_json::to_value(&slices[0].devices.as_ref().unwrap()[0]).unwrap()
    }

    #[test]
    fn a_pool_fills_slices_to_the_limit_in_device_order() {
        let sizes = |count, attribute: &Attribute| {
            let slices = pool(false).desired(&devices(count, None, attribute));
            let total = slices.len() as i64;
            assert!(slices.iter().all(|slice| slice.pool.resource_slice_count == total));
            let names =
                slices.iter().flat_map(|s| s.devices.as_ref().unwrap().iter().map(|d| d.name.clone()));
            assert!(names.eq((0..count).map(|i| format!("d{i}"))));
            slices.iter().map(|slice| slice.devices.as_ref().unwrap().len()).collect::<Vec<_>>()
        };
        assert_eq!(sizes(300, &Attribute::Int(1)), [128, 128, 44]);
        assert_eq!(sizes(128, &Attribute::Int(1)), [128]);
        assert_eq!(sizes(65, &Attribute::Texts(vec!["a".to_owned()])), [64, 1]);
        assert_eq!(sizes(0, &Attribute::Int(1)), [0], "an empty pool is one slice without devices");
    }

    #[test]
    fn a_grouped_device_is_shared_by_claims_and_a_single_cpu_is_not() {
        assert_eq!(
            first_device(false, Some(Capacity { cpus: 8, step: 1, kept: 0 })),
            json!({
                "name": "d0", "attributes": {"dra.cpu/a": {"int": 7}}, "allowMultipleAllocations": true,
                "capacity": {"dra.cpu/cpu": {"value": "8"}}
            })
        );
        assert_eq!(first_device(false, None), json!({"name": "d0", "attributes": {"dra.cpu/a": {"int": 7}}}));
    }

    #[test]
    fn a_step_becomes_a_request_policy_that_the_api_takes() {
        let capacity = |cpus, step| {
            first_device(false, Some(Capacity { cpus, step, kept: 0 }))["capacity"]["dra.cpu/cpu"].clone()
        };
        assert_eq!(
            capacity(7, 2),
            json!({"value": "7", "requestPolicy": {"default": "2", "validRange": {"min": "2", "step": "2"}}})
        );
        assert_eq!(
            capacity(3, 2),
            json!({"value": "3", "requestPolicy": {"default": "2", "validValues": ["2"]}}),
            "a range from 2 has no room for a step of 2"
        );
    }

    #[test]
    fn quantities_are_in_the_form_that_the_server_stores() {
        for (number, text) in [(0, "0"), (8, "8"), (1000, "1k"), (8000, "8k"), (1024, "1024"), (1500, "1500")]
        {
            assert_eq!(quantity(number).0, text);
        }
    }

    #[test]
    fn the_mapping_to_node_resources_is_there_when_asked_for() {
        assert_eq!(
            first_device(true, Some(Capacity { cpus: 8, step: 1, kept: 0 }))["nodeAllocatableResources"],
            json!({"cpu": {"mapping": {"capacityKey": "dra.cpu/cpu", "capacityMultiplier": "1"}}})
        );
        assert_eq!(
            first_device(true, None)["nodeAllocatableResources"],
            json!({"cpu": {"mapping": {"deviceMultiplier": "1"}}})
        );
    }

    #[test]
    fn names_begin_with_the_place_in_the_pool() {
        assert_eq!(generate_name(0, "node-1"), "00000-dra.cpu-node-1-");
        assert_eq!(generate_name(18, "n"), "00012-dra.cpu-n-");
    }
}
