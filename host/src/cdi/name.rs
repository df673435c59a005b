use dracpu_ledger::ClaimUid;

/// CDI vendor and class of a claim's device.
pub(crate) const KIND: &str = "dra.k8s.io/cpu";

/// What the name of a claim's variable begins with; the claim's UID follows.
pub const ENV_PREFIX: &str = "DRA_CPUSET_";

/// What the name of a spec file begins with: as the CDI libraries name a transient spec.
pub(crate) const FILE_PREFIX: &str = "dra.k8s.io-cpu_claim-";

/// What it ends with.
pub(crate) const SPEC_END: &str = ".json";

const DEVICE_PREFIX: &str = "claim-";

/// A claim UID that cannot be part of a CDI device name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "claim UID `{0}` cannot be used: a CDI device name has only letters, digits, `_`, `-`, `.` and `:`, and \
     ends with a letter or digit"
)]
pub struct BadUid(pub ClaimUid);

/// Checks that a claim can have a CDI device.
pub(crate) fn check_uid(uid: &ClaimUid) -> Result<(), BadUid> {
    let text = uid.as_str();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
    let good = text.chars().all(allowed) && text.ends_with(|c: char| c.is_ascii_alphanumeric());
    good.then_some(()).ok_or_else(|| BadUid(uid.clone()))
}

/// The name of a claim's spec file.
///
/// # Errors
/// When the UID cannot stand in a CDI device name.
pub fn spec_file_name(uid: &ClaimUid) -> Result<String, BadUid> {
    check_uid(uid)?;
    Ok(format!("{FILE_PREFIX}{uid}{SPEC_END}"))
}

/// The device's name inside its spec: `claim-<uid>`.
pub(crate) fn device_name(uid: &ClaimUid) -> String {
    format!("{DEVICE_PREFIX}{uid}")
}

/// The fully qualified name of a claim's device: `dra.k8s.io/cpu=claim-<uid>`.
#[must_use]
pub fn device_id(uid: &ClaimUid) -> String {
    format!("{KIND}={}", device_name(uid))
}

/// The claim that a fully qualified device name stands for; none when the device is not of this driver.
#[must_use]
pub fn claim_of_device(id: &str) -> Option<ClaimUid> {
    let uid = id.strip_prefix(KIND)?.strip_prefix('=')?.strip_prefix(DEVICE_PREFIX)?;
    (!uid.is_empty()).then(|| uid.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_cdi_forbids_is_refused() {
        for good in ["a", "7c9e6679-7425-40de-944b-e07fc1f90ae7", "my.claim:1_x"] {
            assert_eq!(check_uid(&good.into()), Ok(()), "{good}");
        }
        for bad in ["", "a/b", "../a", "a-", "a=b", "a b", "ä"] {
            assert!(check_uid(&bad.into()).is_err(), "{bad}");
        }
    }

    #[test]
    fn device_names_lead_back_to_their_claim() {
        assert_eq!(claim_of_device(&device_id(&"u-1".into())), Some("u-1".into()));
        for other in
            ["nvidia.com/gpu=0", "dra.k8s.io/cpu=x", "dra.k8s.io/cpu=claim-", "dra.k8s.io/cpux=claim-a"]
        {
            assert_eq!(claim_of_device(other), None, "{other}");
        }
    }
}
