//! The writes that turn the observed slices of the node into the desired ones. Pure.
//!
//! Generations, as consumers rely on them: only slices of the highest generation count, and a pool with
//! fewer of them than `resourceSliceCount` says is not used. So one changed slice is replaced as it is; any
//! greater change gets a new generation and rewrites every slice, and nobody sees a mixture of old and new.

use super::desired::generate_name;
use k8s_openapi::api::resource::v1::{ResourceSlice, ResourceSliceSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use std::collections::BTreeMap;

/// One call to the API server.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Only exactly this object, as it was seen.
    Delete(Box<ResourceSlice>),
    /// Replace the slice at this place in the pool; carries the resource version that was seen.
    Update(usize, Box<ResourceSlice>),
    /// Create the slice at this place in the pool.
    Create(usize, Box<ResourceSlice>),
}

impl Step {
    /// The generation that it writes.
    pub(super) fn generation(&self) -> Option<i64> {
        match self {
            Self::Delete(_) => None,
            Self::Update(_, slice) | Self::Create(_, slice) => Some(slice.spec.pool.generation),
        }
    }
}

/// The steps from `observed` (all slices of this driver on this node) to `desired` (at least one, of one
/// pool), in the order in which they must be taken. None when nothing differs but the generation.
pub(super) fn plan(
    desired: &[ResourceSliceSpec],
    observed: &[ResourceSlice],
    owner: &OwnerReference,
) -> Vec<Step> {
    let pool = desired.first().map(|spec| spec.pool.name.as_str());
    let in_pool = |slice: &&ResourceSlice| Some(slice.spec.pool.name.as_str()) == pool;
    let generation = observed.iter().filter(in_pool).map(|slice| slice.spec.pool.generation).max();

    // What stays: of each place in the pool the first by name.
    let mut by_name: Vec<&ResourceSlice> = observed.iter().collect();
    by_name.sort_by_key(|slice| slice.metadata.name.as_deref());
    let mut current: BTreeMap<usize, &ResourceSlice> = BTreeMap::new();
    let mut steps = Vec::new();
    for slice in by_name {
        let place = place(slice).filter(|place| {
            in_pool(&slice)
                && Some(slice.spec.pool.generation) == generation
                && *place < desired.len()
                && !current.contains_key(place)
        });
        match place {
            Some(place) => drop(current.insert(place, slice)),
            None => steps.push(Step::Delete(Box::new(slice.clone()))),
        }
    }

    let differs = |(place, spec): (usize, &ResourceSliceSpec)| {
        current.get(&place).is_none_or(|slice| !same(spec, &slice.spec) || !is_owned(slice, owner))
    };
    let changed = desired.iter().enumerate().filter(|at| differs(*at)).count();
    let complete = current.len() == desired.len();
    let (generation, rewrite) = match generation {
        None => (1, true),
        Some(generation) if complete && changed <= 1 => (generation, false),
        Some(generation) => (generation + 1, true),
    };
    let mut creates = Vec::new();
    for (place, spec) in desired.iter().enumerate() {
        if !rewrite && !differs((place, spec)) {
            continue;
        }
        let mut spec = spec.clone();
        spec.pool.generation = generation;
        match current.get(&place) {
            Some(slice) => {
                let mut metadata = slice.metadata.clone();
                metadata.owner_references = Some(vec![owner.clone()]);
                steps.push(Step::Update(place, Box::new(ResourceSlice { metadata, spec })));
            }
            None => {
                let metadata = ObjectMeta {
                    generate_name: Some(generate_name(place, &owner.name)),
                    owner_references: Some(vec![owner.clone()]),
                    ..Default::default()
                };
                creates.push(Step::Create(place, Box::new(ResourceSlice { metadata, spec })));
            }
        }
    }
    steps.extend(creates);
    steps
}

/// Whether the specs publish the same, whatever their generation.
pub(super) fn same(a: &ResourceSliceSpec, b: &ResourceSliceSpec) -> bool {
    let normal = |spec: &ResourceSliceSpec| {
        let mut spec = spec.clone();
        spec.pool.generation = 0;
        spec.devices = Some(spec.devices.unwrap_or_default());
        spec
    };
    normal(a) == normal(b)
}

fn is_owned(slice: &ResourceSlice, owner: &OwnerReference) -> bool {
    slice.metadata.owner_references.iter().flatten().any(|reference| reference.uid == owner.uid)
}

/// The place in the pool that the slice's name begins with; none for names of another scheme.
fn place(slice: &ResourceSlice) -> Option<usize> {
    let (digits, _) = slice.metadata.name.as_ref()?.split_once('-')?;
    let is_number = digits.len() >= 5 && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    is_number.then(|| usize::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Attribute, Device};
    use crate::slices::Pool;

    fn owner(uid: &str) -> OwnerReference {
        OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: "n".to_owned(),
            uid: uid.to_owned(),
            controller: Some(true),
            block_owner_deletion: None,
        }
    }

    /// A pool of 64 devices in each slice, but one in the last; `change` marks the devices of one slice.
    fn pool(slices: usize, change: Option<usize>) -> Vec<ResourceSliceSpec> {
        let device = |i: usize| Device {
            name: format!("d{i}"),
            cpus: [0].into(),
            attributes: BTreeMap::from([(
                "dra.cpu/a".to_owned(),
                Attribute::Texts(vec![if Some(i / 64) == change { "new" } else { "old" }.to_owned()]),
            )]),
            capacity: None,
        };
        let devices: Vec<Device> = (0..64 * (slices - 1) + 1).map(device).collect();
        Pool { node_name: "n".to_owned(), map_node_allocatable: false }.desired(&devices)
    }

    fn stored(specs: Vec<ResourceSliceSpec>, generation: i64) -> Vec<ResourceSlice> {
        let slice = |(place, mut spec): (usize, ResourceSliceSpec)| {
            spec.pool.generation = generation;
            let metadata = ObjectMeta {
                name: Some(format!("{}x", generate_name(place, "n"))),
                resource_version: Some("7".to_owned()),
                uid: Some(format!("uid-{place}")),
                owner_references: Some(vec![owner("node-uid")]),
                ..Default::default()
            };
            ResourceSlice { metadata, spec }
        };
        specs.into_iter().enumerate().map(slice).collect()
    }

    fn renamed(mut slice: ResourceSlice, name: &str) -> ResourceSlice {
        slice.metadata.name = Some(name.to_owned());
        slice
    }

    /// The steps in short: `-name`, `~place@generation`, `+place@generation`.
    fn steps(desired: &[ResourceSliceSpec], observed: &[ResourceSlice]) -> Vec<String> {
        let short = |step: &Step| match step {
            Step::Delete(slice) => format!("-{}", slice.metadata.name.as_ref().unwrap()),
            Step::Update(place, slice) => format!("~{place}@{}", slice.spec.pool.generation),
            Step::Create(place, slice) => format!("+{place}@{}", slice.spec.pool.generation),
        };
        plan(desired, observed, &owner("node-uid")).iter().map(short).collect()
    }

    #[test]
    fn an_equal_pool_needs_no_step_at_any_generation() {
        for generation in [1, 5] {
            assert_eq!(steps(&pool(3, None), &stored(pool(3, None), generation)), [""; 0]);
        }
    }

    #[test]
    fn the_first_publication_creates_all_at_generation_1() {
        assert_eq!(steps(&pool(2, None), &[]), ["+0@1", "+1@1"]);
        let created = plan(&pool(2, None), &[], &owner("node-uid"));
        let Step::Create(1, slice) = &created[1] else { panic!("{created:?}") };
        assert_eq!(slice.metadata.generate_name.as_deref(), Some("00001-dra.cpu-n-"));
        assert_eq!(slice.metadata.owner_references, Some(vec![owner("node-uid")]));
        assert_eq!(slice.metadata.name, None);
    }

    #[test]
    fn one_changed_slice_is_replaced_within_its_generation() {
        assert_eq!(steps(&pool(3, Some(1)), &stored(pool(3, None), 4)), ["~1@4"]);
        let Step::Update(_, slice) =
            &plan(&pool(1, Some(0)), &stored(pool(1, None), 4), &owner("node-uid"))[0]
        else {
            panic!("not an update");
        };
        assert_eq!(slice.metadata.resource_version.as_deref(), Some("7"), "the server compares it");
    }

    #[test]
    fn greater_changes_rewrite_the_whole_pool_in_a_new_generation() {
        let mut two = pool(3, Some(1));
        two[0] = pool(3, Some(0))[0].clone();
        assert_eq!(steps(&two, &stored(pool(3, None), 4)), ["~0@5", "~1@5", "~2@5"]);
        assert_eq!(steps(&pool(3, None), &stored(pool(2, None), 4)), ["~0@5", "~1@5", "+2@5"]);
        assert_eq!(steps(&pool(2, None), &stored(pool(3, None), 4)), ["-00002-dra.cpu-n-x", "~0@5", "~1@5"]);
    }

    #[test]
    fn a_vanished_slice_is_created_in_a_new_generation() {
        let mut left = stored(pool(3, None), 4);
        left.remove(1);
        assert_eq!(steps(&pool(3, None), &left), ["~0@5", "~2@5", "+1@5"]);
        assert_eq!(steps(&pool(1, None), &[]), ["+0@1"], "with none left there is nothing to be mixed with");
    }

    #[test]
    fn slices_that_do_not_count_are_deleted_first() {
        let one = stored(pool(1, None), 4).remove(0);
        let double = renamed(one.clone(), "00000-dra.cpu-n-y");
        assert_eq!(steps(&pool(1, None), &[double, one.clone()]), ["-00000-dra.cpu-n-y"]);
        let old = renamed(stored(pool(1, None), 3).remove(0), "00000-dra.cpu-n-a");
        assert_eq!(steps(&pool(1, None), &[old, one.clone()]), ["-00000-dra.cpu-n-a"]);
        let mut other_pool = renamed(one.clone(), "00000-dra.cpu-n-b");
        other_pool.spec.pool = k8s_openapi::api::resource::v1::ResourcePool {
            name: "other".to_owned(),
            generation: 99,
            resource_slice_count: 1,
        };
        assert_eq!(steps(&pool(1, None), &[other_pool, one]), ["-00000-dra.cpu-n-b"]);
    }

    #[test]
    fn slices_named_by_another_scheme_are_replaced_in_a_new_generation() {
        for name in ["n-dra.cpu-abcde", "0000-dra.cpu-n-x", "0000g-dra.cpu-n-x", "fffff-dra.cpu-n-x"] {
            let old = renamed(stored(pool(1, None), 4).remove(0), name);
            assert_eq!(steps(&pool(1, None), &[old]), [format!("-{name}"), "+0@5".to_owned()]);
        }
    }

    #[test]
    fn a_half_finished_rewrite_is_finished_in_a_further_generation() {
        let mut half = stored(pool(2, None), 4);
        half[0].spec.pool.generation = 5;
        assert_eq!(steps(&pool(2, None), &half), ["-00001-dra.cpu-n-x", "~0@6", "+1@6"]);
    }

    #[test]
    fn a_slice_that_belongs_to_a_former_node_object_gets_the_new_owner() {
        let observed = stored(pool(1, None), 4);
        let planned = plan(&pool(1, None), &observed, &owner("other-uid"));
        let [Step::Update(0, slice)] = planned.as_slice() else { panic!("{planned:?}") };
        assert_eq!(slice.metadata.owner_references, Some(vec![owner("other-uid")]));
        assert_eq!(slice.spec.pool.generation, 4);
    }

    #[test]
    fn an_empty_pool_equals_one_that_the_server_stores_without_the_list() {
        let empty = Pool { node_name: "n".to_owned(), map_node_allocatable: false }.desired(&[]);
        let mut observed = stored(empty.clone(), 1);
        observed[0].spec.devices = None;
        assert_eq!(steps(&empty, &observed), [""; 0]);
    }
}
