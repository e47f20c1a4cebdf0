//! Shortens names in messages: a configuration's names may be as long as its file.

use std::borrow::Cow;

/// The first `most` characters of a text, followed by dots if it is longer.
pub(crate) fn shorten(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        Some((end, _)) => Cow::Owned(format!("{}...", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

#[cfg(test)]
mod tests {
    use super::shorten;

    #[test]
    fn only_long_names_are_shortened() {
        assert_eq!(shorten("", 0), "");
        assert_eq!(shorten("µµµ", 3), "µµµ");
        assert_eq!(shorten("µµµ", 2), "µµ...");
    }
}
