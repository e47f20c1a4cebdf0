//! Mends the authority that gRPC's own clients send at a Unix socket.
//!
//! They send the socket's path, percent-encoded, as `:authority`, which is not the authority of any URL, so the HTTP/2 library
//! would reset the call. The percent signs are replaced in place: the lengths of HPACK stay what they are.

use nereid_net::http2::{HEAD, PREFACE};

/// The beginning of a literal header with the name in full: the name's length, and the name.
const NAME: &[u8] = b"\x0a:authority";

/// The types of frames with parts of a header block.
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;

/// The length of a string that does not fit into the first byte (RFC 7541, section 5.1).
const LONG: u8 = 0x7f;

/// Reads the bytes of a client, however they are cut into pieces.
#[derive(Debug)]
pub(super) struct LocalAuthority {
    /// Bytes until the next head of a frame.
    rest: usize,
    /// Whether these bytes are of a header block.
    is_block: bool,
    head: [u8; HEAD],
    have: usize,
    state: State,
}

#[derive(Clone, Copy, Debug)]
enum State {
    /// This much of the name was read.
    Name(usize),
    /// The name was read; the length of the value follows.
    Length,
    /// The length is this much, and more of it follows, shifted by this.
    MoreLength(usize, u32),
    /// This much of the value follows.
    Value(usize),
}

impl LocalAuthority {
    pub(super) fn new() -> Self {
        Self { rest: PREFACE, is_block: false, head: [0; HEAD], have: 0, state: State::Name(0) }
    }

    /// Reads on, and replaces the percent signs of authorities.
    pub(super) fn read(&mut self, mut bytes: &mut [u8]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at_mut(self.rest.min(bytes.len()));
            if self.is_block {
                now.iter_mut().for_each(|byte| self.mend(byte));
            }
            self.rest -= now.len();
            let (head, later) = later.split_at_mut((HEAD - self.have).min(later.len()));
            for byte in head {
                if let Some(place) = self.head.get_mut(self.have) {
                    *place = *byte;
                }
                self.have += 1;
            }
            bytes = later;
            if self.have == HEAD {
                let [high, middle, low, kind, ..] = self.head;
                self.rest = u32::from_be_bytes([0, high, middle, low]) as usize;
                self.is_block = matches!(kind, HEADERS | CONTINUATION);
                if kind == HEADERS {
                    self.state = State::Name(0);
                }
                self.have = 0;
            }
        }
    }

    /// Reads a byte of a header block.
    fn mend(&mut self, byte: &mut u8) {
        self.state = match self.state {
            State::Name(count) if NAME.get(count) == Some(byte) => match count + 1 {
                count if count == NAME.len() => State::Length,
                count => State::Name(count),
            },
            State::Name(_) => State::Name(usize::from(NAME.first() == Some(byte))),
            State::Length if *byte == LONG => State::MoreLength(LONG.into(), 0),
            // The first bit marks a compressed value. Clients that encode paths do not compress.
            State::Length if *byte > LONG => State::Name(0),
            State::Length => State::value((*byte).into()),
            State::MoreLength(length, shift) => {
                let length = length + (usize::from(*byte & 0x7f) << shift);
                match *byte & 0x80 == 0 {
                    true => State::value(length),
                    // Three bytes are more than the path of a socket can need.
                    false if shift < 14 => State::MoreLength(length, shift + 7),
                    false => State::Name(0),
                }
            }
            State::Value(left) => {
                if *byte == b'%' {
                    *byte = b'-';
                }
                State::value(left - 1)
            }
        };
    }
}

impl State {
    fn value(left: usize) -> Self {
        if left == 0 { Self::Name(0) } else { Self::Value(left) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, contents: &[u8]) -> Vec<u8> {
        let mut bytes = (contents.len() as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, 4, 0, 0, 0, 1]);
        bytes.extend(contents);
        bytes
    }

    fn authority(value: &str) -> Vec<u8> {
        let mut block = b"@\x05:path\x03/%a@".to_vec();
        block.extend(NAME);
        match value.len() {
            length if length < 127 => block.push(length as u8),
            length => block.extend([127, ((length - 127) as u8 % 128) | 128, ((length - 127) / 128) as u8]),
        }
        block.extend(value.as_bytes());
        block.extend(b"\x83@\x02te\x02%%");
        block
    }

    /// A client's bytes with this authority, whole and cut between two frames at each place.
    fn conversation(value: &str, cut: usize) -> Vec<u8> {
        let block = authority(value);
        let (first, second) = block.split_at(cut.min(block.len()));
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(4, b""));
        bytes.extend(frame(HEADERS, first));
        bytes.extend(frame(CONTINUATION, second));
        // Contents of messages are not touched.
        bytes.extend(frame(0, &authority("%2Fx")));
        bytes.extend(frame(HEADERS, b"\xbe\xbf"));
        bytes
    }

    #[test]
    fn only_percent_signs_of_the_authority_are_replaced() {
        for length in [0, 1, 5, 100, 126, 127, 128, 200, 300] {
            let value: String = "%2Fa".chars().cycle().take(length).collect();
            for cut in [0, 8, 12, 20, 24, 40, 1000] {
                let expected = conversation(&value.replace('%', "-"), cut);
                for size in [1, 2, 9, 33, 10_000] {
                    let (mut bytes, mut reader) = (conversation(&value, cut), LocalAuthority::new());
                    bytes.chunks_mut(size).for_each(|piece| reader.read(piece));
                    assert!(bytes == expected, "{length} {cut} {size}");
                }
            }
        }
    }

    #[test]
    fn garbage_is_passed_on() {
        for block in [
            b"\x0a:authority\xff%%%%".as_slice(),
            b"\x0a:authority\x7f\xff\xff\xff\xff\xff%%",
            b"\x0a:authority",
        ] {
            let mut bytes = vec![b'%'; PREFACE];
            bytes.extend(frame(HEADERS, block));
            bytes.extend(frame(HEADERS, b"%%"));
            let expected = bytes.clone();
            LocalAuthority::new().read(&mut bytes);
            assert_eq!(bytes, expected);
        }
    }
}
