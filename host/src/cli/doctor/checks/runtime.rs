use super::super::facts::Facts;
use super::super::verdict::Verdict;
use super::{of_daemon, of_runtime};
use crate::nri::Version;

/// What the runtime's NRI can do.
pub(super) fn nri_version(facts: &Facts) -> Verdict {
    of_runtime(facts, |runtime| {
        let (name, version) = (&runtime.name, &runtime.version);
        let nri = runtime.nri_version.as_deref().unwrap_or_default();
        let said = format!("{name} {version}, NRI {nri}");
        match Version::parse(nri) {
            None => Verdict::unknown(
                format!("nothing tells which NRI {name} {version} has"),
                "use containerd or CRI-O, or a runtime that states its NRI version (0.12 and newer)",
            ),
            Some(version) if version < Version::LEAST => Verdict::failed(
                format!("{said}: a plugin that registers while containers start can stop this runtime"),
                "update it: containerd 2.0 or CRI-O 1.31 and newer",
            ),
            Some(version) if version < Version::BEARS_PUSHES => Verdict::warning(
                format!(
                    "{said}: the shared pool grows with the next container only, and containers that start while the \
                     driver is away run on any CPU until it is back"
                ),
                "update it where that matters: NRI 0.12.1 and newer, as in containerd 2.4",
            ),
            Some(_) => Verdict::ok(said),
        }
    })
}

/// Without it no container gets its mask.
pub(super) fn nri_connected(facts: &Facts) -> Verdict {
    of_daemon(facts, |node| match &node.nri.reason {
        None if node.nri.connected => Verdict::ok("connected to the container runtime and synchronized"),
        reason => {
            let socket = node
                .config
                .get("--nri-socket")
                .and_then(|socket| socket.as_str())
                .unwrap_or("/var/run/nri/nri.sock");
            let remedy = format!(
                "is the runtime up, and NRI on in its configuration? It must serve {socket} (--nri-socket), in the driver's pod \
                 under the same path"
            );
            Verdict::failed(reason.as_deref().unwrap_or("not connected to the container runtime"), remedy)
        }
    })
}

#[cfg(test)]
mod tests {
    use super::super::super::facts::fixtures;
    use super::super::super::verdict::Outcome;
    use super::*;

    #[test]
    fn versions_are_judged_by_what_they_can_do() {
        let mut facts = fixtures::well();
        for (nri, expected) in [
            (Some("0.12.1"), Outcome::Ok),
            (Some("0.12.0"), Outcome::Warning),
            (Some("0.6.1"), Outcome::Warning),
            (Some("0.6.0"), Outcome::Failed),
            (None, Outcome::Unknown),
        ] {
            let runtime = facts.daemon.as_mut().unwrap().nri.runtime.as_mut().unwrap();
            runtime.nri_version = nri.map(str::to_owned);
            assert_eq!(nri_version(&facts).outcome(), expected, "{nri:?}");
        }
        facts.daemon.as_mut().unwrap().nri.runtime = None;
        assert_eq!(nri_version(&facts).outcome(), Outcome::Unknown);
    }

    #[test]
    fn a_driver_without_its_runtime_fails_with_the_reason() {
        let mut facts = fixtures::well();
        let node = facts.daemon.as_mut().unwrap();
        node.nri.connected = false;
        node.nri.reason = Some("cannot connect to /run/nri.sock".to_owned());
        let verdict = nri_connected(&facts);
        assert_eq!(
            (verdict.outcome(), verdict.message()),
            (Outcome::Failed, "cannot connect to /run/nri.sock")
        );
    }
}
