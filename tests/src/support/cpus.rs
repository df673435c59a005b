//! Sets of CPUs as the kernel prints and reads them, written apart from the driver's own type.

use anyhow::{Context, Result, ensure};
use std::collections::BTreeSet;

/// A set of logical CPUs.
pub type Cpus = BTreeSet<u32>;

/// Reads `0-3,8`. As the kernel does, blank text is the empty set; unlike the kernel, no strides.
///
/// # Errors
/// Any other text.
pub fn parse(text: &str) -> Result<Cpus> {
    let mut cpus = Cpus::new();
    for field in text.trim().split(',').filter(|field| !text.trim().is_empty() || !field.is_empty()) {
        let (first, last) = field.split_once('-').unwrap_or((field, field));
        let number = |digits: &str| -> Result<u32> {
            ensure!(digits.bytes().all(|b| b.is_ascii_digit()), "`{digits}` in `{text}` is not a CPU number");
            digits.parse().with_context(|| format!("`{digits}` in `{text}` is not a CPU number"))
        };
        let (first, last) = (number(first)?, number(last)?);
        ensure!(first <= last, "the range {first}-{last} in `{text}` runs backwards");
        cpus.extend(first..=last);
    }
    Ok(cpus)
}

/// Prints ascending, with runs as `a-b`.
#[must_use]
pub fn list(cpus: &Cpus) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &cpu in cpus {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => runs.push((cpu, cpu)),
        }
    }
    let texts = runs.iter().map(|(a, b)| if a == b { a.to_string() } else { format!("{a}-{b}") });
    texts.collect::<Vec<_>>().join(",")
}

/// [`parse`] for text that is right by construction.
///
/// # Panics
/// When it is not.
#[must_use]
pub fn cpus(text: &str) -> Cpus {
    parse(text).unwrap()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_as_the_kernel_prints_them() {
        for (text, wanted) in [("", vec![]), ("\n", vec![]), ("0-3,8\n", vec![0, 1, 2, 3, 8]), ("7", vec![7])]
        {
            assert_eq!(parse(text).unwrap(), Cpus::from_iter(wanted), "{text:?}");
        }
        for text in ["a", "3-1", "1,,2", "1-", "-1", "+1", "0x1", "1,"] {
            assert!(parse(text).is_err(), "{text:?}");
        }
        assert_eq!(list(&cpus("1,0,2,5,6,9")), "0-2,5-6,9");
    }
}
