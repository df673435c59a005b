//! CEL, as far as selectors of the documentation use it. What it does not know is an error, so that no selector is taken for
//! granted. Source: the CEL language definition, and what Kubernetes gives selectors (`device.driver`, `device.attributes`,
//! `device.capacity`, `device.allowMultipleAllocations`; `quantity`, `compareTo`).

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

/// Whether the expression can be read.
pub(crate) fn parses(text: &str) -> Result<()> {
    // What is not there is a matter of the device, not of the text.
    let device = json!({"driver": "", "allowMultipleAllocations": true, "attributes": {}, "capacity": {}});
    match holds(text, &device) {
        Err(error) if error.downcast_ref::<NoSuchKey>().is_none() => Err(error),
        _ => Ok(()),
    }
}

/// Whether the expression is true of a device, an object with the fields that selectors see.
pub(crate) fn holds(text: &str, device: &Value) -> Result<bool> {
    let mut reader = Reader { tokens: tokens(text)?, at: 0, device };
    let value = reader.or()?;
    ensure!(reader.at == reader.tokens.len(), "`{}` is left over", reader.tokens[reader.at..].join(" "));
    truth(&value)
}

/// A field or key that the device does not have: in Kubernetes, too, an error of the whole expression.
#[derive(Debug, thiserror::Error)]
#[error("no such key: {0}")]
pub(crate) struct NoSuchKey(String);

fn tokens(text: &str) -> Result<Vec<String>> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = if first == '"' {
            2 + rest[1..].find('"').context("a text that does not end")?
        } else if first.is_alphanumeric() {
            rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len())
        } else if ["==", "!=", "<=", ">=", "&&", "||"].iter().any(|operator| rest.starts_with(operator)) {
            2
        } else {
            ensure!("()[]{}.,!<>".contains(first), "`{first}` is not understood");
            1
        };
        tokens.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

fn truth(value: &Value) -> Result<bool> {
    value.as_bool().with_context(|| format!("{value} is neither true nor false"))
}

struct Reader<'a> {
    tokens: Vec<String>,
    at: usize,
    device: &'a Value,
}

impl Reader<'_> {
    fn take(&mut self, token: &str) -> bool {
        let found = self.tokens.get(self.at).is_some_and(|next| next == token);
        self.at += usize::from(found);
        found
    }

    fn demand(&mut self, token: &str) -> Result<()> {
        ensure!(self.take(token), "`{token}` is missing before `{}`", self.tokens[self.at..].join(" "));
        Ok(())
    }

    fn next(&mut self) -> Result<String> {
        let token = self.tokens.get(self.at).context("the expression ends too early")?.clone();
        self.at += 1;
        Ok(token)
    }

    // Both sides are read always: what cannot be read is never skipped.
    fn or(&mut self) -> Result<Value> {
        let mut value = self.and()?;
        while self.take("||") {
            value = (truth(&value)? | truth(&self.and()?)?).into();
        }
        Ok(value)
    }

    fn and(&mut self) -> Result<Value> {
        let mut value = self.relation()?;
        while self.take("&&") {
            value = (truth(&value)? & truth(&self.relation()?)?).into();
        }
        Ok(value)
    }

    fn relation(&mut self) -> Result<Value> {
        let left = self.member()?;
        for operator in ["==", "!=", "<=", ">=", "<", ">", "in"] {
            if self.take(operator) {
                let right = self.member()?;
                return Ok(compare(operator, &left, &right)?.into());
            }
        }
        Ok(left)
    }

    fn member(&mut self) -> Result<Value> {
        if self.take("!") {
            return Ok((!truth(&self.member()?)?).into());
        }
        let mut value = self.primary()?;
        loop {
            if self.take(".") {
                let name = self.next()?;
                value = if self.take("(") { self.method(&value, &name)? } else { key(&value, &name)? };
            } else if self.take("[") {
                let index = self.or()?;
                self.demand("]")?;
                let name = index.as_str().context("an index that is no text")?;
                // A domain without attributes is an empty map in Kubernetes.
                value = value.get(name).cloned().unwrap_or_else(|| json!({}));
            } else {
                return Ok(value);
            }
        }
    }

    fn method(&mut self, value: &Value, name: &str) -> Result<Value> {
        let argument = self.or()?;
        self.demand(")")?;
        match (name, value.as_i64(), argument.as_i64()) {
            ("compareTo", Some(left), Some(right)) => Ok((left.cmp(&right) as i64).into()),
            _ => bail!("{value} has no method {name} for {argument}"),
        }
    }

    fn primary(&mut self) -> Result<Value> {
        let token = self.next()?;
        if token == "(" {
            let value = self.or()?;
            self.demand(")")?;
            return Ok(value);
        }
        if token == "[" {
            let mut items = Vec::new();
            while !self.take("]") {
                items.push(self.or()?);
                ensure!(
                    self.take(",") || self.tokens.get(self.at).is_some_and(|next| next == "]"),
                    "a list that does not end"
                );
            }
            return Ok(items.into());
        }
        match token.as_str() {
            "device" => Ok(self.device.clone()),
            "true" | "false" => Ok((token == "true").into()),
            "quantity" => {
                self.demand("(")?;
                let text = self.next()?;
                self.demand(")")?;
                Ok(text.trim_matches('"').parse::<i64>().context("a quantity")?.into())
            }
            text if text.starts_with('"') => Ok(text.trim_matches('"').into()),
            number => {
                Ok(number.parse::<i64>().with_context(|| format!("`{number}` is not understood"))?.into())
            }
        }
    }
}

fn key(value: &Value, name: &str) -> Result<Value> {
    value.get(name).cloned().ok_or_else(|| NoSuchKey(name.to_owned()).into())
}

fn compare(operator: &str, left: &Value, right: &Value) -> Result<bool> {
    if operator == "in" {
        return match right {
            Value::Array(items) => Ok(items.contains(left)),
            Value::Object(fields) => Ok(left.as_str().is_some_and(|name| fields.contains_key(name))),
            _ => bail!("nothing is in {right}"),
        };
    }
    let same_kind = std::mem::discriminant(left) == std::mem::discriminant(right);
    ensure!(same_kind, "{left} and {right} cannot be compared");
    match (operator, left.as_i64(), right.as_i64()) {
        ("==", ..) => Ok(left == right),
        ("!=", ..) => Ok(left != right),
        ("<=", Some(left), Some(right)) => Ok(left <= right),
        (">=", Some(left), Some(right)) => Ok(left >= right),
        ("<", Some(left), Some(right)) => Ok(left < right),
        (">", Some(left), Some(right)) => Ok(left > right),
        _ => bail!("{left} and {right} have no order"),
    }
}
