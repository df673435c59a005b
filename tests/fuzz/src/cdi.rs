//! CDI specs, and the records in them.

use crate::{Target, is_short, text};
use arbitrary::{Arbitrary as _, Result, Unstructured};
use dracpu_codec::cdi::name::check_uid;
use dracpu_codec::cdi::{Content, Record, SpecFault, claim_of_device, device_id, spec, spec_file_name};
use dracpu_cpuset::CpuSet;
use dracpu_ledger::{Booking, ClaimUid, Part, StrategyId};

pub(crate) const SPECS: Target = Target {
    name: "cdi_specs",
    check: specs,
    fixed_kib: 256,
    per_byte: 2048,
    words: &[
        "\"cdiVersion\":\"0.6.0\"",
        "\"kind\":\"dra.k8s.io/cpu\"",
        "\"devices\":[",
        "\"name\":\"claim-A\"",
        "\"containerEdits\":{\"env\":[",
        "\"DRA_CPUSET_A=2-3\"",
        "\"annotations\":{\"dra.cpu/record\":\"",
        "\\\"v\\\":1",
        "\\\"cpus\\\":\\\"2-3\\\"",
        "\\\"blocked\\\":\\\"\\\"",
        "\\\"results\\\":[",
        "null",
        "{",
        "}",
        "[",
        "]",
        "\"",
        ",",
        "\\",
    ],
};

pub(crate) const RECORDS: Target = Target {
    name: "cdi_records",
    check: records,
    fixed_kib: 4096,
    per_byte: 4096,
    words: &["A", "DRA_CPUSET_A=5\"]", "\""],
};

/// A claim's UID, a line feed, and its spec file.
fn specs(input: &[u8]) {
    let at = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let (uid, file) = input.split_at(at);
    let (uid, file) = (ClaimUid::from(text(uid)), file.get(1..).unwrap_or_default());
    names(&uid);
    match spec::parse(&uid, file) {
        Ok(Content::Recorded(record)) => {
            assert!(!record.booking.cpus().is_empty());
            let canonical = spec::text(&uid, &record);
            assert_eq!(spec::parse(&uid, canonical.as_bytes()), Ok(Content::Recorded(record)));
        }
        Ok(Content::CpusOnly { cpus, doubt }) => {
            assert!(!cpus.is_empty());
            doubt.iter().for_each(is_short);
        }
        Err(fault) => is_short(&fault),
    }
}

/// A UID leads to a file of the directory and back from the device's name, or is refused.
fn names(uid: &ClaimUid) {
    match spec_file_name(uid) {
        Ok(name) => {
            assert!(name.len() <= 251 && !name.contains(['/', '\0']) && name.ends_with(".json"), "{name}");
            assert_eq!(claim_of_device(&device_id(uid)).as_ref(), Some(uid));
            assert_eq!(check_uid(uid), Ok(()));
        }
        Err(fault) => is_short(&fault),
    }
}

/// Any record is written and read back; and the beginning of its file never tells other CPUs.
fn records(input: &[u8]) {
    let mut u = Unstructured::new(input);
    let Ok((uid, record, cuts)) =
        (|| Ok::<_, arbitrary::Error>((uid(&mut u)?, record(&mut u)?, <[u16; 4]>::arbitrary(&mut u)?)))()
    else {
        return;
    };
    let (file, cpus) = (spec::text(&uid, &record), record.booking.cpus());
    let read = spec::parse(&uid, file.as_bytes());
    if cpus.is_empty() {
        assert_eq!(read, Err(SpecFault::NoCpus(uid)));
        return;
    }
    assert_eq!(read, Ok(Content::Recorded(record)));
    for cut in cuts {
        let beginning = file.as_bytes().get(..usize::from(cut) % file.len()).unwrap_or_default();
        match spec::parse(&uid, beginning) {
            Ok(Content::CpusOnly { cpus: said, doubt: Some(SpecFault::NotASpec(_)) }) => {
                assert_eq!(said, cpus)
            }
            Err(SpecFault::NotASpec(_)) => {}
            other => panic!("a file cut at {} was taken for {other:?}", beginning.len()),
        }
    }
}

fn uid(u: &mut Unstructured<'_>) -> Result<ClaimUid> {
    let text = String::arbitrary(u)?;
    let uid = ClaimUid::from(text.as_str());
    Ok(if check_uid(&uid).is_ok() { uid } else { "A".into() })
}

fn record(u: &mut Unstructured<'_>) -> Result<Record> {
    let mut parts = Vec::new();
    for _ in 0..u.int_in_range(0..=4)? {
        parts.push(Part {
            request: String::arbitrary(u)?,
            pool: String::arbitrary(u)?,
            device: String::arbitrary(u)?,
            share_id: Option::arbitrary(u)?,
            cpus: cpus(u)?,
            blocked: cpus(u)?,
            mems: Vec::arbitrary(u)?,
        });
    }
    let strategy = Option::<(String, String)>::arbitrary(u)?;
    Ok(Record {
        boot_id: String::arbitrary(u)?,
        topology_hash: String::arbitrary(u)?,
        booking: Booking {
            namespace: String::arbitrary(u)?,
            name: String::arbitrary(u)?,
            pod_claim_name: Option::arbitrary(u)?,
            strategy: strategy.map(|(name, digest)| StrategyId { name, digest }),
            joins_shared_pool: bool::arbitrary(u)?,
            parts,
        },
    })
}

/// Any set, mostly of few CPUs.
pub(crate) fn cpus(u: &mut Unstructured<'_>) -> Result<CpuSet> {
    Ok(match u.int_in_range(0..=3)? {
        0 => CpuSet::new(),
        1 => CpuSet::from_words(vec![u64::arbitrary(u)?]).unwrap_or_default(),
        2 => Vec::<u8>::arbitrary(u)?.into_iter().map(u32::from).collect(),
        _ => (0..u.int_in_range(0..=3)?).map(|_| u.int_in_range(0..=8191)).collect::<Result<_>>()?,
    })
}
