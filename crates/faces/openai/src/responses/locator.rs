//! Under which name an answer is stored.

use std::fmt;

use ring::digest::{SHA256, digest};

/// The length of a locator as text.
const LENGTH: usize = 32;

/// A digest of an answer's identifier. The identifiers of the answer's items begin with it, so that an item leads to its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Locator(u128);

impl Locator {
    /// The locator of an answer.
    pub(crate) fn of_answer(id: &str) -> Self {
        let digest = digest(&SHA256, id.as_bytes());
        let (number, _) = digest.as_ref().as_chunks();
        Self(number.first().map_or(0, |number| u128::from_be_bytes(*number)))
    }

    /// The locator in the identifier of an item; `None` if this server did not make the identifier.
    pub(crate) fn of_item(id: &str) -> Option<Self> {
        let (_, locator) = id.split_once('_')?;
        Self::parse(locator.get(..LENGTH)?)
    }

    /// The identifier of an item of the answer.
    pub(crate) fn item(self, prefix: &str, number: usize) -> String {
        format!("{prefix}{self}{number:04x}")
    }

    /// The locator that is written so.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_number = |character| matches!(character, b'0'..=b'9' | b'a'..=b'f');
        let is_valid = text.len() == LENGTH && text.bytes().all(is_number);
        u128::from_str_radix(text, 16).ok().filter(|_| is_valid).map(Self)
    }
}

impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_lead_to_their_answer() {
        let (one, other) = (Locator::of_answer("resp_1"), Locator::of_answer("resp_2"));
        assert_ne!(one, other);
        // The beginning of the SHA-256 of `resp_1`.
        assert_eq!(one.to_string(), "7a8babb8a11671dfe03c4a5e8f77c6db");
        for number in [0, 1, 0xffff, 0x10000] {
            assert_eq!(Locator::of_item(&one.item("msg_", number)), Some(one), "{number}");
        }
        assert_ne!(one.item("msg_", 1), one.item("msg_", 2));
    }

    #[test]
    fn other_identifiers_lead_nowhere() {
        let locator = Locator::of_answer("resp_1").to_string();
        for id in [
            "",
            "_",
            "msg_",
            "msg_1",
            &locator,
            &format!("msg_{}", &locator[1..]),
            &format!("msg_+{}", &locator[1..]),
            &format!("msg_{}", locator.to_uppercase()),
            &format!("msg_../{locator}"),
            &format!("msg_{}é", &locator[1..]),
        ] {
            assert_eq!(Locator::of_item(id), None, "{id}");
        }
    }
}
