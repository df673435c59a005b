//! Words for messages: what others wrote, in a length that a person reads.

use std::borrow::Cow;
use std::error::Error;

/// So much of a value is quoted.
const MOST_CHARS: usize = 100;

/// So much of a whole sentence of somebody else's is passed on.
const MOST_CHARS_OF_A_SENTENCE: usize = 1000;

/// So many mistakes are told one by one.
const MOST_LISTED: usize = 20;

/// So much of a guest's text is kept, before escaping.
const MOST_CHARS_OF_A_GUEST: usize = 1024;

/// A value to be quoted: whole where it is short, else its beginning and `…`; control characters escaped, or it could
/// write lines of its own into a log.
#[must_use]
pub fn quoted(value: &str) -> Cow<'_, str> {
    cut(value, MOST_CHARS)
}

/// Somebody else's sentence, which may quote what it likes: its beginning and `…` where it is long; control characters
/// escaped.
#[must_use]
pub fn sentence(text: &str) -> Cow<'_, str> {
    cut(text, MOST_CHARS_OF_A_SENTENCE)
}

/// An error with its causes, in one sentence; a cause that its error already names is not repeated.
#[must_use]
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    sentence(&text).into_owned()
}

fn cut(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        Some((end, _)) => Cow::Owned(format!("{}…", escaped(text.get(..end).unwrap_or_default()))),
        None => escaped(text),
    }
}

/// Text of which no character moves, hides or ends what follows.
fn escaped(text: &str) -> Cow<'_, str> {
    let is_odd = |char: char| char.is_control() || is_invisible(char);
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) || !text.contains(is_odd) {
        return Cow::Borrowed(text); // as mostly
    }
    let mut plain = String::with_capacity(text.len());
    for char in text.chars() {
        if is_odd(char) {
            plain.extend(char.escape_default());
        } else {
            plain.push(char);
        }
    }
    Cow::Owned(plain)
}

/// A number of things.
#[must_use]
pub fn counted(number: usize, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Mistakes in one sentence: the first of them, and how many more there are.
#[must_use]
pub fn listed(mistakes: &[String]) -> String {
    some_of(mistakes, "; ", "; and ")
}

/// Names, each in backquotes, in one sentence: the first of them, and how many more there are.
#[must_use]
pub fn names<S: AsRef<str>>(names: &[S]) -> String {
    let names: Vec<String> = names.iter().map(|name| format!("`{}`", quoted(name.as_ref()))).collect();
    some_of(&names, ", ", " and ")
}

fn some_of(words: &[String], between: &str, before_the_rest: &str) -> String {
    let listed = words.get(..MOST_LISTED).unwrap_or(words).join(between);
    match words.len().saturating_sub(MOST_LISTED) {
        0 => listed,
        more => format!("{listed}{before_the_rest}{more} more"),
    }
}

/// Text of a guest without control characters, cut at 1024 of them; what is cut is said.
#[must_use]
pub fn plain(text: &str) -> String {
    if text.len() <= MOST_CHARS_OF_A_GUEST {
        return escaped(text).into_owned(); // as mostly
    }
    match text.char_indices().nth(MOST_CHARS_OF_A_GUEST) {
        Some((end, _)) => {
            let (kept, rest) = text.split_at(end);
            format!("{}… ({} characters more)", escaped(kept), rest.chars().count())
        }
        None => escaped(text).into_owned(),
    }
}

/// Characters that reorder or hide what follows (bidirectional controls, line separators): Unicode
/// Technical Report 36, section 3.
fn is_invisible(char: char) -> bool {
    matches!(char, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_values_are_cut_between_characters() {
        assert_eq!(quoted("short"), "short");
        assert_eq!(quoted(&"ä".repeat(100)), "ä".repeat(100));
        assert_eq!(quoted(&"ä".repeat(101)), format!("{}…", "ä".repeat(100)));
        assert_eq!(quoted("a\nERROR b"), "a\\nERROR b");
        assert_eq!(sentence("red \u{1b}[31m"), "red \\u{1b}[31m");
    }

    #[test]
    fn many_mistakes_are_counted_from_the_twenty_first_on() {
        let mistakes = |count: usize| (1..=count).map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!(listed(&mistakes(2)), "1; 2");
        assert!(listed(&mistakes(20)).ends_with("19; 20"));
        assert!(listed(&mistakes(20_000)).ends_with("19; 20; and 19980 more"));
        assert_eq!(names(&["a", "b"]), "`a`, `b`");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(plain("a\u{1b}[31mred\nnext \u{202e}x ü"), "a\\u{1b}[31mred\\nnext \\u{202e}x ü");
    }

    #[test]
    fn plain_words_stay_as_they_are() {
        let all: String = (' '..='~').collect();
        assert_eq!(plain(&all), all);
        assert_eq!(plain("\u{7f}"), "\\u{7f}");
    }

    #[test]
    fn long_lines_are_cut_and_say_so() {
        let text = "x".repeat(MOST_CHARS_OF_A_GUEST + 5);
        assert!(plain(&text).ends_with("x… (5 characters more)"));
    }
}
