//! Options from their JSON text (RFC 8259), for any type that implements serde's `Deserialize`.
//!
//! Written for size: every strategy carries it, and a general reader with its floating point and its texts is
//! a third of a small component. So numbers with a fraction are read to the last digit only as long as they
//! have at most 15 digits and a power of ten of at most 22, and errors say the key instead of line and column.

use serde::de::value::{CowStrDeserializer, MapAccessDeserializer};
use serde::de::{self, Deserializer, Expected, IntoDeserializer, Unexpected, Visitor};
use std::borrow::Cow;
use std::fmt;

/// Lists and objects in each other; what is nested deeper would use up an instance's stack.
const DEEPEST: usize = 64;

/// Reads one value.
///
/// # Errors
/// What is wrong with it: no JSON, or not what the type expects.
pub(crate) fn read<T: de::DeserializeOwned>(text: &str) -> Result<T, Error> {
    let mut reader = Reader { text, at: 0, depth: 0 };
    let value = T::deserialize(&mut reader)?;
    match reader.peek() {
        None => Ok(value),
        Some(_) => Err(reader.expected("the end")),
    }
}

/// Why a text was refused.
#[derive(Debug)]
pub(crate) struct Error(String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl de::Error for Error {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }

    // As serde words it, but for numbers with a fraction: to print one takes more code than all of this file.
    fn invalid_type(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let found = match found {
            Unexpected::Bool(truth) => truth.to_string(),
            Unexpected::Unsigned(number) => number.to_string(),
            Unexpected::Signed(number) => number.to_string(),
            Unexpected::Float(_) => "a number with a fraction".to_owned(),
            Unexpected::Str(text) => format!("`{text}`"),
            Unexpected::Unit | Unexpected::Option => "null".to_owned(),
            Unexpected::Seq => "a list".to_owned(),
            Unexpected::Map => "an object".to_owned(),
            _ => "something else".to_owned(),
        };
        Self(format!("found {found}, expected {expected}"))
    }

    fn invalid_value(found: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::invalid_type(found, expected)
    }
}

/// A value, as far as it can be told from its first characters.
enum Token<'de> {
    Null,
    Truth(bool),
    Unsigned(u64),
    Signed(i64),
    Float(f64),
    Text(Cow<'de, str>),
    List,
    Object,
}

impl Token<'_> {
    fn unexpected(&self) -> Unexpected<'_> {
        match self {
            Self::Null => Unexpected::Unit,
            Self::Truth(truth) => Unexpected::Bool(*truth),
            Self::Unsigned(number) => Unexpected::Unsigned(*number),
            Self::Signed(number) => Unexpected::Signed(*number),
            Self::Float(number) => Unexpected::Float(*number),
            Self::Text(text) => Unexpected::Str(text),
            Self::List => Unexpected::Seq,
            Self::Object => Unexpected::Map,
        }
    }
}

struct Reader<'de> {
    text: &'de str,
    at: usize,
    depth: usize,
}

impl<'de> Reader<'de> {
    fn expected(&self, what: &str) -> Error {
        Error(format!("expected {what} after {} bytes", self.at))
    }

    fn here(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    /// Goes on if this comes next.
    fn take(&mut self, text: &str) -> bool {
        let comes = self.text.get(self.at..).is_some_and(|rest| rest.starts_with(text));
        self.at += if comes { text.len() } else { 0 };
        comes
    }

    /// What comes after blanks.
    fn peek(&mut self) -> Option<u8> {
        while let Some(b' ' | b'\t' | b'\n' | b'\r') = self.here() {
            self.at += 1;
        }
        self.here()
    }

    /// The next value; of a list or an object only the beginning.
    fn token(&mut self) -> Result<Token<'de>, Error> {
        let token = match self.peek() {
            Some(b'-' | b'0'..=b'9') => return self.number(),
            Some(b'"') => {
                self.at += 1;
                return self.string().map(Token::Text);
            }
            _ if self.take("[") => Token::List,
            _ if self.take("{") => Token::Object,
            _ if self.take("null") => Token::Null,
            _ if self.take("true") => Token::Truth(true),
            _ if self.take("false") => Token::Truth(false),
            _ => return Err(self.expected("a value")),
        };
        Ok(token)
    }

    fn digit(&mut self) -> Option<u8> {
        let digit = self.here().filter(u8::is_ascii_digit)?;
        self.at += 1;
        Some(digit - b'0')
    }

    fn number(&mut self) -> Result<Token<'de>, Error> {
        let negative = self.take("-");
        let first = self.digit().ok_or_else(|| self.expected("a digit"))?;
        let mut number = Number { digits: first.into(), power: 0, is_full: false };
        while let Some(digit) = (first > 0).then(|| self.digit()).flatten() {
            number.power += i32::from(!number.append(digit));
        }
        if self.take(".") {
            let start = self.at;
            while let Some(digit) = self.digit() {
                number.power -= i32::from(number.append(digit));
            }
            if self.at == start {
                return Err(self.expected("a digit"));
            }
        }
        if self.take("e") || self.take("E") {
            let sign = if self.take("-") { -1 } else { 1 };
            _ = sign > 0 && self.take("+");
            let mut power: i32 = self.digit().ok_or_else(|| self.expected("a digit"))?.into();
            while let Some(digit) = self.digit() {
                power = power.saturating_mul(10).saturating_add(digit.into());
            }
            number.power = number.power.saturating_add(sign * power);
        }
        // JSON Schema takes 2.0 and 2e1 for integers too.
        let whole = number.whole().and_then(|whole| match negative {
            false => Some(Token::Unsigned(whole)),
            true => 0_i64.checked_sub_unsigned(whole).map(Token::Signed),
        });
        let fraction = || {
            let value = number.value();
            value.is_finite().then_some(Token::Float(if negative { -value } else { value }))
        };
        whole.or_else(fraction).ok_or_else(|| Error("a number is too large".to_owned()))
    }

    /// The characters up to what ends or interrupts a text.
    fn plain(&mut self) -> &'de str {
        let rest = self.text.get(self.at..).unwrap_or_default();
        let end = rest.bytes().position(|byte| byte < b' ' || byte == b'"' || byte == b'\\');
        let plain = rest.get(..end.unwrap_or(rest.len())).unwrap_or_default();
        self.at += plain.len();
        plain
    }

    /// What is between quotation marks, of which the first is behind.
    fn string(&mut self) -> Result<Cow<'de, str>, Error> {
        let mut text = Cow::Borrowed(self.plain());
        while !self.take("\"") {
            if !self.take("\\") {
                return Err(self.expected("the end of a text"));
            }
            let character = self.escaped().ok_or_else(|| self.expected("an escaped character"))?;
            text.to_mut().push(character);
            text.to_mut().push_str(self.plain());
        }
        Ok(text)
    }

    fn escaped(&mut self) -> Option<char> {
        let escape = self.here()?;
        self.at += 1;
        Some(match escape {
            b'"' | b'\\' | b'/' => escape.into(),
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.utf16()?;
                // Characters beyond 16 bits are written as two.
                let second = if self.take("\\u") { Some(self.utf16()?) } else { None };
                let mut characters = char::decode_utf16([first].into_iter().chain(second));
                let character = characters.next()?.ok()?;
                if characters.next().is_some() {
                    self.at -= 6; // the second is a character of its own
                }
                character
            }
            _ => return None,
        })
    }

    fn utf16(&mut self) -> Option<u16> {
        let digits = self.text.get(self.at..self.at + 4)?;
        self.at += 4;
        let is_hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        is_hexadecimal.then(|| u16::from_str_radix(digits, 16).ok()).flatten()
    }

    /// Hands the members of a list or an object to `visit`, and sees that it has taken them all.
    fn members<V>(
        &mut self,
        end: &'static str,
        visit: impl FnOnce(&mut Members<'_, 'de>) -> Result<V, Error>,
    ) -> Result<V, Error> {
        if self.depth == DEEPEST {
            return Err(Error(format!("more than {DEEPEST} lists and objects in each other")));
        }
        self.depth += 1;
        let mut members =
            Members { reader: self, end, is_first: true, has_ended: false, key: Cow::Borrowed("") };
        let value = visit(&mut members)?;
        if !members.has_ended && members.next()? {
            return Err(members.reader.expected(end));
        }
        self.depth -= 1;
        Ok(value)
    }
}

/// A decimal number without its sign: digits times a power of ten.
struct Number {
    digits: u64,
    power: i32,
    is_full: bool,
}

impl Number {
    /// Adds a digit; false when there are too many to tell a difference.
    fn append(&mut self, digit: u8) -> bool {
        let more = self.digits.checked_mul(10).and_then(|digits| digits.checked_add(digit.into()));
        // What follows a digit that was left out is left out too.
        self.is_full |= more.is_none();
        self.digits = more.filter(|_| !self.is_full).unwrap_or(self.digits);
        !self.is_full
    }

    /// The number, if it has no fraction and is told exactly.
    fn whole(&self) -> Option<u64> {
        let scale = || 10_u64.checked_pow(self.power.unsigned_abs());
        match self.power {
            _ if self.digits == 0 => Some(0),
            _ if self.is_full => None,
            ..0 => {
                scale().filter(|scale| self.digits.is_multiple_of(*scale)).map(|scale| self.digits / scale)
            }
            0.. => self.digits.checked_mul(scale()?),
        }
    }

    fn value(&self) -> f64 {
        let digits = self.digits as f64;
        let power = 10_f64.powi(self.power.saturating_abs());
        if self.digits == 0 {
            0.0
        } else if self.power < 0 {
            digits / power
        } else {
            digits * power
        }
    }
}

/// The members of a list or an object.
struct Members<'a, 'de> {
    reader: &'a mut Reader<'de>,
    end: &'static str,
    is_first: bool,
    has_ended: bool,
    /// Of an object: that of the member at hand.
    key: Cow<'de, str>,
}

impl Members<'_, '_> {
    /// Whether there is another one.
    fn next(&mut self) -> Result<bool, Error> {
        self.reader.peek();
        if self.reader.take(self.end) {
            self.has_ended = true;
            return Ok(false);
        }
        if !std::mem::take(&mut self.is_first) && !self.reader.take(",") {
            return Err(self.reader.expected(&format!("a comma or {}", self.end)));
        }
        Ok(true)
    }
}

impl<'de> de::SeqAccess<'de> for Members<'_, 'de> {
    type Error = Error;

    fn next_element_seed<T: de::DeserializeSeed<'de>>(&mut self, seed: T) -> Result<Option<T::Value>, Error> {
        if self.next()? { seed.deserialize(&mut *self.reader).map(Some) } else { Ok(None) }
    }
}

impl<'de> de::MapAccess<'de> for Members<'_, 'de> {
    type Error = Error;

    fn next_key_seed<K: de::DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Error> {
        if !self.next()? {
            return Ok(None);
        }
        self.reader.peek();
        if !self.reader.take("\"") {
            return Err(self.reader.expected("a key"));
        }
        self.key = self.reader.string()?;
        let key: CowStrDeserializer<'_, Error> = Cow::Borrowed(&*self.key).into_deserializer();
        seed.deserialize(key).map(Some)
    }

    fn next_value_seed<V: de::DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Error> {
        self.reader.peek();
        if !self.reader.take(":") {
            return Err(self.reader.expected("a colon"));
        }
        seed.deserialize(&mut *self.reader).map_err(|error| Error(format!("{}: {}", self.key, error.0)))
    }
}

impl<'de> Deserializer<'de> for &mut Reader<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.token()? {
            Token::Null => visitor.visit_unit(),
            Token::Truth(truth) => visitor.visit_bool(truth),
            Token::Unsigned(number) => visitor.visit_u64(number),
            Token::Signed(number) => visitor.visit_i64(number),
            Token::Float(number) => visitor.visit_f64(number),
            Token::Text(text) => visitor.visit_str(&text),
            Token::List => self.members("]", |members| visitor.visit_seq(members)),
            Token::Object => self.members("}", |members| visitor.visit_map(members)),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.peek();
        if self.take("null") { visitor.visit_none() } else { visitor.visit_some(self) }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        match self.token()? {
            Token::Text(text) => visitor.visit_enum(text.into_deserializer()),
            Token::Object => {
                self.members("}", |members| visitor.visit_enum(MapAccessDeserializer::new(members)))
            }
            other => Err(de::Error::invalid_type(other.unexpected(), &visitor)),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit unit_struct
        seq tuple tuple_struct map struct identifier ignored_any
    }
}

#[cfg(test)]
mod tests;
