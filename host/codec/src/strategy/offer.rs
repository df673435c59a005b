//! What a strategy offers the scheduler, checked before any of it is published.

use crate::strategy::verify::{Lie, Rules};
use crate::strategy::{Attribute, Offer, answer, description};
use crate::words::plain;

/// Attributes of one offer. A device carries at most 32, of which the host needs half
/// (`resource.k8s.io`, `ResourceSliceMaxAttributesAndCapacitiesPerDevice`).
pub(super) const MOST_ATTRIBUTES: usize = 16;
/// Length of a text attribute (`DeviceAttributeMaxValueLength`).
const MOST_TEXT_BYTES: usize = 64;
/// Length of an attribute's domain and identifier (`DeviceMaxDomainLength`, `DeviceMaxIDLength`).
const MOST_DOMAIN_BYTES: usize = 63;
const MOST_IDENTIFIER_BYTES: usize = 32;

impl Rules {
    /// The offers, if each keeps the rules.
    ///
    /// # Errors
    /// The rule that one breaks.
    pub fn offers(&self, offers: Vec<answer::Offer>) -> Result<Vec<Offer>, Lie> {
        if offers.len() != self.groups.len() {
            return Err(Lie::OfferCount { offers: offers.len(), groups: self.groups.len() });
        }
        let pairs = offers.into_iter().zip(&self.groups);
        pairs.map(|(offer, (group, cpus))| checked(offer, group, cpus.len())).collect()
    }
}

fn checked(offer: answer::Offer, group: &str, size: usize) -> Result<Offer, Lie> {
    let answer::Offer { capacity, step, attributes } = offer;
    if usize::try_from(capacity).map_or(true, |capacity| capacity > size) {
        return Err(Lie::Capacity { group: group.to_owned(), capacity, size });
    }
    if step == 0 {
        return Err(Lie::Step { group: group.to_owned() });
    }
    if attributes.len() > MOST_ATTRIBUTES {
        return Err(Lie::Attributes { group: group.to_owned(), count: attributes.len() });
    }
    let mut checked: Vec<(String, Attribute)> = Vec::with_capacity(attributes.len());
    for (name, value) in attributes {
        let lie = |why| Lie::Attribute { group: group.to_owned(), name: plain(&name), why };
        name_is_own(&name).map_err(lie)?;
        if checked.iter().any(|(other, _)| *other == name) {
            return Err(lie("given twice"));
        }
        let value = attribute(value).map_err(lie)?;
        checked.push((name, value));
    }
    Ok(Offer { capacity, step, attributes: checked })
}

fn attribute(value: answer::Attribute) -> Result<Attribute, &'static str> {
    match value {
        answer::Attribute::Int(int) => Ok(Attribute::Int(int)),
        answer::Attribute::Truth(truth) => Ok(Attribute::Bool(truth)),
        answer::Attribute::Text(text) if text.len() > MOST_TEXT_BYTES => Err("a text of more than 64 bytes"),
        answer::Attribute::Text(text) => Ok(Attribute::Text(text)),
        answer::Attribute::Version(version) if version.len() > MOST_TEXT_BYTES => {
            Err("a version of more than 64 bytes")
        }
        answer::Attribute::Version(version) if !description::is_semantic_version(&version) => {
            Err("not a semantic version")
        }
        answer::Attribute::Version(version) => Ok(Attribute::Version(version)),
    }
}

/// `domain/identifier`, in a domain that is neither the host's nor Kubernetes' own.
fn name_is_own(name: &str) -> Result<(), &'static str> {
    let (domain, identifier) =
        name.split_once('/').ok_or("not qualified; write domain/name with your own domain")?;
    let labels = domain.split('.').all(description::is_dns_label);
    if domain.len() > MOST_DOMAIN_BYTES || !labels || !domain.contains('.') {
        return Err("its domain is not a DNS name of at most 63 bytes");
    }
    let under =
        |owner: &str| domain == owner || domain.strip_suffix(owner).is_some_and(|sub| sub.ends_with('.'));
    if under("kubernetes.io") || under("k8s.io") || domain == crate::DRIVER_NAME {
        return Err("its domain belongs to Kubernetes or to the driver; use your own");
    }
    // A C identifier: API validation of `QualifiedName` in `resource.k8s.io`.
    let mut chars = identifier.chars();
    let starts = chars.next().is_some_and(|char| char.is_ascii_alphabetic() || char == '_');
    if identifier.len() > MOST_IDENTIFIER_BYTES
        || !starts
        || !chars.all(|char| char.is_ascii_alphanumeric() || char == '_')
    {
        return Err("the part behind `/` is not an identifier of at most 32 bytes");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dracpu_cpuset::CpuSet;

    fn rules() -> Rules {
        Rules {
            online: CpuSet::from([0, 1, 2, 3]),
            reserved: CpuSet::new(),
            groups: vec![("cpudevnuma000".to_owned(), CpuSet::from([0, 1, 2, 3]))],
            nodes: Vec::new(),
        }
    }

    fn offer(capacity: u32, step: u32, attributes: &[(&str, answer::Attribute)]) -> answer::Offer {
        let attributes = attributes.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect();
        answer::Offer { capacity, step, attributes }
    }

    #[test]
    fn honest_offers_pass() {
        let given = offer(4, 2, &[("example.org/rank", answer::Attribute::Int(-1))]);
        let offers = rules().offers(vec![given]).unwrap();
        assert_eq!(offers[0].attributes, [("example.org/rank".to_owned(), Attribute::Int(-1))]);
        assert_eq!((offers[0].capacity, offers[0].step), (4, 2));
    }

    #[test]
    fn offers_must_be_one_per_group_within_its_size() {
        let group = || "cpudevnuma000".to_owned();
        assert_eq!(rules().offers(Vec::new()), Err(Lie::OfferCount { offers: 0, groups: 1 }));
        let capacity = Lie::Capacity { group: group(), capacity: 5, size: 4 };
        assert_eq!(rules().offers(vec![offer(5, 1, &[])]), Err(capacity));
        assert_eq!(rules().offers(vec![offer(4, 0, &[])]), Err(Lie::Step { group: group() }));
    }

    #[test]
    fn attributes_must_be_in_the_authors_own_domain_and_within_the_limits_of_the_api() {
        let int = answer::Attribute::Int(1);
        for (name, value) in [
            ("rank", int.clone()),
            ("dra.cpu/rank", int.clone()),
            ("resource.kubernetes.io/rank", int.clone()),
            ("k8s.io/rank", int.clone()),
            ("Example.org/rank", int.clone()),
            ("example.org/1rank", int.clone()),
            ("example.org/", int),
            ("example.org/text", answer::Attribute::Text("x".repeat(65))),
            ("example.org/version", answer::Attribute::Version("1.0".to_owned())),
        ] {
            let answer = rules().offers(vec![offer(4, 1, &[(name, value)])]);
            assert!(matches!(answer, Err(Lie::Attribute { .. })), "{name}: {answer:?}");
        }
        let twice =
            [("example.org/a", answer::Attribute::Int(1)), ("example.org/a", answer::Attribute::Int(2))];
        assert!(matches!(
            rules().offers(vec![offer(4, 1, &twice)]),
            Err(Lie::Attribute { why: "given twice", .. })
        ));
    }
}
