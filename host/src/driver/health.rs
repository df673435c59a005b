use super::core::Driver;
use crate::device::Device;
use dracpu_cpuset::CpuSet;
use dracpu_ledger::{ClaimUid, Ledger, Part};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::watch;

/// So much of a text about a device is for its claims; the kubelet cuts a message at 1024 characters.
const MOST_BYTES_OF_CLAIMS: usize = 900;

/// How one device is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceHealth {
    /// Its pool.
    pub pool: String,
    /// Its name in the pool.
    pub device: String,
    /// What is wrong, for a person: which claims on it hold offline CPUs, and which. None = nothing is.
    ///
    /// Whoever shows it shows it on every claim of the device, so it names those that are hit.
    pub trouble: Option<String>,
}

/// How all devices are: those that are published, and those that only claims still have.
pub type DevicesHealth = Arc<Vec<DeviceHealth>>;

impl Driver {
    /// How the devices are, as it changes.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<DevicesHealth> {
        self.health.subscribe()
    }

    /// Claims, devices or online CPUs may have changed.
    pub(super) fn tell_health(&self, ledger: &Ledger) {
        let now = of_devices(&self.config.node_name, &self.devices().borrow(), ledger);
        self.health.send_if_modified(|health| {
            let changed = **health != now;
            if changed {
                *health = Arc::new(now);
            }
            changed
        });
    }
}

/// How the devices of a pool are.
pub(super) fn of_devices(pool: &str, published: &[Device], ledger: &Ledger) -> Vec<DeviceHealth> {
    let mut hit: BTreeMap<(&str, &str), Vec<String>> = BTreeMap::new();
    let mut claimed: Vec<(&str, &str)> = Vec::new();
    for (uid, booking) in ledger.bookings() {
        let mut offline: BTreeMap<(&str, &str), CpuSet> = BTreeMap::new();
        for part in &booking.parts {
            let devices = devices_of(part, pool, published);
            let gone = part.cpus.difference(&ledger.node().online);
            claimed.extend(&devices);
            for device in devices.into_iter().filter(|_| !gone.is_empty()) {
                offline.entry(device).or_default().extend_from(&gone);
            }
        }
        for (device, cpus) in offline {
            hit.entry(device).or_default().push(lost(uid, &booking.namespace, &booking.name, &cpus));
        }
    }
    let mut all: Vec<(&str, &str)> = published.iter().map(|device| (pool, device.name.as_str())).collect();
    claimed.sort_unstable();
    claimed.dedup();
    claimed.retain(|device| !all.contains(device));
    all.extend(claimed);
    let health = all.into_iter().map(|(pool, device)| DeviceHealth {
        pool: pool.to_owned(),
        device: device.to_owned(),
        trouble: hit.get(&(pool, device)).map(|claims| text(claims)),
    });
    health.collect()
}

/// The device of a part. Where only the CPUs are known: those published devices that have some of them.
fn devices_of<'a>(part: &'a Part, pool: &'a str, published: &'a [Device]) -> Vec<(&'a str, &'a str)> {
    if !part.device.is_empty() {
        return vec![(&part.pool, &part.device)];
    }
    let with_some = published.iter().filter(|device| !device.cpus.is_disjoint(&part.cpus));
    with_some.map(|device| (pool, device.name.as_str())).collect()
}

/// What a claim has lost.
fn lost(uid: &ClaimUid, namespace: &str, name: &str, cpus: &CpuSet) -> String {
    let word = if cpus.len() == 1 { "CPU" } else { "CPUs" };
    // One of which only the CPUs are known has no name.
    let claim = if name.is_empty() { uid.to_string() } else { format!("{namespace}/{name}") };
    format!("{word} {cpus} of claim {claim}")
}

fn text(claims: &[String]) -> String {
    let mut listed = String::new();
    let mut left = claims.len();
    for claim in claims {
        if !listed.is_empty() && listed.len() + claim.len() > MOST_BYTES_OF_CLAIMS {
            break;
        }
        if !listed.is_empty() {
            listed.push_str(", ");
        }
        listed.push_str(claim);
        left -= 1;
    }
    let others = if left > 0 { format!(" and of {left} more claims") } else { String::new() };
    let rest = if left > 0 { "" } else { "; claims that are not named have all their CPUs" };
    format!("offline: {listed}{others}{rest}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use dracpu_ledger::{Booking, Node};

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    fn device(name: &str, list: &str) -> Device {
        Device { name: name.to_owned(), cpus: cpus(list), attributes: BTreeMap::new(), capacity: None }
    }

    fn booking(name: &str, parts: &[(&str, &str)]) -> Booking {
        let part = |(device, list): &(&str, &str)| Part {
            pool: "n".to_owned(),
            device: (*device).to_owned(),
            cpus: cpus(list),
            ..Part::default()
        };
        let parts = parts.iter().map(part).collect();
        Booking { namespace: "ns".to_owned(), name: name.to_owned(), parts, ..Booking::default() }
    }

    fn ledger(claims: &[Booking], online: &str) -> Ledger {
        let node = |online: &str| Node { online: cpus(online), ..Node::default() };
        let mut ledger = Ledger::new(node("0-15"), 0);
        for claim in claims {
            ledger.adopt(format!("uid-{}", claim.name).into(), claim.clone());
        }
        ledger.replace_node(node(online));
        ledger
    }

    fn troubles(published: &[Device], ledger: &Ledger) -> Vec<(String, Option<String>)> {
        let all = of_devices("n", published, ledger).into_iter();
        all.map(|health| (health.device, health.trouble)).collect()
    }

    #[test]
    fn a_device_is_unhealthy_while_a_claim_on_it_holds_an_offline_cpu() {
        let claims = [
            booking("a", &[("d0", "0-1"), ("d1", "8-9")]),
            booking("b", &[("d0", "2-3")]),
            booking("c", &[("d0", "4")]),
        ];
        let published = [device("d0", "0-7"), device("d1", "8-15")];
        assert_eq!(
            troubles(&published, &ledger(&claims, "0-15")),
            [("d0".to_owned(), None), ("d1".to_owned(), None)]
        );
        let trouble = "offline: CPU 1 of claim ns/a, CPUs 2-3 of claim ns/b; claims that are not named have all their CPUs";
        assert_eq!(
            troubles(&published, &ledger(&claims, "0,4-15")),
            [("d0".to_owned(), Some(trouble.to_owned())), ("d1".to_owned(), None)]
        );
    }

    #[test]
    fn a_device_that_only_a_claim_still_has_is_reported_too() {
        let found = troubles(&[device("d1", "8-15")], &ledger(&[booking("a", &[("d0", "0-1")])], "8-15"));
        let trouble = "offline: CPUs 0-1 of claim ns/a; claims that are not named have all their CPUs";
        assert_eq!(found, [("d1".to_owned(), None), ("d0".to_owned(), Some(trouble.to_owned()))]);
    }

    #[test]
    fn a_claim_of_which_only_the_cpus_are_known_counts_where_its_cpus_are() {
        let plain = Booking::plain(cpus("0-1"));
        let found = troubles(&[device("d0", "0,2-7"), device("d1", "8-15")], &ledger(&[plain], "0,2-15"));
        let trouble = "offline: CPU 1 of claim uid-; claims that are not named have all their CPUs";
        assert_eq!(found, [("d0".to_owned(), Some(trouble.to_owned())), ("d1".to_owned(), None)]);
    }

    #[test]
    fn a_text_about_many_claims_fits_what_the_kubelet_shows() {
        let claims: Vec<String> =
            (0..50).map(|n| format!("CPU {n} of claim ns/{}", "x".repeat(60))).collect();
        let text = text(&claims);
        assert!(text.len() <= 1024 && text.ends_with(" more claims"), "{text}");
        let listed = text.matches("CPU ").count();
        assert!(text.contains(&format!("and of {} more", 50 - listed)), "{text}");
    }
}
