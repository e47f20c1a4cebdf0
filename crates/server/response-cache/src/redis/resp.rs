//! Redis's protocol, version 2, limited to what a cache needs: commands, and replies other than arrays.
//!
//! A server is trusted with a reply's length up to a limit; longer values are skipped as they arrive.

use bytes::{Buf, Bytes, BytesMut};

/// The longest line of a reply: errors and numbers.
const MAX_LINE: usize = 16 << 10;

/// Appends a command.
pub(super) fn write_command(target: &mut Vec<u8>, parts: &[&[u8]]) {
    target.extend_from_slice(format!("*{}\r\n", parts.len()).as_bytes());
    for part in parts {
        target.extend_from_slice(format!("${}\r\n", part.len()).as_bytes());
        target.extend_from_slice(part);
        target.extend_from_slice(b"\r\n");
    }
}

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// A simple string or an integer, such as `OK`.
    Line(String),
    /// A value; `None` if it is missing or too long.
    Value(Option<Bytes>),
    /// An error reply.
    Refusal(String),
}

/// The bytes are not a reply of any kind expected here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NotRedis;

/// Reads replies from what arrives.
pub(super) struct Replies {
    /// The longest value.
    max_value: usize,
    /// Remaining bytes of an oversized value, including its line end.
    skipped: usize,
    /// Length of the value being read.
    value: Option<usize>,
}

impl Replies {
    pub(super) fn new(max_value: usize) -> Self {
        Self { max_value, skipped: 0, value: None }
    }

    /// Parses the next reply; `None` until it is complete.
    ///
    /// # Errors
    /// The bytes are not a reply.
    pub(super) fn next(&mut self, arrived: &mut BytesMut) -> Result<Option<Reply>, NotRedis> {
        loop {
            if self.skipped > 0 {
                let skipped = self.skipped.min(arrived.len());
                arrived.advance(skipped);
                self.skipped -= skipped;
                return Ok((self.skipped == 0).then_some(Reply::Value(None)));
            }
            if let Some(length) = self.value {
                if arrived.len() < length + 2 {
                    return Ok(None);
                }
                let value = arrived.split_to(length).freeze();
                if arrived.split_to(2)[..] != *b"\r\n" {
                    return Err(NotRedis);
                }
                self.value = None;
                return Ok(Some(Reply::Value(Some(value))));
            }
            let Some(end) = arrived.iter().take(MAX_LINE).position(|byte| *byte == b'\n') else {
                return if arrived.len() < MAX_LINE { Ok(None) } else { Err(NotRedis) };
            };
            let line = arrived.split_to(end + 1);
            let line = line.strip_suffix(b"\r\n").ok_or(NotRedis)?;
            let (kind, rest) = line.split_first().ok_or(NotRedis)?;
            let text = || String::from_utf8_lossy(rest).into_owned();
            match kind {
                b'+' | b':' => return Ok(Some(Reply::Line(text()))),
                b'-' => return Ok(Some(Reply::Refusal(text()))),
                b'$' if rest == b"-1" => return Ok(Some(Reply::Value(None))),
                b'$' => {
                    let length: usize = text().parse().map_err(|_| NotRedis)?;
                    if length <= self.max_value {
                        self.value = Some(length);
                    } else {
                        self.skipped = length.checked_add(2).ok_or(NotRedis)?;
                    }
                }
                _ => return Err(NotRedis),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 100;

    fn read(pieces: &[&[u8]]) -> Result<Vec<Reply>, NotRedis> {
        let (mut replies, mut arrived, mut found) = (Replies::new(MAX), BytesMut::new(), Vec::new());
        for piece in pieces {
            arrived.extend_from_slice(piece);
            while let Some(reply) = replies.next(&mut arrived)? {
                found.push(reply);
            }
        }
        Ok(found)
    }

    #[test]
    fn commands_are_arrays_of_bulk_strings() {
        let mut written = Vec::new();
        write_command(&mut written, &[b"SET", b"", b"a\r\nb"]);
        assert_eq!(written, b"*3\r\n$3\r\nSET\r\n$0\r\n\r\n$4\r\na\r\nb\r\n");
    }

    #[test]
    fn malformed_replies_are_refused() {
        let endless = vec![b'+'; MAX_LINE + 1];
        let cases: [&[u8]; 8] =
            [b"HTTP/1.1 400\r\n", b"+a\n", b"$x\r\n", b"$-2\r\n", b"*1\r\n", b"\r\n", b"$1\r\nabc", &endless];
        for bytes in cases {
            assert_eq!(read(&[bytes]), Err(NotRedis), "{}", String::from_utf8_lossy(bytes));
        }
        assert_eq!(read(&[b"$18446744073709551615\r\n"]), Err(NotRedis));
    }

    proptest! {
        #[test]
        fn replies_parse_for_any_segmentation(
            given in prop::collection::vec((0..4_u8, prop::collection::vec(any::<u8>(), 0..150)), 0..8),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..10)
        ) {
            let (mut bytes, mut expected) = (Vec::new(), Vec::new());
            for (kind, contents) in given {
                let text = format!("t{}", contents.len());
                match kind {
                    0 => {
                        bytes.extend_from_slice(format!("+{text}\r\n").as_bytes());
                        expected.push(Reply::Line(text));
                    }
                    1 => {
                        bytes.extend_from_slice(format!("-{text}\r\n").as_bytes());
                        expected.push(Reply::Refusal(text));
                    }
                    2 => {
                        bytes.extend_from_slice(b"$-1\r\n");
                        expected.push(Reply::Value(None));
                    }
                    _ => {
                        bytes.extend_from_slice(format!("${}\r\n", contents.len()).as_bytes());
                        bytes.extend_from_slice(&contents);
                        bytes.extend_from_slice(b"\r\n");
                        let fits = contents.len() <= MAX;
                        expected.push(Reply::Value(fits.then(|| contents.into())));
                    }
                }
            }
            let mut places: Vec<_> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
            places.extend([0, bytes.len()]);
            places.sort_unstable();
            let pieces: Vec<_> = places.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect();
            prop_assert_eq!(read(&pieces), Ok(expected));
        }

        #[test]
        fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(prop_oneof![Just(b'$'), Just(b'\r'), Just(b'\n'), Just(b'1'), any::<u8>()], 0..60)) {
            let _ = read(&[&bytes]);
        }
    }
}
