//! What a strategy says: decisions, offers, refusals, and what it says of itself.

use crate::cdi::cpus;
use crate::{Target, is_short, text};
use arbitrary::{Arbitrary as _, Result, Unstructured};
use dracpu_codec::strategy::answer::{Attribute, Decision, Denial, Description, Grant, Offer};
use dracpu_codec::strategy::verify::{MemoryNode, Rules};
use dracpu_codec::strategy::{ExplicitCpuset, Reason, Request, State, denial, description};
use dracpu_cpuset::CpuSet;
use serde_json::Map;
use std::collections::BTreeSet;

pub(crate) const DECISIONS: Target = Target {
    name: "decisions",
    check: |input| ignored(decisions(input)),
    fixed_kib: 256,
    per_byte: 4096,
    words: &[],
};

pub(crate) const OFFERS: Target = Target {
    name: "offers",
    check: |input| ignored(offers(input)),
    fixed_kib: 256,
    per_byte: 2048,
    words: &["example.org/a", "dra.cpu/a", "k8s.io/", "1.0.0", "a.b/c"],
};

pub(crate) const DESCRIPTIONS: Target = Target {
    name: "descriptions",
    check: descriptions,
    // A schema's patterns are compiled; so is the schema of schemas.
    fixed_kib: 64 << 10,
    per_byte: 64 << 10,
    words: &[
        "packed",
        "\n1.0.0\n",
        "{\"type\":\"object\"",
        "\"properties\":{\"a\":",
        "{\"type\":\"integer\"}",
        "\"$ref\":\"#\"",
        "\"$defs\":{\"a\":",
        "\"$ref\":\"#/$defs/a\"",
        "\"pattern\":\"a*\"",
        "\"allOf\":[",
        "\"anyOf\":[",
        "\"not\":",
        "\"enum\":[",
        "\"additionalProperties\":false",
        "\"const\":",
        "\"$dynamicRef\":\"#a\"",
        "\"$anchor\":\"a\"",
        "{",
        "}",
        "[",
        "]",
        ",",
        "\n",
    ],
};

/// What ends early had too few bytes.
fn ignored(_: Result<()>) {}

/// A machine, a question and an answer; the answer is taken if and only if it keeps the rules as the interface
/// states them.
fn decisions(input: &[u8]) -> Result<()> {
    let u = &mut Unstructured::new(input);
    let rules = rules(u)?;
    let mut requests = Vec::new();
    for at in 0..u.int_in_range(0..=3_usize)? {
        requests.push(Request {
            name: format!("r{at}"),
            group: u.int_in_range(0..=3)?,
            count: u.int_in_range(0..=5)?,
            cpuset: None,
            options: Map::new(),
            pcie_roots: Vec::new(),
        });
    }
    let state =
        State { free: cpus(u)?.intersection(&rules.online).difference(&rules.reserved), others: Vec::new() };
    let mut grants = Vec::new();
    for request in &requests {
        // Mostly right, or most answers would fail for the same reason.
        let members = rules
            .groups
            .get(request.group)
            .map(|(_, cpus)| cpus.intersection(&state.free))
            .unwrap_or_default();
        let right: CpuSet = members.iter().take(request.count as usize).collect();
        grants.push(Grant {
            cpus: words(u, right)?,
            blocked: words(u, CpuSet::new())?,
            mems: Vec::arbitrary(u)?,
        });
    }
    if u.ratio(1, 20)? {
        grants.pop();
    }
    let said = Decision { grants, join_shared_pool: bool::arbitrary(u)?, why: String::arbitrary(u)? };
    let right = keeps_the_rules(&rules, &requests, &state, &said);
    match rules.decision(&requests, &state, said.clone()) {
        Ok(decision) => {
            assert!(right, "taken: {said:?}");
            assert_eq!(
                (decision.grants.len(), decision.join_shared_pool),
                (requests.len(), said.join_shared_pool)
            );
            is_plain(&decision.why);
            for (grant, said) in decision.grants.iter().zip(&said.grants) {
                assert_eq!((grant.cpus.words(), grant.blocked.words()), (&*said.cpus, &*said.blocked));
                let known: BTreeSet<u32> = rules
                    .nodes
                    .iter()
                    .filter_map(|node| match node {
                        MemoryNode::Id(id) => Some(*id),
                        MemoryNode::Empty | MemoryNode::Unknown => None,
                    })
                    .collect();
                assert!(grant.mems.windows(2).all(|pair| pair[0] < pair[1]));
                assert!(grant.mems.iter().all(|node| known.contains(node)));
            }
        }
        Err(lie) => {
            assert!(!right, "refused: {lie} in {said:?}");
            is_short(&lie);
        }
    }
    let asked = requests.len();
    let (reason, request, message) =
        (Reason::NoFit, Option::<u8>::arbitrary(u)?.map(u32::from), String::arbitrary(u)?);
    match denial(Denial { reason, request, message }, asked) {
        Ok(denial) => {
            assert!(request.is_none_or(|at| (at as usize) < asked));
            is_plain(&denial.message);
        }
        Err(lie) => {
            assert!(request.is_some_and(|at| at as usize >= asked));
            is_short(&lie);
        }
    }
    Ok(())
}

fn rules(u: &mut Unstructured<'_>) -> Result<Rules> {
    let online = cpus(u)?;
    let reserved = cpus(u)?;
    let usable = online.difference(&reserved);
    let at = u.int_in_range(0..=64_usize)?;
    let halves = [usable.iter().take(at).collect(), usable.iter().skip(at).collect()];
    let groups = halves.into_iter().zip(["a", "b"]).map(|(cpus, name)| (name.to_owned(), cpus)).collect();
    let nodes = Vec::<Option<Option<u32>>>::arbitrary(u)?.into_iter().map(|node| match node {
        Some(Some(id)) => MemoryNode::Id(id),
        Some(None) => MemoryNode::Empty,
        None => MemoryNode::Unknown,
    });
    Ok(Rules { online, reserved, groups, nodes: nodes.collect() })
}

/// The right set, or anything else.
fn words(u: &mut Unstructured<'_>, right: CpuSet) -> Result<Vec<u64>> {
    Ok(match u.int_in_range(0..=9)? {
        0 => Vec::arbitrary(u)?,
        1 => cpus(u)?.into_words(),
        2 => right.union(&cpus(u)?).into_words(),
        3 => [right.into_words(), vec![0]].concat(),
        _ => right.into_words(),
    })
}

/// The rules once more, CPU by CPU.
fn keeps_the_rules(rules: &Rules, requests: &[Request], state: &State, said: &Decision) -> bool {
    let members = |words: &[u64]| -> Option<BTreeSet<u32>> {
        if words.last() == Some(&0) {
            return None;
        }
        let bits = words
            .iter()
            .zip(0u32..)
            .flat_map(|(word, at)| (0..64).map(move |bit| (word >> bit & 1, 64 * at + bit)));
        let cpus: BTreeSet<u32> = bits.filter(|(bit, _)| *bit == 1).map(|(_, cpu)| cpu).collect();
        cpus.last().is_none_or(|last| *last <= 8191).then_some(cpus)
    };
    let mut given = BTreeSet::new();
    let mut take = |cpus: &BTreeSet<u32>| {
        cpus.iter().all(|cpu| {
            let free =
                rules.online.contains(*cpu) && !rules.reserved.contains(*cpu) && state.free.contains(*cpu);
            free && given.insert(*cpu)
        })
    };
    said.grants.len() == requests.len()
        && requests.iter().zip(&said.grants).all(|(request, grant)| {
            let (Some(cpus), Some(blocked)) = (members(&grant.cpus), members(&grant.blocked)) else {
                return false;
            };
            let group = rules.groups.get(request.group).map(|(_, cpus)| cpus.clone()).unwrap_or_default();
            cpus.len() == request.count as usize
                && cpus.iter().all(|cpu| group.contains(*cpu))
                && take(&cpus)
                && take(&blocked)
                && grant.mems.iter().all(|at| (*at as usize) < rules.nodes.len())
        })
}

/// Words of a guest are one line that hides nothing.
fn is_plain(text: &str) {
    assert!(!text.chars().any(|c| c.is_control() || ('\u{202a}'..='\u{202e}').contains(&c)), "{text:?}");
    assert!(text.len() < 16 << 10);
}

/// Offers for the groups of a machine.
fn offers(input: &[u8]) -> Result<()> {
    let u = &mut Unstructured::new(input);
    let rules = rules(u)?;
    let mut said = Vec::new();
    let count = rules.groups.len() - usize::from(u.ratio(1, 20)?);
    for (_, cpus) in rules.groups.iter().take(count) {
        let capacity =
            if u.ratio(1, 8)? { u32::arbitrary(u)? } else { u32::try_from(cpus.len()).unwrap_or(0) };
        let mut attributes = Vec::new();
        for _ in 0..u.int_in_range(0..=17)? {
            attributes.push((name(u)?, attribute(u)?));
        }
        said.push(Offer { capacity, step: u.int_in_range(0..=3)?, attributes });
    }
    match rules.offers(said.clone()) {
        Ok(offers) => {
            assert_eq!(offers.len(), rules.groups.len());
            for ((offer, said), (_, cpus)) in offers.iter().zip(&said).zip(&rules.groups) {
                assert_eq!(
                    (offer.capacity, offer.step, offer.attributes.len()),
                    (said.capacity, said.step, said.attributes.len())
                );
                assert!(
                    offer.capacity as usize <= cpus.len() && offer.step > 0 && offer.attributes.len() <= 16
                );
                let names: BTreeSet<&str> = offer.attributes.iter().map(|(name, _)| name.as_str()).collect();
                assert_eq!(names.len(), offer.attributes.len());
                for name in names {
                    let (domain, id) = name.split_once('/').expect("it is qualified");
                    assert!(domain.len() <= 63 && domain.contains('.') && domain != "dra.cpu", "{name}");
                    assert!(
                        !domain.ends_with("k8s.io")
                            || domain.ends_with("-k8s.io")
                            || !domain.ends_with(".k8s.io"),
                        "{name}"
                    );
                    assert!(
                        (1..=32).contains(&id.len())
                            && id.chars().all(|c| c.is_ascii_alphanumeric() || c == '_'),
                        "{name}"
                    );
                }
            }
        }
        Err(lie) => is_short(&lie),
    }
    Ok(())
}

fn name(u: &mut Unstructured<'_>) -> Result<String> {
    Ok(match u.int_in_range(0..=7)? {
        0 => String::arbitrary(u)?,
        1 => format!("example.org/{}", String::arbitrary(u)?),
        2 => format!("{}/a", String::arbitrary(u)?),
        3 => format!("{}.k8s.io/a", String::arbitrary(u)?),
        _ => format!("example.org/a{}", u8::arbitrary(u)?),
    })
}

fn attribute(u: &mut Unstructured<'_>) -> Result<Attribute> {
    Ok(match u.int_in_range(0..=4)? {
        0 => Attribute::Text(String::arbitrary(u)?),
        1 => Attribute::Version(String::arbitrary(u)?),
        2 => Attribute::Version("1.2.3".to_owned()),
        3 => Attribute::Truth(bool::arbitrary(u)?),
        _ => Attribute::Int(i64::arbitrary(u)?),
    })
}

/// A name, a version, a summary, a schema and options for it, one a line.
fn descriptions(input: &[u8]) {
    let mut lines = text(input).split('\n').map(str::to_owned);
    let mut next = || lines.next().unwrap_or_default();
    let (name, version, summary, options_schema, options) = (next(), next(), next(), next(), next());
    let said = Description {
        name: name.clone(),
        version,
        summary,
        options_schema,
        explicit_cpuset: ExplicitCpuset::Accepted,
        publishes: lines.clone().take(2).collect(),
        needs: lines.skip(2).take(2).collect(),
    };
    match description::checked(said) {
        Ok((description, schema)) => {
            assert!(description.name == name && description::is_dns_label(&name));
            is_plain(&description.summary);
            if let Ok(options) = serde_json::from_str(&options)
                && let Err(error) = schema.check(&options, || "request r".to_owned())
            {
                assert!(!error.mistakes.is_empty());
                is_short(&error);
            }
        }
        Err(fault) => is_short(&fault),
    }
}
