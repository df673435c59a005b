//! Quantities as the API server reads and stores them.
//! Source: `k8s.io/apimachinery/pkg/api/resource/quantity.go` (the documented grammar and canonical form).

/// A quantity in thousand-millionths, and the family of its suffix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Quantity {
    pub(super) nanos: i128,
    format: Format,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Decimal,
    Exponent,
    Binary,
}

const NANO: i128 = 1_000_000_000;
const DECIMAL: [(&str, i128); 10] = [
    ("n", 1),
    ("u", 1_000),
    ("m", 1_000_000),
    ("", NANO),
    ("k", NANO * 1_000),
    ("M", NANO * 1_000_000),
    ("G", NANO * NANO),
    ("T", NANO * NANO * 1_000),
    ("P", NANO * NANO * 1_000_000),
    ("E", NANO * NANO * NANO),
];
const BINARY: [(&str, u32); 6] = [("Ki", 1), ("Mi", 2), ("Gi", 3), ("Ti", 4), ("Pi", 5), ("Ei", 6)];

impl Quantity {
    /// None when the text is no quantity (or beyond what a CPU count could ever need).
    pub(super) fn parse(text: &str) -> Option<Self> {
        let (negative, rest) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, suffix) = rest.split_at(end);
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        let (scale, format) = if let Some((_, scale)) = DECIMAL.iter().find(|(name, _)| *name == suffix) {
            (*scale, Format::Decimal)
        } else if let Some((_, power)) = BINARY.iter().find(|(name, _)| *name == suffix) {
            (NANO * 1024_i128.pow(*power), Format::Binary)
        } else {
            let exponent: i32 = suffix.strip_prefix(['e', 'E'])?.parse().ok()?;
            let power = u32::try_from(exponent + 9).ok().filter(|power| *power <= 27)?;
            (10_i128.pow(power), Format::Exponent)
        };
        let digits: i128 = format!("0{whole}{fraction}").parse().ok()?;
        let divisor = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
        let scaled = digits.checked_mul(scale)?;
        let nanos = scaled.div_euclid(divisor) + i128::from(scaled.rem_euclid(divisor) != 0); // rounds up
        Some(Self { nanos: if negative { -nanos } else { nanos }, format })
    }

    /// The form that the server stores.
    pub(super) fn canonical(self) -> String {
        if self.nanos == 0 {
            return "0".to_owned();
        }
        if self.format == Format::Binary && self.nanos.abs() >= 1024 * NANO && self.nanos % NANO == 0 {
            let (mut value, mut suffix) = (self.nanos / NANO, "");
            for (name, power) in BINARY {
                let unit = 1024_i128.pow(power);
                if self.nanos / NANO % unit == 0 {
                    (value, suffix) = (self.nanos / NANO / unit, name);
                }
            }
            return format!("{value}{suffix}");
        }
        let whole = DECIMAL.iter().rev().find(|(_, scale)| self.nanos % scale == 0);
        let (suffix, scale) = whole.copied().unwrap_or(("n", 1));
        match (self.format, suffix) {
            (Format::Exponent, suffix) if !suffix.is_empty() => {
                format!("{}e{}", self.nanos / scale, i64::from(scale.ilog10()) - 9)
            }
            _ => format!("{}{suffix}", self.nanos / scale),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantities_are_stored_in_canonical_form() {
        for (sent, stored) in [
            ("8", "8"),
            ("8000m", "8"),
            ("8000", "8k"),
            ("1500m", "1500m"),
            ("1.5", "1500m"),
            ("0.5Gi", "512Mi"),
            ("1024", "1024"),
            ("1Ki", "1Ki"),
            ("1e3", "1e3"),
            ("-1", "-1"),
            ("0m", "0"),
            ("+4", "4"),
        ] {
            assert_eq!(Quantity::parse(sent).map(Quantity::canonical).as_deref(), Some(stored), "{sent}");
        }
        for text in ["", "1e3m", "abc", "1 ", "1.2.3", "1K", "--1", "."] {
            assert_eq!(Quantity::parse(text), None, "{text:?}");
        }
    }
}
