//! Texts that may be cut anywhere: marks and stop texts are found across the pieces in which a text arrives, and characters across
//! those in which their bytes do.

/// The outcome of looking for marks in the beginning of a text that continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Search {
    /// The mark with this index begins and ends at these bytes. It is the first that is complete, and the longest of several that
    /// end there.
    Found { start: usize, end: usize, which: usize },
    /// No mark is complete, and none begins in front of this byte.
    Missing { safe: usize },
}

/// Looks for marks, which are not empty.
pub(crate) fn search<M: AsRef<str>>(text: &str, marks: &[M]) -> Search {
    let found = marks.iter().enumerate().filter_map(|(which, mark)| {
        let mark = mark.as_ref();
        let start = text.find(mark)?;
        Some((start + mark.len(), start, which))
    });
    if let Some((end, start, which)) = found.min() {
        return Search::Found { start, end, which };
    }
    let pending = marks.iter().map(|mark| pending(text, mark.as_ref())).max().unwrap_or(0);
    Search::Missing { safe: text.len() - pending }
}

/// The length of the longest end of `text` that is a beginning of `mark`.
fn pending(text: &str, mark: &str) -> usize {
    let longest = text.len().min(mark.len().saturating_sub(1));
    (1..=longest)
        .rev()
        .find(|length| text.as_bytes().ends_with(mark.as_bytes().get(..*length).unwrap_or(&[])))
        .unwrap_or(0)
}

/// Cuts a text at the first of its stop texts.
#[derive(Debug, Default)]
pub(crate) struct StopCutter {
    /// The end of the text so far that may be the beginning of a stop text.
    held: String,
}

impl StopCutter {
    /// Adds a piece of the text to `output`, without what may belong to a stop text. Returns whether a stop text was found: the
    /// text has ended there.
    pub(crate) fn push<M: AsRef<str>>(&mut self, piece: &str, stops: &[M], output: &mut String) -> bool {
        if stops.is_empty() {
            output.push_str(piece);
            return false;
        }
        self.held.push_str(piece);
        let (end, is_stopped) = match search(&self.held, stops) {
            Search::Found { start, .. } => (start, true),
            Search::Missing { safe } => (safe, false),
        };
        output.extend(self.held.drain(..end));
        is_stopped
    }

    /// The rest of a text that ended without a stop text.
    pub(crate) fn finish(&mut self, output: &mut String) {
        output.push_str(&std::mem::take(&mut self.held));
    }
}

/// Joins characters whose bytes arrive in several pieces. Bytes that are not UTF-8 become replacement characters.
#[derive(Debug, Default)]
pub(crate) struct Utf8Joiner {
    /// The beginning of a character.
    held: Vec<u8>,
}

impl Utf8Joiner {
    /// The complete characters up to the end of this piece.
    pub(crate) fn push(&mut self, piece: Vec<u8>) -> String {
        let mut bytes = match self.held.is_empty() {
            true => piece,
            false => [std::mem::take(&mut self.held), piece].concat(),
        };
        let cut = match std::str::from_utf8(&bytes) {
            Ok(_) => bytes.len(),
            Err(_) => bytes.len() - incomplete(&bytes),
        };
        self.held = bytes.split_off(cut);
        String::from_utf8(bytes)
            .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
    }

    /// The rest of a text that has ended.
    pub(crate) fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// The length of the incomplete character at the end.
fn incomplete(bytes: &[u8]) -> usize {
    (1..=3.min(bytes.len()))
        .find(|length| {
            let end = bytes.get(bytes.len() - length..).unwrap_or_default();
            std::str::from_utf8(end)
                .is_err_and(|error| error.valid_up_to() == 0 && error.error_len().is_none())
        })
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn first_complete_mark_is_found() {
        for (text, marks, expected) in [
            ("abcd", &["cd", "bc"][..], Search::Found { start: 1, end: 3, which: 1 }),
            ("abcd", &["bcd", "abc", "bc"], Search::Found { start: 0, end: 3, which: 1 }),
            ("abc", &["cd"], Search::Missing { safe: 2 }),
            ("abc", &["x", "bcd", "cd"], Search::Missing { safe: 1 }),
            ("aé", &["éa"], Search::Missing { safe: 1 }),
            ("", &["a"], Search::Missing { safe: 0 }),
        ] {
            assert_eq!(search(text, marks), expected, "{text} {marks:?}");
        }
    }

    proptest! {
        /// However a text is cut into pieces, it ends at the stop text that is complete first, and nothing else is lost.
        #[test]
        fn text_ends_at_the_first_stop_however_it_arrives(
            text in "[abé]{0,24}",
            stops in prop::collection::vec("[abé]{1,4}", 0..4),
            cuts in prop::collection::vec(0_usize..24, 0..8),
        ) {
            let found = stops.iter().filter_map(|stop| Some((text.find(stop.as_str())? + stop.len(), stop.len())));
            let end = found.min_by_key(|(end, length)| (*end, usize::MAX - length)).map(|(end, length)| end - length);
            let characters: Vec<char> = text.chars().collect();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(characters.len())).collect();
            cuts.extend([0, characters.len()]);
            cuts.sort_unstable();
            let (mut cutter, mut output, mut is_stopped) = (StopCutter::default(), String::new(), false);
            for pair in cuts.windows(2) {
                let piece: String = characters[pair[0]..pair[1]].iter().collect();
                is_stopped = cutter.push(&piece, &stops, &mut output);
                if is_stopped {
                    break;
                }
            }
            if !is_stopped {
                cutter.finish(&mut output);
            }
            prop_assert_eq!(is_stopped, end.is_some());
            prop_assert_eq!(&output, &text[..end.unwrap_or(text.len())]);
        }

        /// However the bytes of a text are cut, its characters arrive whole.
        #[test]
        fn characters_arrive_whole(text in "[aé€😀]{0,12}", cuts in prop::collection::vec(0_usize..48, 0..8)) {
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).collect();
            cuts.extend([0, text.len()]);
            cuts.sort_unstable();
            let mut joiner = Utf8Joiner::default();
            let mut joined: String =
                cuts.windows(2).map(|pair| joiner.push(text.as_bytes()[pair[0]..pair[1]].to_vec())).collect();
            joined.push_str(&joiner.finish());
            prop_assert_eq!(joined, text);
        }
    }

    #[test]
    fn invalid_bytes_become_replacement_characters() {
        let mut joiner = Utf8Joiner::default();
        assert_eq!(joiner.push(b"a\xffb\xe2\x82".to_vec()), "a\u{fffd}b");
        assert_eq!(joiner.push(b"c".to_vec()), "\u{fffd}c");
        assert_eq!(joiner.push(b"\xf0\x9f".to_vec()), "");
        assert_eq!(joiner.finish(), "\u{fffd}");
        assert_eq!(joiner.finish(), "");
    }
}
