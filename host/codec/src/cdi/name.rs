use crate::words::quoted;
use dracpu_ledger::ClaimUid;

/// CDI vendor and class of a claim's device.
pub(crate) const KIND: &str = "dra.k8s.io/cpu";

/// What the name of a claim's variable begins with; the claim's UID follows.
pub const ENV_PREFIX: &str = "DRA_CPUSET_";

/// What the name of a spec file begins with: as the CDI libraries name a transient spec.
pub const FILE_PREFIX: &str = "dra.k8s.io-cpu_claim-";

/// What it ends with.
pub const SPEC_END: &str = ".json";

/// What a spec file's name ends with until the file is complete.
pub const TEMP_END: &str = ".tmp";

const DEVICE_PREFIX: &str = "claim-";

/// Longest name of a file (`NAME_MAX` of limits.h, in bytes).
const NAME_MAX: usize = 255;

/// Longest UID that fits the longest file name made of it: that of a spec being written.
const MAX_UID: usize = NAME_MAX - FILE_PREFIX.len() - SPEC_END.len() - TEMP_END.len();

/// A claim UID that no CDI spec can be made for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BadUid {
    /// There is none.
    #[error("its UID is empty")]
    Empty,
    /// The spec's file name would be too long.
    #[error(
        "claim UID `{}` cannot be used: it has {} bytes, more than {MAX_UID} do not fit the name of its CDI \
         spec", quoted(.0.as_str()), .0.as_str().len()
    )]
    TooLong(ClaimUid),
    /// A CDI device name cannot hold it.
    #[error(
        "claim UID `{}` cannot be used: a CDI device name has only letters, digits, `_`, `-`, `.` and `:`, \
         and ends with a letter or digit", quoted(.0.as_str())
    )]
    Form(ClaimUid),
}

/// Checks that a claim can have a CDI device and a file of its own.
///
/// # Errors
/// Why it cannot.
pub fn check_uid(uid: &ClaimUid) -> Result<(), BadUid> {
    let text = uid.as_str();
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
    if text.is_empty() {
        Err(BadUid::Empty)
    } else if !text.chars().all(allowed) || !text.ends_with(|c: char| c.is_ascii_alphanumeric()) {
        Err(BadUid::Form(uid.clone()))
    } else if text.len() > MAX_UID {
        Err(BadUid::TooLong(uid.clone()))
    } else {
        Ok(())
    }
}

/// The name of a claim's spec file.
///
/// # Errors
/// When the UID cannot stand in a CDI device name or a file's.
pub fn spec_file_name(uid: &ClaimUid) -> Result<String, BadUid> {
    check_uid(uid)?;
    Ok(format!("{FILE_PREFIX}{uid}{SPEC_END}"))
}

/// The device's name inside its spec: `claim-<uid>`.
pub(super) fn device_name(uid: &ClaimUid) -> String {
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
        for bad in ["a/b", "../a", "a-", "a=b", "a b", "ä"] {
            assert_eq!(check_uid(&bad.into()), Err(BadUid::Form(bad.into())), "{bad}");
        }
        assert_eq!(check_uid(&"".into()), Err(BadUid::Empty));
    }

    #[test]
    fn a_uid_is_refused_when_a_file_name_made_of_it_would_be_too_long() {
        let longest = "a".repeat(MAX_UID);
        let name = spec_file_name(&longest.as_str().into()).unwrap();
        assert_eq!(format!("{name}{TEMP_END}").len(), NAME_MAX);
        let long = "a".repeat(MAX_UID + 1);
        let error = spec_file_name(&long.as_str().into()).unwrap_err();
        assert_eq!(error, BadUid::TooLong(long.as_str().into()));
        assert!(error.to_string().contains("it has 226 bytes, more than 225 do not fit"), "{error}");
        assert!(error.to_string().len() < 300, "{error}");
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
