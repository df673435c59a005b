//! What makes the API server refuse a ResourceSlice (422), and what may not change.
//! Source: the field comments of `k8s.io/api/resource/v1` and the validation of Kubernetes 1.34 to 1.37.

use super::gates::Gates;
use super::quantity::Quantity;
use super::status::FieldError;
use k8s_openapi::api::resource::v1::{
    CapacityRequestPolicy, Device, DeviceAttribute, DeviceCapacity, NodeAllocatableResource, ResourceSlice,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as Text;
use std::collections::BTreeSet;

const STRING_BYTES: usize = 64;
const NAMES_PER_DEVICE: usize = 32;
const VALUES_PER_DEVICE: usize = 48;

/// Collects faults; the path is that of the present field.
struct Faults(Vec<FieldError>);

impl Faults {
    fn add(&mut self, field: impl Into<String>, reason: &'static str, message: impl Into<String>) {
        self.0.push(FieldError { field: field.into(), reason, message: message.into() });
    }

    fn required(&mut self, field: &str, message: &str) {
        self.add(field, "FieldValueRequired", format!("Required value: {message}"));
    }

    fn invalid(&mut self, field: &str, value: &str, message: &str) {
        self.add(field, "FieldValueInvalid", format!("Invalid value: \"{value}\": {message}"));
    }

    fn too_long(&mut self, field: &str, limit: usize) {
        self.add(field, "FieldValueTooLong", format!("Too long: may not be more than {limit} bytes"));
    }

    fn too_many(&mut self, field: &str, count: usize, limit: usize) {
        let message = format!("Too many: {count}: must have at most {limit} items");
        self.add(field, "FieldValueTooMany", message);
    }

    fn dns_subdomain(&mut self, field: &str, value: &str, limit: usize) {
        if value.is_empty() {
            self.required(field, "");
        } else if value.len() > limit {
            self.too_long(field, limit);
        } else if !value.split('.').all(is_dns_word) {
            let rule = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character";
            self.invalid(field, value, rule);
        }
    }
}

pub(super) fn is_dns_word(word: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !word.is_empty() && word.bytes().all(inner) && !word.starts_with('-') && !word.ends_with('-')
}

fn is_c_identifier(word: &str) -> bool {
    word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && word.bytes().next().is_some_and(|b| !b.is_ascii_digit())
}

/// All faults of a slice, in the order of its fields.
pub(super) fn faults(slice: &ResourceSlice, gates: &Gates) -> Vec<FieldError> {
    let mut faults = Faults(Vec::new());
    let spec = &slice.spec;
    let stem = slice.metadata.generate_name.as_deref().unwrap_or("");
    let name = slice.metadata.name.as_deref().unwrap_or(stem);
    if slice.metadata.name.is_none() && !stem.is_empty() {
        // a stem may end in '-' or '.', as a suffix follows
        faults.dns_subdomain("metadata.generateName", &format!("{stem}x"), 253);
    } else {
        faults.dns_subdomain("metadata.name", name, 253);
    }
    for (n, owner) in slice.metadata.owner_references.iter().flatten().enumerate() {
        for (field, value) in [
            ("apiVersion", &owner.api_version),
            ("kind", &owner.kind),
            ("name", &owner.name),
            ("uid", &owner.uid),
        ] {
            if value.is_empty() {
                faults.required(&format!("metadata.ownerReferences[{n}].{field}"), "must not be empty");
            }
        }
    }
    faults.dns_subdomain("spec.driver", &spec.driver, 63);
    pool(&mut faults, slice);
    let per_device = spec.per_device_node_selection == Some(true);
    let selectors =
        [spec.node_name.is_some(), spec.node_selector.is_some(), spec.all_nodes == Some(true), per_device];
    if selectors.iter().filter(|set| **set).count() != 1 {
        faults.required(
            "spec",
            "exactly one of `nodeName`, `nodeSelector`, `allNodes`, `perDeviceNodeSelection` is required",
        );
    }
    if let Some(node) = &spec.node_name {
        faults.dns_subdomain("spec.nodeName", node, 253);
    }
    let list = spec.devices.as_deref().unwrap_or_default();
    if gates.minor >= 35 && !list.is_empty() && spec.shared_counters.as_ref().is_some_and(|c| !c.is_empty()) {
        faults.invalid("spec", "", "a slice has either devices or shared counters");
    }
    let limit = if list.iter().any(|device| narrows(device, gates)) { 64 } else { 128 };
    if list.len() > limit {
        faults.too_many("spec.devices", list.len(), limit);
    }
    let mut names = BTreeSet::new();
    for (n, one) in list.iter().enumerate() {
        let path = format!("spec.devices[{n}]");
        if !names.insert(&one.name) {
            faults.add(
                format!("{path}.name"),
                "FieldValueDuplicate",
                format!("Duplicate value: \"{}\"", one.name),
            );
        }
        device(&mut faults, &path, one, gates);
        if !per_device && (one.node_name.is_some() || one.node_selector.is_some() || one.all_nodes.is_some())
        {
            faults.invalid(&path, "", "only with `perDeviceNodeSelection`");
        }
    }
    faults.0
}

/// Fields that may not differ from the stored object's.
pub(super) fn immutable(old: &ResourceSlice, new: &ResourceSlice) -> Vec<FieldError> {
    let mut faults = Faults(Vec::new());
    for (field, same) in [
        ("spec.driver", old.spec.driver == new.spec.driver),
        ("spec.pool.name", old.spec.pool.name == new.spec.pool.name),
        ("spec.nodeName", old.spec.node_name == new.spec.node_name),
    ] {
        if !same {
            faults.invalid(field, "", "field is immutable");
        }
    }
    faults.0
}

fn pool(faults: &mut Faults, slice: &ResourceSlice) {
    let pool = &slice.spec.pool;
    if pool.name.is_empty() {
        faults.required("spec.pool.name", "");
    } else if pool.name.len() > 253 {
        faults.too_long("spec.pool.name", 253);
    } else {
        for part in pool.name.split('/') {
            faults.dns_subdomain("spec.pool.name", part, 253);
        }
    }
    if pool.generation < 0 {
        let generation = pool.generation.to_string();
        faults.invalid("spec.pool.generation", &generation, "must be greater than or equal to 0");
    }
    if pool.resource_slice_count <= 0 {
        let count = pool.resource_slice_count.to_string();
        faults.invalid("spec.pool.resourceSliceCount", &count, "must be greater than 0");
    }
}

/// Whether a device makes the limit of its slice 64.
fn narrows(device: &Device, gates: &Gates) -> bool {
    let filled = |len: Option<usize>| len.is_some_and(|len| len > 0);
    let counted = filled(device.taints.as_ref().map(Vec::len))
        || filled(device.consumes_counters.as_ref().map(Vec::len));
    let lists =
        device.attributes.iter().flat_map(|all| all.values()).any(|attribute| list_len(attribute).is_some());
    (gates.minor >= 35 && counted) || (gates.minor >= 36 && lists)
}

fn list_len(attribute: &DeviceAttribute) -> Option<usize> {
    let ints = attribute.ints.as_ref().map(Vec::len);
    let bools = attribute.bools.as_ref().map(Vec::len);
    let strings = attribute.strings.as_ref().map(Vec::len);
    ints.or(bools).or(strings).or(attribute.versions.as_ref().map(Vec::len))
}

fn device(faults: &mut Faults, path: &str, device: &Device, gates: &Gates) {
    if device.name.len() > 63 {
        faults.too_long(&format!("{path}.name"), 63);
    } else if !is_dns_word(&device.name) {
        let rule = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character";
        faults.invalid(&format!("{path}.name"), &device.name, rule);
    }
    let attributes: Vec<_> = device.attributes.iter().flatten().collect();
    let capacities: Vec<_> = device.capacity.iter().flatten().collect();
    let names = attributes.len() + capacities.len();
    if names > NAMES_PER_DEVICE {
        let message = format!(
            "Invalid value: {names}: the total number of attributes and capacities must not exceed {NAMES_PER_DEVICE}"
        );
        faults.add(path, "FieldValueInvalid", message);
    }
    let values: usize = attributes.iter().map(|(_, attribute)| list_len(attribute).unwrap_or(1)).sum();
    if gates.minor >= 36 && values > VALUES_PER_DEVICE {
        faults.too_many(&format!("{path}.attributes"), values, VALUES_PER_DEVICE);
    }
    for (name, value) in attributes {
        let path = format!("{path}.attributes[{name}]");
        qualified_name(faults, &path, name);
        attribute(faults, &path, value);
    }
    let shared = device.allow_multiple_allocations == Some(true);
    for (name, value) in capacities {
        let path = format!("{path}.capacity[{name}]");
        qualified_name(faults, &path, name);
        capacity(faults, &path, value, shared);
    }
    for (key, value) in device.node_allocatable_resources.iter().flatten() {
        node_resource(faults, &format!("{path}.nodeAllocatableResources[{key}]"), key, value);
    }
    for (field, list) in [
        ("bindingConditions", &device.binding_conditions),
        ("bindingFailureConditions", &device.binding_failure_conditions),
    ] {
        let count = list.as_ref().map_or(0, Vec::len);
        if count > 4 {
            faults.too_many(&format!("{path}.{field}"), count, 4);
        }
    }
    let (taints, limit) =
        (device.taints.as_ref().map_or(0, Vec::len), if gates.minor >= 35 { 16 } else { 4 });
    if taints > limit {
        faults.too_many(&format!("{path}.taints"), taints, limit);
    }
}

/// `[<domain>/]<identifier>`
fn qualified_name(faults: &mut Faults, path: &str, name: &str) {
    let (domain, identifier) = match name.split_once('/') {
        Some((domain, identifier)) => (Some(domain), identifier),
        None => (None, name),
    };
    if let Some(domain) = domain {
        faults.dns_subdomain(path, domain, 63);
    }
    if identifier.len() > 32 {
        faults.too_long(path, 32);
    } else if !is_c_identifier(identifier) {
        faults.invalid(path, identifier, "must be a C identifier");
    }
}

fn attribute(faults: &mut Faults, path: &str, value: &DeviceAttribute) {
    let scalars =
        [value.int.is_some(), value.bool.is_some(), value.string.is_some(), value.version.is_some()];
    let lists =
        [value.ints.is_some(), value.bools.is_some(), value.strings.is_some(), value.versions.is_some()];
    match scalars.iter().chain(&lists).filter(|set| **set).count() {
        0 => faults.required(path, "exactly one value must be specified"),
        1 => {}
        _ => faults.invalid(path, "", "exactly one value must be specified"),
    }
    if list_len(value) == Some(0) {
        faults.required(path, "a list must have at least one item");
    }
    for text in value.string.iter().chain(value.strings.iter().flatten()) {
        if text.len() > STRING_BYTES {
            faults.too_long(&format!("{path}.string"), STRING_BYTES);
        }
    }
    for text in value.version.iter().chain(value.versions.iter().flatten()) {
        if text.len() > STRING_BYTES {
            faults.too_long(&format!("{path}.version"), STRING_BYTES);
        } else if !is_semver(text) {
            faults.invalid(
                &format!("{path}.version"),
                text,
                "must be a string compatible with semver.org spec 2.0.0",
            );
        }
    }
}

fn is_semver(text: &str) -> bool {
    let core = text.split(['-', '+']).next().unwrap_or("");
    let parts: Vec<_> = core.split('.').collect();
    let number = |part: &&str| {
        !part.is_empty()
            && part.bytes().all(|b| b.is_ascii_digit())
            && (part.len() == 1 || !part.starts_with('0'))
    };
    parts.len() == 3 && parts.iter().all(number)
}

fn quantity(faults: &mut Faults, path: &str, text: &Text) -> Option<i128> {
    let parsed = Quantity::parse(&text.0);
    if parsed.is_none() {
        faults.invalid(path, &text.0, "quantities must match the regular expression of a quantity");
    }
    parsed.map(|quantity| quantity.nanos)
}

fn capacity(faults: &mut Faults, path: &str, capacity: &DeviceCapacity, shared: bool) {
    let value = quantity(faults, &format!("{path}.value"), &capacity.value);
    let Some(policy) = &capacity.request_policy else { return };
    let path = format!("{path}.requestPolicy");
    if !shared {
        let message = "Forbidden: must not be specified when allowMultipleAllocations is not true";
        faults.add(&path, "FieldValueForbidden", message);
    }
    if let Some(value) = value {
        request_policy(faults, &path, policy, value);
    }
}

fn request_policy(faults: &mut Faults, path: &str, policy: &CapacityRequestPolicy, capacity: i128) {
    let field = |name: &str| format!("{path}.{name}");
    let default = policy.default.as_ref().and_then(|text| quantity(faults, &field("default"), text));
    let values = policy.valid_values.as_deref().unwrap_or_default();
    if (!values.is_empty() || policy.valid_range.is_some()) && policy.default.is_none() {
        faults.required(&field("default"), "required when validValues or validRange is defined");
    }
    if !values.is_empty() && policy.valid_range.is_some() {
        faults.invalid(
            path,
            "",
            "exactly one policy can be specified, cannot specify validValues and validRange",
        );
    }
    if values.len() > 10 {
        faults.too_many(&field("validValues"), values.len(), 10);
    }
    let numbers: Vec<_> =
        values.iter().filter_map(|text| quantity(faults, &field("validValues"), text)).collect();
    if !numbers.is_sorted() {
        faults.invalid(&field("validValues"), "", "values must be sorted in ascending order");
    }
    if let Some(default) = default
        && !numbers.is_empty()
        && !numbers.contains(&default)
    {
        faults.invalid(&field("validValues"), "", "default value is not valid");
    }
    let Some(range) = &policy.valid_range else { return };
    let min = quantity(faults, &field("validRange.min"), &range.min).unwrap_or(0);
    let max = range.max.as_ref().and_then(|text| quantity(faults, &field("validRange.max"), text));
    let step = range.step.as_ref().and_then(|text| quantity(faults, &field("validRange.step"), text));
    if min > capacity {
        faults.invalid(&field("validRange.min"), &range.min.0, "min is larger than capacity value");
    }
    if let Some(max) = max
        && (max < min || max > capacity)
    {
        faults.invalid(&field("validRange.max"), "", "max must lie between min and the capacity value");
    }
    if let Some(default) = default
        && (default < min || max.is_some_and(|max| default > max))
    {
        faults.invalid(&field("default"), "", "default must lie between min and max");
    }
    match step {
        Some(step) if step <= 0 => faults.invalid(&field("validRange.step"), "", "must be positive"),
        Some(step) => {
            if min + step > capacity {
                faults.invalid(
                    &field("validRange.step"),
                    "",
                    "one step over min is larger than the capacity value",
                );
            }
            for (name, value) in [("default", default), ("validRange.max", max)] {
                if value.is_some_and(|value| (value - min) % step != 0) {
                    faults.invalid(&field(name), "", "must be a multiple of step above min");
                }
            }
        }
        None => {}
    }
}

fn node_resource(faults: &mut Faults, path: &str, key: &str, resource: &NodeAllocatableResource) {
    let native = ["cpu", "memory", "ephemeral-storage", "pods"];
    if !native.contains(&key) && !key.starts_with("hugepages-") {
        faults.invalid(path, key, "must be a node allocatable resource; extended resources are not");
    }
    if resource.mapping.is_none() && resource.overhead.is_none() {
        faults.required(path, "at least one of mapping and overhead is required");
    }
    let Some(mapping) = &resource.mapping else { return };
    let by_capacity = (mapping.capacity_key.is_some(), mapping.capacity_multiplier.is_some());
    let by_device = mapping.device_multiplier.is_some();
    if !matches!((by_capacity, by_device), ((true, true), false) | ((false, false), true)) {
        let rule = "needs both capacityKey and capacityMultiplier, or deviceMultiplier alone";
        faults.invalid(&format!("{path}.mapping"), "", rule);
    }
    for multiplier in mapping.capacity_multiplier.iter().chain(&mapping.device_multiplier) {
        quantity(faults, &format!("{path}.mapping"), multiplier);
    }
}
