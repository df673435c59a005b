//! The container runtime's wire and messages, in both directions.

use crate::{Target, is_short};
use arbitrary::{Arbitrary as _, Result, Unstructured};
use dracpu_codec::container::{Created, Update, Updated};
use dracpu_codec::nri::mux::{Connection, Inbox, write_message};
use dracpu_codec::nri::ttrpc::{Message, answer};
use dracpu_codec::nri::{CallError, convert, version};
use dracpu_proto::{nri, ttrpc};
use prost::Message as _;
use std::collections::BTreeSet;

pub(crate) const FRAMES: Target = Target {
    name: "nri_frames",
    check: frames,
    fixed_kib: 64,
    per_byte: 256,
    words: &[
        "\0\0\0\x01\0\0\0\x0a",
        "\0\0\0\x02\0\0\0\x0a",
        "\0\0\0\x03\0\0\0\x01",
        "\x01\0",
        "\x02\0",
        "\0\0\0\x03",
        "\0\0\0\0",
        "\0\x40\0\0",
        "\0\x40\0\x0a",
        "\x7f\x7f\x7f\x7f",
    ],
};

pub(crate) const MESSAGES: Target = Target {
    name: "nri_messages",
    check: messages,
    fixed_kib: 64,
    // The longest structure of a message, for the two bytes of an empty one; and what lists of them grow through.
    per_byte: 4096,
    words: &[
        "DRA_CPUSET_a=0-3",
        "0-3",
        "\x0a\x02",
        "\x12\x00",
        "\x1a\x04",
        "\x08\x01",
        "containerd",
        "2.4.2",
        "v0.12.3",
    ],
};

/// How the bytes are cut, in the first four, and what comes over the trunk.
fn frames(input: &[u8]) {
    let Some((cuts, trunk)) = input.split_first_chunk::<4>() else { return };
    let mut whole = Inbox::default();
    let ended = whole.feed(trunk);
    ended.iter().for_each(|()| {});
    let _ = ended.as_ref().map_err(is_short);
    let messages: Vec<(Connection, Message)> = std::iter::from_fn(|| whole.pop()).collect();
    assert!(messages.iter().map(|(_, message)| message.data.len()).sum::<usize>() <= trunk.len());

    // However the bytes are cut into reads.
    let (mut inbox, mut rest, mut cut) = (Inbox::default(), trunk, Vec::new());
    let mut sizes = cuts.iter().map(|size| usize::from(*size) + 1).cycle();
    let mut result = Ok(());
    while result.is_ok() && !rest.is_empty() {
        let (read, left) = rest.split_at(sizes.next().unwrap_or(1).min(rest.len()));
        rest = left;
        result = inbox.feed(read);
        cut.extend(std::iter::from_fn(|| inbox.pop()));
    }
    assert_eq!((&cut, &result), (&messages, &ended));

    // What was read, written as this side writes, is read as the same.
    let mut written = Vec::new();
    for (connection, message) in &messages {
        write_message(*connection, message, &mut written);
        if let Ok(payload) = answer(message) {
            assert_eq!(
                answer(&Message::response(message.stream, Ok(payload.clone()))).as_ref(),
                Ok(&payload)
            );
        }
    }
    let mut inbox = Inbox::default();
    inbox.feed(&written).expect("this side writes what it reads");
    assert_eq!(std::iter::from_fn(|| inbox.pop()).collect::<Vec<_>>(), messages);
}

/// A message; which one, says the first byte.
fn messages(input: &[u8]) {
    let Some((kind, payload)) = input.split_first() else { return };
    match kind % 8 {
        0 => {
            let Ok(request) = nri::CreateContainerRequest::decode(payload) else { return };
            container(request.pod, request.container);
        }
        1 => {
            let Ok(request) = nri::SynchronizeRequest::decode(payload) else { return };
            for container in request.containers {
                let pod = request.pods.iter().find(|pod| pod.id == container.pod_sandbox_id).cloned();
                self::container(pod, Some(container));
            }
        }
        2 => {
            let Ok(request) = nri::UpdateContainerRequest::decode(payload) else { return };
            let cpus = convert::cpus(request.linux_resources);
            assert!(cpus.is_none_or(|cpus| !cpus.is_empty()));
            container(request.pod, request.container);
        }
        3 => {
            let Ok(request) = nri::ValidateContainerAdjustmentRequest::decode(payload) else { return };
            let cpus = request.adjust.and_then(|adjust| convert::cpus(adjust.linux?.resources));
            assert!(cpus.is_none_or(|cpus| !cpus.is_empty()));
            container(request.pod, request.container);
        }
        4 => {
            let Ok(request) = nri::ConfigureRequest::decode(payload) else { return };
            if let Some(version) = version::nri_version(&request) {
                assert_eq!(version::Version::parse(&version.to_string()), Some(version));
            }
        }
        5 => {
            let Ok(event) = nri::StateChangeEvent::decode(payload) else { return };
            container(event.pod, event.container);
        }
        6 => {
            let Ok(request) = ttrpc::Request::decode(payload) else { return };
            let ttrpc::Request { service, method, payload, .. } = request;
            let sent = Message::request(1, &service, &method, payload.clone());
            let again = ttrpc::Request::decode(&*sent.data).expect("it was written so");
            assert_eq!((&again.service, &again.method, &again.payload), (&service, &method, &payload));
            refused(CallError::UnknownMethod { service, method });
        }
        _ => {
            let _ = answers(&mut Unstructured::new(payload));
        }
    }
}

fn container(pod: Option<nri::PodSandbox>, container: Option<nri::Container>) {
    let expected = container.clone().map(|container| (container.id, container.env));
    match convert::container(pod, container) {
        Ok(container) => {
            assert_eq!(Some((container.id.clone(), container.env.clone())), expected);
            assert!(container.cpus.is_none_or(|cpus| !cpus.is_empty()));
        }
        Err(error) => {
            assert_eq!(expected, None);
            refused(error);
        }
    }
}

/// What the runtime is told of a failed call.
fn refused(error: CallError) {
    let status = answer(&Message::response(1, Err(error))).expect_err("it failed");
    assert!(status.code > 0);
    is_short(&status.message);
}

/// The driver's answers, as the runtime reads them: one update for each container at most, and no empty mask.
fn answers(u: &mut Unstructured<'_>) -> Result<()> {
    let own = String::arbitrary(u)?;
    let mut updates = Vec::new();
    for _ in 0..u.int_in_range(0..=6)? {
        let container_id = if bool::arbitrary(u)? { own.clone() } else { String::arbitrary(u)? };
        updates.push(Update { container_id, cpus: crate::cdi::cpus(u)? });
    }
    let cpus = crate::cdi::cpus(u)?;
    let mems = Vec::<u32>::arbitrary(u)?;
    let created = Created {
        cpus: cpus.clone(),
        mems: mems.clone(),
        exclusive: bool::arbitrary(u)?,
        remove_cfs_quota: bool::arbitrary(u)?,
        updates: updates.clone(),
    };
    let quota = created.remove_cfs_quota.then_some(-1);
    match convert::created(&own, created) {
        Ok(response) => {
            let bytes = response.encode_to_vec();
            let read = nri::CreateContainerResponse::decode(&*bytes).expect("it was written so");
            let linux = read.adjust.and_then(|adjust| adjust.linux).and_then(|linux| linux.resources);
            let set = linux.and_then(|resources| resources.cpu).expect("a mask");
            assert_eq!(set.cpus.parse(), Ok(cpus.clone()));
            let nodes: Vec<u32> = set.mems.split(',').filter_map(|node| node.parse().ok()).collect();
            assert_eq!((nodes, set.quota.map(|quota| quota.value)), (mems, quota));
            told(&read.update, &updates, Some(&own), None);
        }
        Err(error) => {
            assert!(cpus.is_empty());
            refused(error);
        }
    }
    let own_mask = Some(cpus).filter(|cpus| !cpus.is_empty());
    let updated = convert::updated(&own, Updated { cpus: own_mask.clone(), updates: updates.clone() });
    let read = nri::UpdateContainerResponse::decode(&*updated.encode_to_vec()).expect("it was written so");
    told(&read.update, &updates, Some(&own), own_mask.as_ref());
    told(&convert::updates(updates.clone(), None), &updates, None, None);
    Ok(())
}

fn told(
    told: &[nri::ContainerUpdate],
    meant: &[Update],
    own: Option<&str>,
    own_mask: Option<&dracpu_cpuset::CpuSet>,
) {
    let ids: BTreeSet<&str> = told.iter().map(|update| update.container_id.as_str()).collect();
    assert_eq!(ids.len(), told.len(), "two updates for one container");
    let sound =
        meant.iter().filter(|update| !update.cpus.is_empty() && Some(update.container_id.as_str()) != own);
    let mut expected: BTreeSet<&str> = sound.map(|update| update.container_id.as_str()).collect();
    expected.extend(own.filter(|_| own_mask.is_some()));
    assert_eq!(ids, expected);
    for update in told {
        let cpus = convert::cpus(update.linux.clone().and_then(|linux| linux.resources)).expect("a mask");
        let of_hook = Some(update.container_id.as_str()) == own;
        // A container's own mask must be set, or the call fails.
        assert_eq!(update.ignore_failure, !of_hook);
        match own_mask.filter(|_| of_hook) {
            Some(mask) => assert_eq!(cpus, *mask),
            None => assert!(
                meant.iter().any(|meant| meant.container_id == update.container_id && meant.cpus == cpus)
            ),
        }
    }
}
