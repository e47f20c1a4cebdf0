//! Patterns of model names: `*` stands for any characters, also none.

use std::fmt;

/// A pattern of model names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pattern(String);

impl Pattern {
    /// The pattern in this text. Every text is one.
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The pattern's text.
    pub(crate) fn text(&self) -> &str {
        &self.0
    }

    /// Whether the pattern matches every name.
    pub(crate) fn is_any(&self) -> bool {
        !self.0.is_empty() && self.0.bytes().all(|byte| byte == b'*')
    }

    /// Whether the pattern is a name.
    pub(crate) fn is_name(&self) -> bool {
        !self.0.contains('*')
    }

    /// Whether the pattern matches a name.
    ///
    /// Each part between stars is found at its first place, so the time is bounded by the lengths' product.
    pub(crate) fn matches(&self, name: &str) -> bool {
        let Some((begin, rest)) = self.0.split_once('*') else { return self.0 == name };
        let Some(mut name) = name.strip_prefix(begin) else { return false };
        let (middle, end) = rest.rsplit_once('*').unwrap_or(("", rest));
        for part in middle.split('*') {
            let Some((_, after)) = name.split_once(part) else { return false };
            name = after;
        }
        name.ends_with(end)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The meaning of patterns, plainly written: by bytes, with every possible length of a star.
    fn plain(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|taken| plain(rest, &name[taken..])),
            Some((first, rest)) => name.first() == Some(first) && plain(rest, &name[1..]),
        }
    }

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name, expected) in [
            ("a-*", "a-1", true),
            ("a-*", "a-", true),
            ("a-*", "A-1", false),
            ("a-*", "ba-1", false),
            ("*-a", "x-a-a", true),
            ("*", "", true),
            ("**", "x", true),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("", "", true),
            ("", "x", false),
            ("m", "m", true),
            ("m", "mm", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a-*", "a-/../b", true),
        ] {
            assert_eq!(Pattern::new(pattern).matches(name), expected, "{pattern}: {name}");
        }
    }

    proptest! {
        #[test]
        fn patterns_match_as_plainly_written(pattern in "[ab*]{0,8}", name in "[ab]{0,12}") {
            let compiled = Pattern::new(pattern.as_str());
            prop_assert_eq!(compiled.matches(&name), plain(pattern.as_bytes(), name.as_bytes()));
            if compiled.is_any() {
                prop_assert!(compiled.matches(&name));
            }
            if compiled.is_name() {
                prop_assert_eq!(compiled.matches(&name), pattern == name);
            }
        }
    }
}
