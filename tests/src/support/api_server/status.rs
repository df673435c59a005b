//! Refusals as the API server words them: `metav1.Status`.

use hyper::StatusCode;
use serde_json::{Value, json};

/// A `Status` answer.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub(super) code: StatusCode,
    pub(super) body: Value,
}

/// One fault of a 422 answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FieldError {
    pub(super) field: String,
    pub(super) reason: &'static str,
    pub(super) message: String,
}

/// What a request is about, for messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) group: &'a str,
    pub(super) resource: &'a str,
    pub(super) kind: &'a str,
    pub(super) name: &'a str,
}

impl Subject<'_> {
    fn qualified(&self, what: &str) -> String {
        if self.group.is_empty() { what.to_owned() } else { format!("{what}.{}", self.group) }
    }

    pub(super) fn refusal(&self, code: u16, reason: &str, message: &str) -> Refusal {
        let details = json!({"name": self.name, "group": self.group, "kind": self.resource});
        refusal(code, reason, message, Some(details))
    }

    pub(super) fn not_found(&self) -> Refusal {
        let what = self.qualified(self.resource);
        self.refusal(404, "NotFound", &format!("{what} \"{}\" not found", self.name))
    }

    pub(super) fn already_exists(&self) -> Refusal {
        let what = self.qualified(self.resource);
        self.refusal(409, "AlreadyExists", &format!("{what} \"{}\" already exists", self.name))
    }

    pub(super) fn conflict(&self, why: &str) -> Refusal {
        let what = self.qualified(self.resource);
        let message = format!("Operation cannot be fulfilled on {what} \"{}\": {why}", self.name);
        self.refusal(409, "Conflict", &message)
    }

    pub(super) fn invalid(&self, errors: &[FieldError]) -> Refusal {
        let texts: Vec<_> = errors.iter().map(|e| format!("{}: {}", e.field, e.message)).collect();
        let list = if texts.len() == 1 { texts[0].clone() } else { format!("[{}]", texts.join(", ")) };
        let message = format!("{} \"{}\" is invalid: {list}", self.qualified(self.kind), self.name);
        let causes: Vec<_> = errors
            .iter()
            .map(|e| json!({"reason": e.reason, "message": e.message, "field": e.field}))
            .collect();
        let details = json!({"name": self.name, "group": self.group, "kind": self.kind, "causes": causes});
        refusal(422, "Invalid", &message, Some(details))
    }
}

/// A `Status` with any content.
pub(super) fn refusal(code: u16, reason: &str, message: &str, details: Option<Value>) -> Refusal {
    let mut body = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "code": code,
    });
    if let Some(details) = details {
        body["details"] = details;
    }
    Refusal { code: StatusCode::from_u16(code).unwrap(), body }
}

/// A watch or a list from a revision that the server has forgotten.
pub(super) fn expired() -> Refusal {
    refusal(410, "Expired", "The resourceVersion for the provided watch is too old.", None)
}
