use super::frame::{Device, Spec};
use super::name::{ENV_PREFIX, KIND, device_name};
use super::record::{ANNOTATION, Record, RecordFault};
use crate::words::{quoted, sentence};
use dracpu_cpuset::CpuSet;
use dracpu_ledger::ClaimUid;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The lowest version that carries annotations, so the one that most runtimes accept (containerd from
/// 1.7.12 on).
pub const CDI_VERSION: &str = "0.6.0";

/// What a spec file says of its claim.
#[derive(Debug, PartialEq)]
pub enum Content {
    /// A record of this driver.
    Recorded(Record),
    /// Only which CPUs.
    CpusOnly {
        /// The value of the claim's variable.
        cpus: CpuSet,
        /// What is wrong with the rest; none when another driver wrote it.
        doubt: Option<SpecFault>,
    },
}

/// What is wrong with a spec file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecFault {
    /// It cannot be read at all.
    #[error("it cannot be read")]
    Unreadable(#[source] std::io::Error),
    /// It is cut off, or something else.
    #[error("it is not a CDI spec: {0}")]
    NotASpec(String),
    /// It is for another kind of device.
    #[error("it is for `{}`, not `{KIND}`", quoted(.0))]
    OtherKind(String),
    /// It has not exactly the one device that its name promises.
    #[error("it does not have exactly one device `claim-{0}`")]
    OtherDevice(ClaimUid),
    /// The variable is missing or not a CPU list.
    #[error("it has no variable {ENV_PREFIX}{0} with a CPU list")]
    NoCpus(ClaimUid),
    /// The record says something else than the variable.
    #[error("its record names CPUs {recorded}, its variable {said}")]
    Disagrees {
        /// CPUs of the record.
        recorded: CpuSet,
        /// CPUs of the variable, which the containers go by.
        said: CpuSet,
    },
    /// The record is damaged or of a newer driver.
    #[error("{0}")]
    Record(String),
    /// Its name holds no claim UID.
    #[error("its name has no usable claim UID")]
    NoUid,
}

impl PartialEq for SpecFault {
    fn eq(&self, other: &Self) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

#[derive(Serialize, Deserialize)]
struct Edits {
    #[serde(default)]
    env: Vec<String>,
}

/// The text of a claim's spec file.
///
/// # Panics
/// Never: strings and lists always serialize.
#[must_use]
pub fn text(uid: &ClaimUid, record: &Record) -> String {
    let edits = Edits { env: vec![format!("{ENV_PREFIX}{uid}={}", record.booking.cpus())] };
    let annotations = BTreeMap::from([(ANNOTATION.to_owned(), record.to_json())]);
    let spec = Spec {
        cdi_version: CDI_VERSION.to_owned(),
        kind: KIND.to_owned(),
        devices: vec![Device { name: device_name(uid), container_edits: edits, annotations }],
    };
    serde_json::to_string(&spec).expect("strings and lists always serialize")
}

/// What a spec file of this claim says.
///
/// # Errors
/// When not even its CPUs can be told.
pub fn parse(uid: &ClaimUid, bytes: &[u8]) -> Result<Content, SpecFault> {
    let spec: Spec<Edits> = match serde_json::from_slice(bytes) {
        Ok(spec) => spec,
        // Its words quote the file.
        Err(error) => {
            let why = sentence(&error.to_string()).into_owned();
            return salvage(uid, bytes, SpecFault::NotASpec(why));
        }
    };
    if spec.kind != KIND {
        return Err(SpecFault::OtherKind(spec.kind));
    }
    let [device] = spec.devices.as_slice() else { return Err(SpecFault::OtherDevice(uid.clone())) };
    if device.name != device_name(uid) {
        return Err(SpecFault::OtherDevice(uid.clone()));
    }
    let said = said_cpus(uid, &device.container_edits.env).ok_or_else(|| SpecFault::NoCpus(uid.clone()))?;
    let Some(record) = device.annotations.get(ANNOTATION) else {
        return Ok(Content::CpusOnly { cpus: said, doubt: None });
    };
    let doubt = match Record::from_json(record) {
        Ok(record) if record.booking.cpus() == said => return Ok(Content::Recorded(record)),
        Ok(record) => SpecFault::Disagrees { recorded: record.booking.cpus(), said: said.clone() },
        Err(fault) => fault.into(),
    };
    Ok(Content::CpusOnly { cpus: said, doubt: Some(doubt) })
}

fn said_cpus(uid: &ClaimUid, env: &[String]) -> Option<CpuSet> {
    let key = format!("{ENV_PREFIX}{uid}=");
    let [value] = env.iter().filter_map(|entry| entry.strip_prefix(&key)).collect::<Vec<_>>()[..] else {
        return None;
    };
    value.parse().ok().filter(|cpus: &CpuSet| !cpus.is_empty())
}

/// A damaged file may still hold the whole variable: those CPUs must not go to anybody else.
fn salvage(uid: &ClaimUid, bytes: &[u8], fault: SpecFault) -> Result<Content, SpecFault> {
    let text = String::from_utf8_lossy(bytes);
    let entry = text.split('"').find_map(|string| string.strip_prefix(&format!("{ENV_PREFIX}{uid}=")));
    // Only with its closing quote and what follows in the list: half a value would be another set.
    let ends = |rest: &str| rest.trim_start().starts_with([',', ']']);
    let closed = entry.filter(|value| text.split(&format!("={value}\"")).skip(1).any(ends));
    match closed.and_then(|value| value.parse::<CpuSet>().ok()).filter(|cpus| !cpus.is_empty()) {
        Some(cpus) => Ok(Content::CpusOnly { cpus, doubt: Some(fault) }),
        None => Err(fault),
    }
}

impl From<RecordFault> for SpecFault {
    fn from(fault: RecordFault) -> Self {
        let cause = std::error::Error::source(&fault).map(|source| format!(": {source}")).unwrap_or_default();
        Self::Record(sentence(&format!("{fault}{cause}")).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dracpu_ledger::{Booking, Part, StrategyId};
    use proptest::prelude::*;

    fn record(cpus: &str) -> Record {
        let part = Part {
            request: "r".into(),
            pool: "node-1".into(),
            device: "cpudevnuma000".into(),
            share_id: Some("s-1".into()),
            cpus: cpus.parse().unwrap(),
            blocked: "6".parse().unwrap(),
            mems: vec![0],
        };
        let strategy = Some(StrategyId { name: "packed".into(), digest: "sha256:00".into() });
        let (namespace, name) = ("ns".to_owned(), "c".to_owned());
        let booking = Booking { namespace, name, strategy, parts: vec![part], ..Booking::default() };
        Record { boot_id: "b".into(), topology_hash: "t".into(), booking }
    }

    #[test]
    fn the_name_that_a_pod_gives_a_claim_is_recorded() {
        let mut record = record("2-3");
        record.booking.pod_claim_name = Some("cpus".to_owned());
        let text = text(&"u".into(), &record);
        assert_eq!(parse(&"u".into(), text.as_bytes()).unwrap(), Content::Recorded(record));
    }

    #[test]
    fn a_spec_is_what_runtimes_of_cdi_0_6_accept() {
        let golden = concat!(
            r#"{"cdiVersion":"0.6.0","kind":"dra.k8s.io/cpu","devices":[{"name":"claim-u-1","#,
            r#""containerEdits":{"env":["DRA_CPUSET_u-1=2-3"]},"annotations":{"dra.cpu/record":"#,
            r#""{\"v\":1,\"namespace\":\"ns\",\"name\":\"c\",\"bootID\":\"b\",\"topologyHash\":\"t\","#,
            r#"\"strategy\":{\"name\":\"packed\",\"digest\":\"sha256:00\"},\"joinSharedPool\":false,"#,
            r#"\"results\":[{\"request\":\"r\",\"pool\":\"node-1\",\"device\":\"cpudevnuma000\","#,
            r#"\"shareID\":\"s-1\",\"cpus\":\"2-3\",\"blocked\":\"6\",\"mems\":[0]}]}"}}]}"#,
        );
        assert_eq!(text(&"u-1".into(), &record("2-3")), golden);
        assert_eq!(parse(&"u-1".into(), golden.as_bytes()), Ok(Content::Recorded(record("2-3"))));
    }

    #[test]
    fn a_spec_of_another_driver_tells_its_cpus() {
        let other = br#"{"cdiVersion":"0.8.0","kind":"dra.k8s.io/cpu","devices":[{"name":"claim-A",
            "containerEdits":{"env":["DRA_CPUSET_A=0-3"]}}],"containerEdits":{}}"#;
        let content = parse(&"A".into(), other);
        assert_eq!(content, Ok(Content::CpusOnly { cpus: "0-3".parse().unwrap(), doubt: None }));
    }

    #[test]
    fn what_is_wrong_with_a_file_is_told_and_its_cpus_are_kept_where_they_can_be_read() {
        let good = text(&"A".into(), &record("2-3"));
        let cut_in_the_list = good.find("=2-3").unwrap() + 2;
        let kept = |doubt| Ok(Content::CpusOnly { cpus: "2-3".parse().unwrap(), doubt: Some(doubt) });
        let not_json = || SpecFault::NotASpec(String::new());
        let version = good.replace(r#"\"v\":1"#, r#"\"v\":2"#);
        for (name, text, expected) in [
            ("half", good[..good.len() / 2].to_owned(), kept(not_json())),
            ("half a list", good[..cut_in_the_list].to_owned(), Err(not_json())),
            ("empty", String::new(), Err(not_json())),
            ("garbage", "\u{1}\u{2}".to_owned(), Err(not_json())),
            ("newer", version, kept(SpecFault::Record(String::new()))),
            (
                "damaged record",
                good.replace("namespace", "nomespace"),
                kept(SpecFault::Record(String::new())),
            ),
            (
                "record says otherwise",
                good.replace(r#"\"cpus\":\"2-3\""#, r#"\"cpus\":\"2-4\""#),
                kept(SpecFault::Disagrees { recorded: CpuSet::new(), said: CpuSet::new() }),
            ),
            ("kind", good.replace("dra.k8s.io/cpu", "x.y/cpu"), Err(SpecFault::OtherKind(String::new()))),
            ("device", good.replace("claim-A", "claim-B"), Err(SpecFault::OtherDevice("A".into()))),
            ("variable", good.replace("DRA_CPUSET_A", "DRA_CPUSET_B"), Err(SpecFault::NoCpus("A".into()))),
            ("list", good.replace("=2-3", "=2-x"), Err(SpecFault::NoCpus("A".into()))),
        ] {
            assert_eq!(parse(&"A".into(), text.as_bytes()), expected, "{name}");
        }
    }

    #[test]
    fn what_is_long_is_not_quoted_whole() {
        let good = text(&"A".into(), &record("2-3"));
        let long = "x".repeat(1 << 20);
        for text in [
            good.replace("dra.k8s.io/cpu", &long),
            good.replace(r#""devices":["#, &format!(r#""devices":["{long}","#)),
            good.replace(r#"\"v\":1"#, &format!(r#"\"v\":\"{long}\""#)),
            good.replace(r#"\"blocked\":\"6"#, &format!(r#"\"blocked\":\"{long}"#)),
        ] {
            let (Ok(Content::CpusOnly { doubt: Some(fault), .. }) | Err(fault)) =
                parse(&"A".into(), text.as_bytes())
            else {
                panic!("believed");
            };
            assert!(fault.to_string().len() < 2000, "{fault}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(cpus in proptest::collection::vec(0..8191u32, 1..40), mems in any::<Vec<u32>>()) {
            let mut record = record("0");
            record.booking.parts[0].cpus = cpus.into_iter().collect();
            record.booking.parts[0].mems = mems;
            let text = text(&"A".into(), &record);
            prop_assert_eq!(parse(&"A".into(), text.as_bytes()), Ok(Content::Recorded(record)));
        }

        #[test]
        fn a_file_cut_anywhere_is_never_taken_for_other_cpus(at in 0..600usize, junk in any::<Vec<u8>>()) {
            let good = text(&"A".into(), &record("2-3,17"));
            let mut bytes = good.as_bytes()[..at.min(good.len())].to_vec();
            // Whatever lies behind the cut, unless it ends the list as if it were the file's own.
            bytes.extend(junk.into_iter().filter(|byte| !b"],".contains(byte)));
            if let Ok(Content::CpusOnly { cpus, .. }) = parse(&"A".into(), &bytes) {
                prop_assert_eq!(cpus, "2-3,17".parse().unwrap());
            }
        }

        #[test]
        fn no_bytes_panic(bytes in any::<Vec<u8>>(), json in "[{}\\[\\]\":,a-zA-Z0-9 ]{0,80}") {
            let _ = parse(&"A".into(), &bytes);
            let _ = parse(&"A".into(), json.as_bytes());
        }
    }
}
