//! The text of a generation as it grows: whole characters only, up to a stop string.

/// Turns pieces of tokens into text.
///
/// Holds back the bytes of an incomplete character, and text that may begin a stop string.
#[derive(Debug)]
pub(crate) struct TextStream {
    stops: Vec<String>,
    /// Whether the text ends after a stop string, and not before it.
    includes_stop: bool,
    /// The beginning of a character.
    bytes: Vec<u8>,
    /// Text that may begin a stop string.
    held: String,
}

/// Text that has become certain.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Pushed {
    pub(crate) text: String,
    /// Whether a stop string ended it.
    pub(crate) is_stopped: bool,
}

impl TextStream {
    /// An empty text. Empty stop strings are ignored.
    pub(crate) fn new(stops: impl IntoIterator<Item = String>, includes_stop: bool) -> Self {
        let stops = stops.into_iter().filter(|stop| !stop.is_empty()).collect();
        Self { stops, includes_stop, bytes: Vec::new(), held: String::new() }
    }

    /// Appends the bytes of a token. With `watches`, stop strings end the text; otherwise they are part of it.
    pub(crate) fn push(&mut self, piece: &[u8], watches: bool) -> Pushed {
        self.bytes.extend_from_slice(piece);
        self.take_characters();
        if !watches {
            return Pushed { text: std::mem::take(&mut self.held), is_stopped: false };
        }
        if let Some((start, length)) = self.first_stop() {
            let end = if self.includes_stop { start + length } else { start };
            let mut text = std::mem::take(&mut self.held);
            text.truncate(end);
            self.bytes.clear();
            return Pushed { text, is_stopped: true };
        }
        let certain = self.held.len() - self.longest_beginning();
        let held = self.held.split_off(certain);
        Pushed { text: std::mem::replace(&mut self.held, held), is_stopped: false }
    }

    /// The rest of the text, when no token follows.
    pub(crate) fn finish(&mut self) -> String {
        let mut text = std::mem::take(&mut self.held);
        text.push_str(&String::from_utf8_lossy(&self.bytes));
        self.bytes.clear();
        text
    }

    /// Moves all bytes but an incomplete last character to the text. Invalid ones become replacement characters.
    fn take_characters(&mut self) {
        let mut complete = 0;
        for chunk in self.bytes.utf8_chunks() {
            self.held.push_str(chunk.valid());
            complete += chunk.valid().len();
            let invalid = chunk.invalid();
            let is_last = complete + invalid.len() == self.bytes.len();
            if is_last && is_incomplete(invalid) {
                break;
            }
            if !invalid.is_empty() {
                self.held.push(char::REPLACEMENT_CHARACTER);
                complete += invalid.len();
            }
        }
        self.bytes.drain(..complete);
    }

    /// The place and length of the stop string that begins first; of several, the longest.
    fn first_stop(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().filter_map(|stop| Some((self.held.find(stop)?, stop.len())));
        found.min_by_key(|(start, length)| (*start, usize::MAX - length))
    }

    /// The length of the longest end of the text that begins a stop string.
    fn longest_beginning(&self) -> usize {
        let begins = |stop: &String| {
            let lengths = (1..stop.len()).rev().filter(|length| *length <= self.held.len());
            lengths
                .filter(|length| stop.is_char_boundary(*length))
                .find(|length| self.held.as_bytes().ends_with(stop.as_bytes().get(..*length).unwrap_or(&[])))
        };
        self.stops.iter().filter_map(begins).max().unwrap_or(0)
    }
}

/// Whether further bytes may complete the character that these begin.
fn is_incomplete(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_err_and(|error| error.error_len().is_none())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Everything that a stream of pieces yields, and whether a stop string ended it.
    fn run(stops: &[&str], includes_stop: bool, pieces: &[&[u8]]) -> (Vec<String>, bool) {
        let mut stream = TextStream::new(stops.iter().map(|&stop| stop.to_owned()), includes_stop);
        let mut texts = Vec::new();
        for piece in pieces {
            let Pushed { text, is_stopped } = stream.push(piece, true);
            texts.push(text);
            if is_stopped {
                return (texts, true);
            }
        }
        texts.push(stream.finish());
        (texts, false)
    }

    #[test]
    fn characters_are_whole() {
        for (pieces, expected) in [
            (&[&b"a"[..], b"b"][..], &["a", "b", ""][..]),
            (&[b"\xf0\x9f", b"\x98", b"\x80!"], &["", "", "😀!", ""]),
            (&[b"\xe2\x82", b"x"], &["", "\u{fffd}x", ""]),
            (&[b"\xff", b"\xc3"], &["\u{fffd}", "", "\u{fffd}"]),
            (&[b"a\xffb\xc3", b"\xa9"], &["a\u{fffd}b", "é", ""]),
        ] {
            assert_eq!(
                run(&[], false, pieces),
                (expected.iter().map(|&text| text.to_owned()).collect(), false)
            );
        }
    }

    #[test]
    fn stop_strings_end_the_text_wherever_tokens_begin() {
        for (stops, pieces, expected, with_stop) in [
            (&["END"][..], &[&b"some E"[..], b"N", b"D more"][..], "some ", "some END"),
            (&["\n\n"], &[b"a\n", b"b\n", b"\nc"], "a\nb", "a\nb\n\n"),
            (&["xyz", "y"], &[b"ax", b"yz"], "a", "axyz"),
            (&["yz", "y"], &[b"axyz"], "ax", "axyz"),
            (&["é"], &[b"caf\xc3", b"\xa9 au lait"], "caf", "café"),
            (&["", "b"], &[b"abc"], "a", "ab"),
        ] {
            for (includes_stop, expected) in [(false, expected), (true, with_stop)] {
                let (texts, is_stopped) = run(stops, includes_stop, pieces);
                assert_eq!(
                    (texts.concat(), is_stopped),
                    (expected.to_owned(), true),
                    "{stops:?} {includes_stop}"
                );
            }
        }
    }

    #[test]
    fn beginning_of_a_stop_string_is_held_back_until_it_is_none() {
        let (texts, is_stopped) = run(&["STOP"], false, &[b"a ST", b"O", b"NE", b" S"]);
        assert_eq!(texts, ["a ", "", "STONE", " ", "S"]);
        assert!(!is_stopped);
    }

    #[test]
    fn unwatched_stop_strings_are_text() {
        let mut stream = TextStream::new(["b".to_owned()], false);
        assert_eq!(stream.push(b"abc", false), Pushed { text: "abc".to_owned(), is_stopped: false });
        assert_eq!(stream.push(b"abc", true), Pushed { text: "a".to_owned(), is_stopped: true });
    }

    proptest! {
        #[test]
        fn pieces_make_no_difference(
            text in "[ab😀é]{0,24}",
            stops in prop::collection::vec("[ab😀é]{1,4}", 0..4),
            cuts in prop::collection::vec(1_usize..5, 1..8),
        ) {
            let mut pieces = Vec::new();
            let mut rest = text.as_bytes();
            for cut in cuts.iter().cycle() {
                if rest.is_empty() {
                    break;
                }
                let (piece, later) = rest.split_at((*cut).min(rest.len()));
                pieces.push(piece);
                rest = later;
            }
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let first = stops.iter().filter_map(|stop| text.find(stop)).min();
            let (texts, is_stopped) = run(&stops, false, &pieces);
            prop_assert_eq!(is_stopped, first.is_some());
            let expected = first.map_or(text.as_str(), |first| &text[..first]);
            // A stop string may begin before another that is complete sooner.
            let found = texts.concat();
            if found != expected {
                prop_assert!(is_stopped && text.starts_with(&found) && found.len() > expected.len());
                prop_assert!(stops.iter().any(|stop| text[found.len()..].starts_with(stop)));
            }
        }

        #[test]
        fn any_bytes_become_the_text_that_they_are(bytes in prop::collection::vec(any::<u8>(), 0..40), cut in 1_usize..7) {
            let pieces: Vec<&[u8]> = bytes.chunks(cut).collect();
            let (texts, _) = run(&[], false, &pieces);
            prop_assert_eq!(texts.concat(), String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
