//! What an API server of some version keeps of a slice: fields of disabled features are dropped without
//! a word. Source: the API types' field comments and `kube_features.go` of Kubernetes 1.34 to 1.37.

use k8s_openapi::api::resource::v1::ResourceSlice;

/// The server's minor version and the feature gates that concern a slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gates {
    /// 34 to 37: decides which fields exist and which limits hold.
    pub minor: u8,
    /// `DRAConsumableCapacity`
    pub consumable_capacity: bool,
    /// `DRAPartitionableDevices`
    pub partitionable_devices: bool,
    /// `DRADeviceTaints`
    pub device_taints: bool,
    /// `DRADeviceBindingConditions`
    pub binding_conditions: bool,
    /// `DRAListTypeAttributes`
    pub list_type_attributes: bool,
    /// `DRANodeAllocatableResources`, in its shape of 1.37
    pub node_allocatable_resources: bool,
    /// `DRAOptionalNodeOperations`
    pub optional_node_operations: bool,
}

impl Gates {
    /// The defaults of Kubernetes 1.`minor`.
    #[must_use]
    pub fn defaults_of(minor: u8) -> Self {
        let beta = minor >= 36;
        Self {
            minor,
            consumable_capacity: beta,
            partitionable_devices: beta,
            device_taints: beta,
            binding_conditions: beta,
            list_type_attributes: false,
            node_allocatable_resources: false,
            optional_node_operations: false,
        }
    }

    /// Drops what is off or unknown to the version. Emptied list attributes stay as attributes without a
    /// value, which validation then refuses: that is what the real server does.
    pub(super) fn drop_disabled(&self, slice: &mut ResourceSlice) {
        let spec = &mut slice.spec;
        if !self.partitionable_devices {
            spec.shared_counters = None;
            spec.per_device_node_selection = None;
        }
        if self.minor < 37 || !self.optional_node_operations {
            spec.skip_node_operations = None;
        }
        if self.minor < 37 || !self.partitionable_devices {
            spec.partition_type_attribute = None;
        }
        for device in spec.devices.iter_mut().flatten() {
            if !self.consumable_capacity {
                device.allow_multiple_allocations = None;
                for capacity in device.capacity.iter_mut().flat_map(|all| all.values_mut()) {
                    capacity.request_policy = None;
                }
            }
            if !self.partitionable_devices {
                device.consumes_counters = None;
                device.node_name = None;
                device.node_selector = None;
                device.all_nodes = None;
            }
            if !self.device_taints {
                device.taints = None;
            }
            if !self.binding_conditions {
                device.binds_to_node = None;
                device.binding_conditions = None;
                device.binding_failure_conditions = None;
            }
            if self.minor < 36 || !self.list_type_attributes {
                for attribute in device.attributes.iter_mut().flat_map(|all| all.values_mut()) {
                    attribute.ints = None;
                    attribute.bools = None;
                    attribute.strings = None;
                    attribute.versions = None;
                }
            }
            if self.minor < 37 || !self.node_allocatable_resources {
                device.node_allocatable_resources = None;
            }
        }
    }
}
