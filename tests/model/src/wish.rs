//! What claims ask for.

use crate::event::{NewClaim, Opaque, Request};
use crate::story::uid;
use crate::truth::Truth;
use dracpu_cpuset::CpuSet;
use proptest::prelude::*;
use serde_json::{Value, json};

const OPTIONS: [&str; 8] = [
    r#"{"isolate":"core"}"#,
    r#"{"isolate":"cache"}"#,
    r#"{"threads":"one"}"#,
    r#"{"mixed":true}"#,
    r#"{"full-pcpus-only":true}"#,
    r#"{"isolated":"include"}"#,
    r#"{"isolated":"only"}"#,
    r#"{"memory":"near"}"#,
];

/// What a claim asks for.
#[derive(Debug, Clone)]
pub struct Wish {
    device: u8,
    size: Size,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Size {
    Few(u8),
    Half,
    AllFree,
    AllButFloor,
}

#[derive(Debug, Clone)]
enum Kind {
    Plain,
    Two { other: u8, size: Size },
    WithForeign,
    OnlyForeign,
    Options(u8, bool),
    Cpuset,
    Overlapping,
    Wrong(u8),
}

fn size() -> impl Strategy<Value = Size> {
    prop_oneof![
        6 => (1..6u8).prop_map(Size::Few),
        1 => Just(Size::Half),
        1 => Just(Size::AllFree),
        1 => Just(Size::AllButFloor),
    ]
}

/// A wish.
pub(crate) fn wish() -> impl Strategy<Value = Wish> {
    let kind = prop_oneof![
        12 => Just(Kind::Plain),
        2 => (any::<u8>(), size()).prop_map(|(other, size)| Kind::Two { other, size }),
        1 => Just(Kind::WithForeign),
        1 => Just(Kind::OnlyForeign),
        4 => (any::<u8>(), any::<bool>()).prop_map(|(options, class)| Kind::Options(options, class)),
        1 => Just(Kind::Cpuset),
        1 => Just(Kind::Overlapping),
        2 => any::<u8>().prop_map(Kind::Wrong),
    ];
    (any::<u8>(), size(), kind).prop_map(|(device, size, kind)| Wish { device, size, kind })
}

impl Wish {
    /// The claim with this wish; as it was, while it has what it asked for.
    pub(crate) fn of(&self, claim: u8, truth: &Truth) -> NewClaim {
        let uid = uid(claim);
        if let Some(known) = truth.claims.get(&uid) {
            let has = known.cpus().is_some();
            if has && known.object.is_some() {
                return NewClaim { claim: uid, ..NewClaim::default() };
            }
            if has {
                return known.last.clone();
            }
        }
        let offer = Offer::of(truth);
        let mut requests = offer.results("r", self.device, self.size);
        let foreign = || Request {
            name: "g".to_owned(),
            driver: Some("gpu.example.com".to_owned()),
            device: offer.devices[offer.pick(self.device)].0.clone(),
            cpus: Some("1".to_owned()),
            ..Request::default()
        };
        let mut config = None;
        let mut names_cpus = truth.text("allocator") == "external" && !truth.is_individual();
        match &self.kind {
            Kind::Plain => {}
            Kind::Two { other, size } => {
                let others = offer.results("s", *other, *size);
                // A scheduler gives a device that is a CPU once.
                let taken = |other: &Request| requests.iter().any(|r| r.device == other.device);
                let others: Vec<Request> =
                    others.into_iter().filter(|other| !truth.is_individual() || !taken(other)).collect();
                requests.extend(others);
            }
            Kind::WithForeign => requests.push(foreign()),
            Kind::OnlyForeign => requests = vec![foreign()],
            Kind::Options(which, class) => {
                let options: Value =
                    serde_json::from_str(OPTIONS[usize::from(*which) % OPTIONS.len()]).unwrap();
                let source = if *class { "FromClass" } else { "FromClaim" }.to_owned();
                config =
                    Some(vec![Opaque { source, requests: vec![], cpu_config: json!({"options": options}) }]);
            }
            Kind::Cpuset => names_cpus = !names_cpus,
            Kind::Overlapping if truth.is_individual() => requests.push(requests[0].clone()),
            Kind::Overlapping => {
                let count = usize::try_from(requests[0].count().unwrap_or(1)).unwrap();
                let all: CpuSet = offer.cpus(&requests[0].device).iter().take(count).collect();
                requests[0].cpuset = Some(all.to_string());
                names_cpus = false;
            }
            Kind::Wrong(which) => match which % 9 {
                0 => requests[0].cpus = None,
                1 => requests[0].cpus = Some("0".to_owned()),
                2 => requests[0].cpus = Some("1500m".to_owned()),
                3 => requests[0].cpus = Some("-1".to_owned()),
                4 => requests[0].device = "cpudevnuma999".to_owned(),
                5 => requests[0].pool = Some("another-node".to_owned()),
                6 => requests[0].cpus = Some((offer.cpus(&requests[0].device).len() + 1).to_string()),
                7 => requests[0].cpus = Some("2000m".to_owned()),
                _ => {
                    config = Some(vec![Opaque {
                        source: "FromClass".to_owned(),
                        requests: vec![],
                        cpu_config: json!({"cpuset": "0-1"}),
                    }]);
                }
            },
        }
        if names_cpus {
            offer.name_cpus(&mut requests);
        }
        NewClaim { claim: uid, requests: Some(requests), config }
    }
}

/// What a scheduler sees of the node.
struct Offer<'a> {
    truth: &'a Truth,
    devices: Vec<(String, CpuSet)>,
}

impl<'a> Offer<'a> {
    fn of(truth: &'a Truth) -> Self {
        Self { truth, devices: truth.devices().into_iter().collect() }
    }

    fn pick(&self, device: u8) -> usize {
        usize::from(device) % self.devices.len()
    }

    /// CPUs of a device, as far as a claim can ever have them.
    fn cpus(&self, device: &str) -> CpuSet {
        let found = self.devices.iter().find(|(name, _)| name == device);
        found.map(|(_, cpus)| cpus.clone()).unwrap_or_default()
    }

    /// Those that nobody has.
    fn free(&self, device: &str) -> CpuSet {
        self.cpus(device).difference(&self.truth.machine.isolated).difference(&self.truth.booked())
    }

    fn count(&self, free: usize, size: Size) -> usize {
        match size {
            Size::Few(count) => usize::from(count),
            Size::Half => free.div_ceil(2).max(1),
            Size::AllFree => free.max(1),
            Size::AllButFloor => free.saturating_sub(self.truth.floor()).max(1),
        }
    }

    /// The allocation results of a request: CPUs of one device, or as many devices.
    fn results(&self, name: &str, device: u8, size: Size) -> Vec<Request> {
        let at = self.pick(device);
        let result = |device: &str, cpus: Option<usize>| Request {
            name: name.to_owned(),
            device: device.to_owned(),
            cpus: cpus.map(|cpus| cpus.to_string()),
            ..Request::default()
        };
        if !self.truth.is_individual() {
            let (device, _) = &self.devices[at];
            return vec![result(device, Some(self.count(self.free(device).len(), size)))];
        }
        let (before, behind) = self.devices.split_at(at);
        let names = behind.iter().chain(before).map(|(name, _)| name);
        // Few: as they come, whoever has them. The scheduler may know less than the driver.
        let any = matches!(size, Size::Few(_));
        let names: Vec<&String> = names.filter(|name| any || !self.free(name).is_empty()).collect();
        let chosen = names.iter().take(self.count(names.len(), size)).map(|name| result(name, None));
        let chosen: Vec<Request> = chosen.collect();
        if chosen.is_empty() { vec![result(&self.devices[at].0, None)] } else { chosen }
    }

    /// Each result of ours names as many free CPUs as it asks for.
    fn name_cpus(&self, requests: &mut [Request]) {
        let mut taken = CpuSet::new();
        for request in requests.iter_mut().filter(|request| request.driver.is_none()) {
            let count = request.count().and_then(|count| usize::try_from(count).ok()).unwrap_or(1);
            let own: CpuSet = self.free(&request.device).difference(&taken).iter().take(count).collect();
            taken.extend_from(&own);
            request.cpuset = Some(own.to_string());
        }
    }
}
