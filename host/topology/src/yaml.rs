use serde::de::DeserializeOwned;

/// Reads a document that a person wrote.
///
/// # Errors
/// What is wrong and where, in one line.
pub(crate) fn parse<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_saphyr::from_str(text)
        .map_err(|error| error.without_snippet().render_with_formatter(&serde_saphyr::UserMessageFormatter))
}
