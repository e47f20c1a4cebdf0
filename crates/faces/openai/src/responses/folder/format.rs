//! A stored answer as the contents of a file.
//!
//! The first line has the format's name and the SHA-256 of the rest, the second one is JSON with the lengths of the texts that follow.

use std::str;

use bytes::Bytes;
use nereid_core::Principal;
use ring::digest::{SHA256, digest};
use serde::{Deserialize, Serialize};

use super::super::store::StoredAnswer;

/// The beginning of every file. Files of other releases may have another number.
const MAGIC: &[u8] = b"nereid-answer 1 ";

/// Why a file has no answer.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    /// Something else is in the file.
    Foreign,
    /// The file is not as it was written.
    Damaged,
}

#[derive(Serialize, Deserialize)]
struct Head {
    principal: Option<String>,
    model: String,
    lora: Option<String>,
    /// The lengths of the texts: of the document, then of each turn.
    document: usize,
    turns: Vec<usize>,
}

/// The contents of a file with this answer.
pub(super) fn encode(answer: &StoredAnswer) -> serde_json::Result<Vec<u8>> {
    let head = serde_json::to_vec(&Head {
        principal: answer.principal.as_ref().map(|principal| principal.name().to_owned()),
        model: answer.model.clone(),
        lora: answer.lora.clone(),
        document: answer.document.len(),
        turns: answer.turns.iter().map(|turn| turn.len()).collect(),
    })?;
    let mut rest = Vec::with_capacity(head.len() + 1 + answer.size());
    rest.extend_from_slice(&head);
    rest.push(b'\n');
    rest.extend_from_slice(&answer.document);
    answer.turns.iter().for_each(|turn| rest.extend_from_slice(turn.as_bytes()));
    let mut contents = MAGIC.to_vec();
    contents.extend_from_slice(summary(&rest).as_bytes());
    contents.push(b'\n');
    contents.append(&mut rest);
    Ok(contents)
}

/// The answer in a file.
///
/// # Errors
/// Foreign or damaged contents.
pub(super) fn decode(contents: &[u8]) -> Result<StoredAnswer, Unreadable> {
    // A file that was cut off may lack a part of the beginning.
    let common = contents.len().min(MAGIC.len());
    if contents.get(..common) != MAGIC.get(..common) {
        return Err(Unreadable::Foreign);
    }
    checked(contents).ok_or(Unreadable::Damaged)
}

/// The answer in a complete file.
fn checked(contents: &[u8]) -> Option<StoredAnswer> {
    let (expected, rest) = line(contents.strip_prefix(MAGIC)?)?;
    if summary(rest).as_bytes() != expected {
        return None;
    }
    let (head, mut texts) = line(rest)?;
    let head: Head = serde_json::from_slice(head).ok()?;
    let mut take = |length: usize| {
        let (text, rest) = texts.split_at_checked(length)?;
        texts = rest;
        str::from_utf8(text).ok()
    };
    let document = Bytes::copy_from_slice(take(head.document)?.as_bytes());
    let turns = head.turns.into_iter().map(|length| take(length).map(Into::into)).collect::<Option<_>>()?;
    Some(StoredAnswer {
        principal: head.principal.map(Principal::new),
        model: head.model,
        lora: head.lora,
        document,
        turns,
    })
}

/// The first line, and what follows it.
fn line(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = text.iter().position(|byte| *byte == b'\n')?;
    let (line, rest) = text.split_at_checked(end)?;
    Some((line, rest.get(1..)?))
}

/// The SHA-256 in hexadecimal digits.
fn summary(text: &[u8]) -> String {
    digest(&SHA256, text).as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn answer(principal: Option<&str>, document: &str, turns: &[&str]) -> StoredAnswer {
        StoredAnswer {
            principal: principal.map(Principal::new),
            model: "m\n".to_owned(),
            lora: principal.map(|_| "lora".to_owned()),
            document: Bytes::copy_from_slice(document.as_bytes()),
            turns: turns.iter().map(|turn| (*turn).into()).collect(),
        }
    }

    #[test]
    fn whatever_is_missing_or_changed_is_noticed() {
        let contents = encode(&answer(Some("p"), "{}", &["[1]", ""])).unwrap();
        assert!(decode(&contents).is_ok());
        for length in 0..contents.len() {
            assert_eq!(decode(&contents[..length]).err(), Some(Unreadable::Damaged), "{length}");
        }
        for place in 0..contents.len() {
            let mut changed = contents.clone();
            changed[place] ^= 1;
            let expected = if place < MAGIC.len() { Unreadable::Foreign } else { Unreadable::Damaged };
            assert_eq!(decode(&changed).err(), Some(expected), "{place}");
        }
        assert_eq!(decode(&[contents, b"x".to_vec()].concat()).err(), Some(Unreadable::Damaged));
    }

    #[test]
    fn lengths_that_disagree_are_damage() {
        for head in [
            r#"{"model": "m", "document": 3, "turns": []}"#,
            r#"{"model": "m", "document": 18446744073709551615, "turns": []}"#,
            r#"{"model": "m", "document": 1, "turns": [1, 1]}"#,
            r#"{"model": "m", "document": 1, "turns": [-1]}"#,
            r#"{"model": "m", "document": 1}"#,
            "[]",
        ] {
            let rest = format!("{head}\né");
            let text = format!("nereid-answer 1 {}\n{rest}", summary(rest.as_bytes()));
            assert_eq!(decode(text.as_bytes()).err(), Some(Unreadable::Damaged), "{head}");
        }
    }

    proptest! {
        #[test]
        fn answers_are_read_as_they_were_written(
            principal in prop::option::of("\\PC*"),
            document in "(?s).*",
            turns in prop::collection::vec("(?s).*", 0..4),
        ) {
            let turns: Vec<_> = turns.iter().map(String::as_str).collect();
            let answer = answer(principal.as_deref(), &document, &turns);
            let found = decode(&encode(&answer).unwrap()).unwrap();
            prop_assert_eq!(format!("{found:?}"), format!("{answer:?}"));
        }

        #[test]
        fn any_contents_are_refused(contents in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(decode(&contents).is_err());
            prop_assert!(decode(&[MAGIC, &contents].concat()).is_err());
        }
    }
}
