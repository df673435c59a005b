//! A strategy's refusal.

use super::answer;
use super::verify::Lie;
use crate::words::plain;
use std::fmt;

/// A strategy's own refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Denial {
    /// What kind of refusal.
    pub reason: Reason,
    /// Position of the request that it is about.
    pub request: Option<usize>,
    /// One sentence with values and remedy.
    pub message: String,
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.reason)
    }
}

/// What kind of refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Can never work on this machine as asked.
    Invalid,
    /// Fewer free in the group than asked.
    NotEnough,
    /// Enough are free, but not in the shape the options demand.
    NoFit,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Invalid => "invalid",
            Self::NotEnough => "not-enough",
            Self::NoFit => "no-fit",
        })
    }
}

/// A strategy's refusal of a claim.
///
/// # Errors
/// When it points at a request that does not exist.
pub fn denial(denial: answer::Denial, requests: usize) -> Result<Denial, Lie> {
    if let Some(index) = denial.request
        && usize::try_from(index).map_or(true, |at| at >= requests)
    {
        return Err(Lie::NoSuchRequest { index, requests });
    }
    Ok(refusal(denial))
}

/// A strategy's refusal, its words made safe.
#[must_use]
pub fn refusal(denial: answer::Denial) -> Denial {
    let request = denial.request.and_then(|index| usize::try_from(index).ok());
    let message = match denial.message.trim() {
        "" => "the strategy does not say why; ask its author".to_owned(),
        message => plain(message),
    };
    Denial { reason: denial.reason, request, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_must_point_at_a_request() {
        let denial =
            |request| answer::Denial { reason: Reason::NoFit, request, message: "no\u{7}".to_owned() };
        let refused = super::denial(denial(Some(0)), 1).unwrap();
        assert_eq!((refused.to_string().as_str(), refused.request), ("no\\u{7} (no-fit)", Some(0)));
        let silent = answer::Denial { message: " ".to_owned(), ..denial(None) };
        assert!(refusal(silent).to_string().starts_with("the strategy does not say why"));
        assert_eq!(super::denial(denial(Some(1)), 1), Err(Lie::NoSuchRequest { index: 1, requests: 1 }));
    }
}
