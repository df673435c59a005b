//! YAML, as people write it.

use serde::de::DeserializeOwned;

/// Reads a document. Each type that this is asked for is some ten kilobytes of program: ask for a `Value` where it may be one.
///
/// # Errors
/// What is wrong and where, in one line.
pub fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_saphyr::from_str(text)
        .map_err(|error| error.without_snippet().render_with_formatter(&serde_saphyr::UserMessageFormatter))
}
