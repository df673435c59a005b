/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Ok,
    /// It works, and less well than it could; or it will fail when something more happens.
    Warning,
    /// Claims fail, or containers do not have the CPUs that they should.
    Failed,
    /// What it needs cannot be seen from here.
    Unknown,
}

impl Outcome {
    pub(super) const ALL: [Self; 4] = [Self::Ok, Self::Warning, Self::Failed, Self::Unknown];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }

    /// On a terminal.
    pub(super) const fn colour(self) -> u8 {
        match self {
            Self::Ok => 32,
            Self::Warning => 33,
            Self::Failed => 31,
            Self::Unknown => 36,
        }
    }
}

/// What a check answers. Whatever is not ok says what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Verdict(Said);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Said {
    Ok(String),
    Other { outcome: Outcome, message: String, remedy: String },
}

impl Verdict {
    pub(super) fn ok(message: impl Into<String>) -> Self {
        Self(Said::Ok(message.into()))
    }

    pub(super) fn warning(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::other(Outcome::Warning, message, remedy)
    }

    pub(super) fn failed(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::other(Outcome::Failed, message, remedy)
    }

    pub(super) fn unknown(message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::other(Outcome::Unknown, message, remedy)
    }

    fn other(outcome: Outcome, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self(Said::Other { outcome, message: message.into(), remedy: remedy.into() })
    }

    pub(super) fn outcome(&self) -> Outcome {
        match &self.0 {
            Said::Ok(_) => Outcome::Ok,
            Said::Other { outcome, .. } => *outcome,
        }
    }

    pub(super) fn message(&self) -> &str {
        match &self.0 {
            Said::Ok(message) | Said::Other { message, .. } => message,
        }
    }

    pub(super) fn remedy(&self) -> Option<&str> {
        match &self.0 {
            Said::Ok(_) => None,
            Said::Other { remedy, .. } => Some(remedy),
        }
    }
}
