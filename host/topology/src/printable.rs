/// Text of others for a terminal: control characters are written as escapes, which move no cursor.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() || is_invisible(character) {
            shown.extend(character.escape_unicode());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// The text, when it can be shown as it is.
///
/// # Errors
/// Text that says what it is (`what`) and that it cannot be shown.
pub(crate) fn shown(what: &str, text: String) -> Result<String, String> {
    let escaped = printable(&text);
    if escaped == text { Ok(text) } else { Err(format!("{what} `{escaped}` has control characters")) }
}

/// Marks that turn the direction of the text around them, and separators of lines.
fn is_invisible(character: char) -> bool {
    matches!(character, '\u{200e}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_escapes() {
        assert_eq!(printable("p-core é ▪"), "p-core é ▪");
        assert_eq!(printable("a\u{1b}[2J\n\u{9b}\u{202e}"), "a\\u{1b}[2J\\u{a}\\u{9b}\\u{202e}");
    }
}
