//! Quantities as the API carries them. Source: `k8s.io/apimachinery/pkg/api/resource/quantity.go`.

use crate::words::quoted;

/// Why a quantity is not a number of CPUs that a claim can have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QuantityFault {
    /// Not in the format.
    #[error("`{}` is not a quantity", quoted(.0))]
    NotAQuantity(String),
    /// Zero, or less.
    #[error("{} CPUs cannot be given; ask for at least 1", quoted(.0))]
    NotPositive(String),
    /// A fraction.
    #[error("{} is not a whole number of CPUs; exclusive CPUs come whole", quoted(.0))]
    NotWhole(String),
    /// More than any machine has.
    #[error("{} CPUs are more than any machine has", quoted(.0))]
    TooLarge(String),
}

/// A positive whole number of CPUs.
///
/// # Errors
/// [`QuantityFault`] for every other text.
pub fn whole_cpus(text: &str) -> Result<u32, QuantityFault> {
    let fault = |make: fn(String) -> QuantityFault| make(text.to_owned());
    let negative = text.starts_with('-');
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let end = unsigned.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
        return Err(fault(QuantityFault::NotAQuantity));
    }
    let (exponent, factor) = scale(suffix).ok_or_else(|| fault(QuantityFault::NotAQuantity))?;
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() || negative {
        return Err(fault(QuantityFault::NotPositive));
    }
    // A fraction only counts where it is not zeros.
    let significant = digits.trim_end_matches('0');
    let zeros = digits.len() - significant.len();
    let places = i64::try_from(fraction.len()).unwrap_or(i64::MAX);
    let exponent = exponent.saturating_sub(places).saturating_add(i64::try_from(zeros).unwrap_or(i64::MAX));
    let mantissa = significant.parse::<u128>().ok().and_then(|number| number.checked_mul(factor));
    let Some(mantissa) = mantissa else {
        // More digits than can be counted: unless ten of them stand before the point, it is what follows that is wrong.
        let before_the_point = exponent.saturating_add(i64::try_from(significant.len()).unwrap_or(i64::MAX));
        let fraction = exponent < 0 && before_the_point <= 10;
        return Err(fault(if fraction { QuantityFault::NotWhole } else { QuantityFault::TooLarge }));
    };
    let power = |by: i64| u32::try_from(by).ok().and_then(|by| 10_u128.checked_pow(by));
    let value = if exponent >= 0 {
        power(exponent).and_then(|power| mantissa.checked_mul(power))
    } else {
        match power(exponent.saturating_neg()) {
            Some(power) if mantissa % power == 0 => Some(mantissa / power),
            _ => return Err(fault(QuantityFault::NotWhole)),
        }
    };
    value.and_then(|value| u32::try_from(value).ok()).ok_or_else(|| fault(QuantityFault::TooLarge))
}

/// The power of ten and the binary factor of a suffix.
fn scale(suffix: &str) -> Option<(i64, u128)> {
    let decimal = |exponent| Some((exponent, 1));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => Some((0, 1 << 10)),
        "Mi" => Some((0, 1 << 20)),
        "Gi" => Some((0, 1 << 30)),
        "Ti" => Some((0, 1 << 40)),
        "Pi" => Some((0, 1 << 50)),
        "Ei" => Some((0, 1 << 60)),
        _ => decimal(suffix.strip_prefix(['e', 'E'])?.parse().ok()?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_positive_whole_numbers_pass() {
        for (text, cpus) in [
            ("1", 1),
            ("2", 2),
            ("+2", 2),
            ("2.0", 2),
            ("1000m", 1),
            ("3000000u", 3),
            ("1e1", 10),
            ("20e-1", 2),
            ("0.5e1", 5),
            ("1k", 1000),
            ("1Ki", 1024),
            ("0.5Ki", 512),
            ("08", 8),
        ] {
            assert_eq!(whole_cpus(text), Ok(cpus), "{text}");
        }
    }

    #[test]
    fn everything_else_is_told_apart_and_the_value_is_in_the_text() {
        use QuantityFault::{NotAQuantity, NotPositive, NotWhole, TooLarge};
        type Case = (&'static str, fn(String) -> QuantityFault);
        let cases: [Case; 26] = [
            ("0", NotPositive),
            ("0m", NotPositive),
            ("-1", NotPositive),
            ("-0.5", NotPositive),
            ("500m", NotWhole),
            ("1500m", NotWhole),
            ("0.5", NotWhole),
            ("1e-30", NotWhole),
            ("1n", NotWhole),
            ("1.00000000000000000000000000000000000000000000000001", NotWhole),
            ("99999999999.0000000000000000000000000000000000000000001", TooLarge),
            ("1e-99999999999999999", NotWhole),
            ("1e30", TooLarge),
            ("1000000000000000000000000000000", TooLarge),
            ("4294967296", TooLarge),
            ("8Ei", TooLarge),
            ("1e3m", NotAQuantity),
            ("", NotAQuantity),
            (".", NotAQuantity),
            ("-", NotAQuantity),
            ("1.2.3", NotAQuantity),
            ("one", NotAQuantity),
            ("2 ", NotAQuantity),
            ("2K", NotAQuantity),
            ("1e", NotAQuantity),
            ("２", NotAQuantity),
        ];
        for (text, fault) in cases {
            assert_eq!(whole_cpus(text), Err(fault(text.to_owned())), "{text}");
            assert!(fault(text.to_owned()).to_string().contains(text));
        }
    }

    #[test]
    fn long_quantities_are_not_quoted_whole() {
        for text in ["x".repeat(100_000), "9".repeat(100_000), format!("1.{}1", "0".repeat(100_000))] {
            let error = whole_cpus(&text).unwrap_err().to_string();
            assert!(error.len() < 400, "{error}");
        }
    }

    proptest! {
        #[test]
        fn whole_numbers_round_trip_however_they_are_written(cpus in 1..100_000u32, zeros in 0..6usize) {
            prop_assert_eq!(whole_cpus(&format!("{cpus}")), Ok(cpus));
            prop_assert_eq!(whole_cpus(&format!("{cpus}000m")), Ok(cpus));
            prop_assert_eq!(whole_cpus(&format!("{cpus}.{}", "0".repeat(zeros))), Ok(cpus));
            prop_assert_eq!(whole_cpus(&format!("{cpus}{}e-{zeros}", "0".repeat(zeros))), Ok(cpus));
        }

        #[test]
        fn no_text_panics(text in "[-+0-9.eEmkiKMG ]{0,40}|\\PC{0,12}") {
            let _ = whole_cpus(&text);
        }
    }
}
