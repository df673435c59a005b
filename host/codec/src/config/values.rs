//! How single values are written: addresses, durations, names, digests.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

/// The built-in strategy that is active unless another one is named.
pub(super) const PACKED: &str = "packed";
/// What the Go driver calls it.
pub(super) const PACKED_ALIAS: &str = "cpumanager";
/// The built-in strategy that takes the claim's own cpuset.
pub(super) const EXTERNAL: &str = "external";
/// The strategies that come with the daemon: they need no file.
pub const BUILT_IN: [&str; 3] = [EXTERNAL, "llc-first", PACKED];

/// What a strategy that goes by this name calls itself.
#[must_use]
pub fn strategy_name(name: String) -> String {
    if name == PACKED_ALIAS { PACKED.to_owned() } else { name }
}

/// `:8080`, `127.0.0.1:8080`, `[::1]:8080`, `localhost:8080`: HOST:PORT as Go's `net.Listen` has it. An
/// empty host is every address of the machine.
pub(super) fn bind_address(text: &str) -> Option<SocketAddr> {
    let (host, port) = text.rsplit_once(':')?;
    let port: u16 = port.parse().ok()?;
    match host {
        "" => Some((Ipv6Addr::UNSPECIFIED, port).into()),
        "localhost" => Some((Ipv4Addr::LOCALHOST, port).into()),
        _ => text.parse().ok(),
    }
}

/// `30s`, `1m30s`, `500ms`: whole numbers with units as Go's `time.ParseDuration` has them.
pub(super) fn duration(text: &str) -> Option<Duration> {
    if text == "0" {
        return Some(Duration::ZERO);
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let (number, tail) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit())?);
        let (unit, tail) = tail.split_at(tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len()));
        let millis: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            _ => return None,
        };
        let part = number.parse::<u64>().ok()?.checked_mul(millis)?;
        total = total.checked_add(Duration::from_millis(part))?;
        rest = tail;
    }
    (!text.is_empty()).then_some(total)
}

/// `true`, `T`, `1`, `false`, …: what Go's `strconv.ParseBool` takes.
pub(super) fn go_bool(text: &str) -> Result<bool, String> {
    match text {
        "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
        "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
        _ => Err("write true or false".to_owned()),
    }
}

/// Labels joined by `.`, at most 253 characters: what the API server takes as the name of a node. It does
/// not limit the single label.
pub(super) fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_label)
}

fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// `sha256:` and 64 lower-case hex digits.
pub(super) fn is_sha256(text: &str) -> bool {
    let hex = |c: char| c.is_ascii_digit() || ('a'..='f').contains(&c);
    text.strip_prefix("sha256:").is_some_and(|digest| digest.len() == 64 && digest.chars().all(hex))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_host_and_port() {
        let cases = [
            (":8080", Some("[::]:8080")),
            ("127.0.0.1:0", Some("127.0.0.1:0")),
            ("[::1]:80", Some("[::1]:80")),
            ("localhost:80", Some("127.0.0.1:80")),
            ("8080", None),
            ("", None),
            (":", None),
            (":http", None),
            (":65536", None),
            ("example.org:80", None),
            ("::1:80:x", None),
        ];
        for (text, wanted) in cases {
            assert_eq!(bind_address(text).map(|address| address.to_string()).as_deref(), wanted, "{text}");
        }
    }

    #[test]
    fn durations_have_units() {
        let cases = [
            ("30s", Some(30_000)),
            ("1m30s", Some(90_000)),
            ("500ms", Some(500)),
            ("0", Some(0)),
            ("0s", Some(0)),
            ("1h", Some(3_600_000)),
            ("", None),
            ("30", None),
            ("s", None),
            ("-1s", None),
            ("1.5s", None),
            ("99999999999999999999s", None),
            ("18446744073709551615h", None),
            ("1s1", None),
        ];
        for (text, wanted) in cases {
            assert_eq!(duration(text), wanted.map(Duration::from_millis), "{text}");
        }
    }

    #[test]
    fn names_are_dns_names() {
        for good in ["a", "node-1", "0"] {
            assert!(crate::strategy::description::is_dns_label(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", &"a".repeat(64)] {
            assert!(!crate::strategy::description::is_dns_label(bad), "{bad}");
        }
        assert!(is_dns_subdomain("node-1.example.org"));
        assert!(!is_dns_subdomain("node..org"));
        assert!(!is_dns_subdomain(""));
    }
}
