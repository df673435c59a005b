use super::super::facts::{Facts, OtherFile, Said};
use super::super::verdict::Verdict;
use super::{AS_ROOT, of_daemon, of_runtime, some};
use crate::nri::Version;
use std::path::{Path, PathBuf};

/// Where the records are, and the runtime finds them.
pub(super) fn directory(facts: &Facts) -> Verdict {
    let (directory, shown) = (&facts.cdi, facts.cdi.path.display());
    match &directory.writable {
        Err(why) if facts.daemon.is_err() => {
            return Verdict::unknown(format!("{shown}: {why}"), AS_ROOT);
        }
        Err(why) => {
            let remedy = format!(
                "make the directory {shown}, and mount it into the driver's pod under the same path, for writing"
            );
            return Verdict::failed(format!("{shown}: {why}"), remedy);
        }
        Ok(false) => {
            return Verdict::failed(
                format!("{shown} is not writable: no claim can be prepared"),
                "mount it for writing, and make room on its file system",
            );
        }
        Ok(true) => {}
    }
    if let Some(OtherFile { path, device }) = directory.others.first() {
        return Verdict::failed(
            format!("{} defines {device} too: the runtime uses neither", path.display()),
            format!(
                "find out who wrote it, and delete {}",
                some(directory.others.iter().map(|other| other.path.display().to_string()))
            ),
        );
    }
    // What its configuration does not say is as the runtime has it by itself.
    let said = facts.runtime.as_ref();
    match said.and_then(|runtime| runtime.cdi.as_ref()) {
        Some(Said { value: false, file }) => {
            let file = file.display();
            return Verdict::failed(
                format!("{file} turns CDI off: no container gets its claims"),
                format!("set enable_cdi = true in {file} and restart the runtime"),
            );
        }
        None if off_by_default(facts) => {
            let remedy = "set enable_cdi = true in containerd's configuration and restart it, or update it to 2.0 or newer";
            return match said {
                Some(_) => Verdict::failed(
                    "this containerd leaves CDI off, and its configuration does not turn it on: no container gets its claims",
                    remedy,
                ),
                None => Verdict::unknown(
                    "this containerd leaves CDI off unless its configuration turns it on, which cannot be seen from here",
                    format!("run it on the host; {remedy}"),
                ),
            };
        }
        _ => {}
    }
    match said.map(|runtime| &runtime.spec_dirs) {
        None => Verdict::ok(format!("{shown} is writable, and nobody else defines claims there")),
        Some(Some(Said { value: dirs, file })) if !dirs.iter().any(|dir| same(dir, &directory.path)) => {
            let file = file.display();
            Verdict::failed(
                format!(
                    "{file} lets the runtime read specs from {}, not from {shown}",
                    some(dirs.iter().map(|dir| dir.display().to_string()))
                ),
                format!("add {shown} to cdi_spec_dirs in {file}, or start the driver with another --cdi-dir"),
            )
        }
        Some(_) => Verdict::ok(format!(
            "{shown} is writable, nobody else defines claims there, and the runtime reads it"
        )),
    }
}

/// containerd before 2.0 uses specs only where it is told to. Source: `docs/cri/config.md` of its release 1.7.
fn off_by_default(facts: &Facts) -> bool {
    let runtime = facts.daemon.as_ref().ok().and_then(|node| node.nri.runtime.as_ref());
    runtime.is_some_and(|runtime| {
        runtime.name == "containerd"
            && Version::parse(&runtime.version).is_some_and(|version| version < Version(2, 0, 0))
    })
}

/// `/var/run` is `/run`.
fn same(a: &Path, b: &Path) -> bool {
    let plain = |path: &Path| match path.strip_prefix("/var/run") {
        Ok(rest) => PathBuf::from("/run").join(rest),
        Err(_) => path.to_owned(),
    };
    plain(a) == plain(b)
}

/// The newest CDI version that a runtime reads, by the first version of the runtime that does. Source: the `go.mod` files of
/// the containerd and CRI-O releases, `specs-go/version.go` of the CDI library.
type Table = [(Version, Version)];

const CONTAINERD: &Table = &[
    (Version(1, 7, 0), Version(0, 5, 0)),
    (Version(1, 7, 12), Version(0, 6, 0)),
    (Version(1, 7, 16), Version(0, 7, 0)),
    (Version(1, 7, 27), Version(0, 8, 0)),
    (Version(2, 0, 5), Version(1, 0, 0)),
    (Version(2, 2, 1), Version(1, 1, 0)),
];

const CRIO: &Table = &[
    (Version(1, 31, 0), Version(0, 8, 0)),
    (Version(1, 33, 0), Version(1, 0, 0)),
    (Version(1, 35, 0), Version(1, 1, 0)),
];

fn newest(runtime: &str, version: Version) -> Option<Version> {
    let table = match runtime {
        "containerd" => CONTAINERD,
        "cri-o" => CRIO,
        _ => return None,
    };
    table.iter().rev().find(|(first, _)| *first <= version).map(|(_, cdi)| *cdi)
}

/// A runtime refuses specs of versions that it does not know.
pub(super) fn version(facts: &Facts) -> Verdict {
    of_runtime(facts, |runtime| {
        let (name, version) = (&runtime.name, &runtime.version);
        let Some(newest) = Version::parse(version).and_then(|version| newest(name, version)) else {
            let message = format!("nothing tells which CDI versions {name} {version} reads");
            return Verdict::unknown(message, "see that its own documentation names CDI 0.6.0 or newer");
        };
        // What the driver writes, whether there is a claim or not.
        let written = dracpu_codec::cdi::spec::CDI_VERSION;
        let own = Version::parse(written).filter(|own| *own > newest).map(|_| (written, None));
        let files = facts.cdi.versions.iter().map(|(version, file)| (version.as_str(), Some(file)));
        let mut newer =
            files.filter(|(version, _)| Version::parse(version).is_some_and(|version| version > newest));
        let Some((needed, file)) = own.or_else(|| newer.next()) else {
            return Verdict::ok(format!("{name} {version} reads CDI specs up to {newest}"));
        };
        let what = file.map_or_else(|| "the driver's specs".to_owned(), |file| file.display().to_string());
        Verdict::failed(
            format!("{name} {version} reads CDI specs up to {newest}, and {what} need {needed}"),
            "update the runtime: containerd 2.0 or CRI-O 1.31 and newer",
        )
    })
}

/// The records are what a driver that starts knows of claims.
pub(super) fn records(facts: &Facts) -> Verdict {
    of_daemon(facts, |node| {
        let shown = facts.cdi.path.display();
        if let Err(why) = &facts.cdi.writable {
            return Verdict::unknown(format!("{shown}: {why}"), "see cdi-dir");
        }
        let held = node.claims.iter().filter(|claim| claim.recorded);
        let lost: Vec<&str> = held
            .map(|claim| claim.uid.as_str())
            .filter(|uid| facts.held_before.contains(*uid) && !facts.cdi.records.contains(*uid))
            .collect();
        let damaged = &facts.cdi.damaged;
        if let Some((file, why)) = damaged.first_key_value() {
            let more = damaged.len() - 1;
            let and_more = if more > 0 { format!(" (and {more} more)") } else { String::new() };
            return Verdict::failed(
                format!("{}: {why}{and_more}", file.display()),
                "the driver writes the record of a claim that it knows again within five minutes, by itself: do not restart it \
                 before; its log says why where it does not; where no such claim exists, delete the file",
            );
        }
        if !lost.is_empty() {
            return Verdict::failed(
                format!(
                    "claims hold CPUs, and their records in {shown} are gone: {}",
                    some(lost.iter().map(ToString::to_string))
                ),
                "the driver writes them again within five minutes, by itself: do not restart it before; and find out who \
                 deletes files there",
            );
        }
        let unrecorded: Vec<String> =
            node.claims.iter().filter(|claim| !claim.recorded).map(|claim| claim.uid.clone()).collect();
        if !unrecorded.is_empty() {
            return Verdict::warning(
                format!("containers say that they have claims which have no record: {}", some(unrecorded)),
                "their CPUs go to nobody until the API server has answered whose they are: is it reachable (see slices)?",
            );
        }
        Verdict::ok(format!("every claim has its record in {shown} (claims {})", node.claims.len()))
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::{RuntimeConfig, fixtures};
    use super::super::super::verdict::Outcome;
    use super::*;

    #[test]
    fn a_directory_that_no_claim_can_be_written_to_fails() {
        let mut facts = fixtures::well();
        for writable in [Ok(false), Err("no such directory".to_owned())] {
            facts.cdi.writable = writable;
            assert_eq!(directory(&facts).outcome(), Outcome::Failed);
        }
    }

    #[test]
    fn a_second_definition_of_a_claims_device_fails_and_is_named() {
        let mut facts = fixtures::well();
        facts.cdi.others =
            vec![OtherFile { path: "/cdi/mine.yaml".into(), device: "dra.k8s.io/cpu=claim-a".into() }];
        let verdict = directory(&facts);
        assert_eq!(verdict.outcome(), Outcome::Failed);
        assert!(verdict.message().contains("dra.k8s.io/cpu=claim-a"), "{verdict:?}");
        assert!(verdict.remedy().unwrap().contains("/cdi/mine.yaml"), "{verdict:?}");
    }

    #[test]
    fn a_runtime_that_reads_no_specs_or_others_fails() {
        let mut facts = fixtures::well();
        facts.cdi.path = "/var/run/cdi".into();
        let file = PathBuf::from("/etc/containerd/config.toml");
        for (cdi, dirs, expected) in [
            (Some(true), Some(vec!["/etc/cdi", "/run/cdi"]), Outcome::Ok),
            (None, None, Outcome::Ok),
            (None, Some(vec!["/etc/cdi"]), Outcome::Failed),
            (Some(false), None, Outcome::Failed),
        ] {
            let spec_dirs = dirs.map(|dirs| Said {
                value: dirs.into_iter().map(PathBuf::from).collect(),
                file: file.clone(),
            });
            let cdi = cdi.map(|value| Said { value, file: file.clone() });
            facts.runtime = Some(RuntimeConfig { cdi, spec_dirs });
            assert_eq!(directory(&facts).outcome(), expected, "{:?}", facts.runtime);
        }
    }

    #[test]
    fn a_runtime_that_uses_specs_only_when_it_is_told_to_must_have_been() {
        let mut facts = fixtures::well();
        facts.daemon.as_mut().unwrap().nri.runtime.as_mut().unwrap().version = "1.7.27".to_owned();
        let on = Said { value: true, file: "/etc/containerd/config.toml".into() };
        for (runtime, expected) in [
            (None, Outcome::Unknown),
            (Some(RuntimeConfig::default()), Outcome::Failed),
            (Some(RuntimeConfig { cdi: Some(on), spec_dirs: None }), Outcome::Ok),
        ] {
            facts.runtime = runtime;
            assert_eq!(directory(&facts).outcome(), expected, "{:?}", facts.runtime);
        }
    }

    #[test]
    fn specs_that_the_runtime_is_too_old_for_fail() {
        let mut facts = fixtures::well();
        let runtime = |facts: &mut Facts, name: &str, version: &str| {
            let runtime = facts.daemon.as_mut().unwrap().nri.runtime.as_mut().unwrap();
            (runtime.name, runtime.version) = (name.to_owned(), version.to_owned());
        };
        for (name, number, expected) in [
            ("containerd", "1.7.11", Outcome::Failed),
            ("containerd", "1.7.12", Outcome::Ok),
            ("containerd", "2.4.2+unknown", Outcome::Ok),
            ("cri-o", "1.34.1", Outcome::Ok),
            ("cri-o", "1.20.0", Outcome::Unknown),
            ("other", "1.0.0", Outcome::Unknown),
        ] {
            runtime(&mut facts, name, number);
            assert_eq!(version(&facts).outcome(), expected, "{name} {number}");
        }
        // Left by another driver.
        facts.cdi.versions.insert("0.8.0".to_owned(), "/cdi/x.json".into());
        runtime(&mut facts, "containerd", "1.7.26");
        let verdict = version(&facts);
        assert_eq!(verdict.outcome(), Outcome::Failed);
        assert!(verdict.message().contains("/cdi/x.json need 0.8.0"), "{verdict:?}");
        runtime(&mut facts, "containerd", "1.7.27");
        assert_eq!(version(&facts).outcome(), Outcome::Ok);
    }

    #[test]
    fn records_that_are_damaged_gone_or_were_never_there_are_told() {
        let mut facts = fixtures::well();
        facts.cdi.damaged.insert("/cdi/claim-x.json".into(), "it is not a CDI spec".to_owned());
        let verdict = records(&facts);
        assert_eq!(verdict.outcome(), Outcome::Failed);
        assert!(verdict.message().contains("/cdi/claim-x.json: it is not a CDI spec"), "{verdict:?}");
        assert!(verdict.remedy().unwrap().contains("by itself: do not restart it before"), "{verdict:?}");

        let mut facts = fixtures::well();
        facts.cdi.records.clear();
        let verdict = records(&facts);
        assert_eq!(verdict.outcome(), Outcome::Failed);
        assert!(verdict.message().ends_with("are gone: u-1"), "{verdict:?}");
        assert!(verdict.remedy().unwrap().contains("by itself: do not restart it before"), "{verdict:?}");
        // Prepared while the files were looked at.
        facts.held_before.clear();
        assert_eq!(records(&facts).outcome(), Outcome::Ok);

        let mut facts = fixtures::well();
        facts.daemon.as_mut().unwrap().claims[0].recorded = false;
        assert_eq!(records(&facts).outcome(), Outcome::Warning);
    }
}
