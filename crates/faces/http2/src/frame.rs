//! Frames on the wire (RFC 9113, sections 4 and 6).

use crate::Reason;

/// The preface that a client sends before its first frame.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Length of a frame's head.
pub(crate) const HEAD: usize = 9;

pub(crate) const DATA: u8 = 0;
pub(crate) const HEADERS: u8 = 1;
pub(crate) const PRIORITY: u8 = 2;
pub(crate) const RST_STREAM: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;
pub(crate) const PUSH_PROMISE: u8 = 5;
pub(crate) const PING: u8 = 6;
pub(crate) const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const CONTINUATION: u8 = 9;

pub(crate) const END_STREAM: u8 = 0x1;
pub(crate) const ACK: u8 = 0x1;
pub(crate) const END_HEADERS: u8 = 0x4;
pub(crate) const PADDED: u8 = 0x8;
pub(crate) const PRIORITISED: u8 = 0x20;

/// The settings (RFC 9113, section 6.5.2).
pub(crate) mod setting {
    pub(crate) const HEADER_TABLE_SIZE: u16 = 1;
    pub(crate) const ENABLE_PUSH: u16 = 2;
    pub(crate) const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub(crate) const INITIAL_WINDOW_SIZE: u16 = 4;
    pub(crate) const MAX_FRAME_SIZE: u16 = 5;
    pub(crate) const MAX_HEADER_LIST_SIZE: u16 = 6;
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub length: usize,
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
}

impl Head {
    /// Reads the head at the beginning of `bytes`; `None` if it is incomplete.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, stream @ ..] = *bytes.first_chunk::<HEAD>()?;
        let length = u32::from_be_bytes([0, a, b, c]) as usize;
        Some(Self { length, kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff })
    }

    pub(crate) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// Appends the head of a frame.
pub(crate) fn put_head(buffer: &mut Vec<u8>, length: usize, kind: u8, flags: u8, stream: u32) {
    let [_, a, b, c] = (length as u32).to_be_bytes();
    let [d, e, f, g] = stream.to_be_bytes();
    buffer.extend_from_slice(&[a, b, c, kind, flags, d, e, f, g]);
}

/// Appends a frame that contains a number: RST_STREAM and WINDOW_UPDATE.
pub(crate) fn put_number(buffer: &mut Vec<u8>, kind: u8, stream: u32, number: u32) {
    put_head(buffer, 4, kind, 0, stream);
    buffer.extend_from_slice(&number.to_be_bytes());
}

pub(crate) fn put_ping(buffer: &mut Vec<u8>, flags: u8, contents: [u8; 8]) {
    put_head(buffer, contents.len(), PING, flags, 0);
    buffer.extend_from_slice(&contents);
}

pub(crate) fn put_goaway(buffer: &mut Vec<u8>, last: u32, reason: Reason, debug: &str) {
    put_head(buffer, 8 + debug.len(), GOAWAY, 0, 0);
    buffer.extend_from_slice(&last.to_be_bytes());
    buffer.extend_from_slice(&reason.0.to_be_bytes());
    buffer.extend_from_slice(debug.as_bytes());
}

pub(crate) fn put_settings(buffer: &mut Vec<u8>, settings: &[(u16, u32)]) {
    put_head(buffer, 6 * settings.len(), SETTINGS, 0, 0);
    for (name, value) in settings {
        buffer.extend_from_slice(&name.to_be_bytes());
        buffer.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends a header block as a HEADERS frame and, if it is longer than a frame may be, CONTINUATION frames.
pub(crate) fn put_block(buffer: &mut Vec<u8>, block: &[u8], flags: u8, stream: u32, max_frame: usize) {
    let (first, mut rest) = block.split_at(block.len().min(max_frame));
    let ends = |rest: &[u8]| if rest.is_empty() { END_HEADERS } else { 0 };
    put_head(buffer, first.len(), HEADERS, flags | ends(rest), stream);
    buffer.extend_from_slice(first);
    while !rest.is_empty() {
        let (next, others) = rest.split_at(rest.len().min(max_frame));
        rest = others;
        put_head(buffer, next.len(), CONTINUATION, ends(rest), stream);
        buffer.extend_from_slice(next);
    }
}

/// Contents without their padding. `None` if the padding is longer than the rest.
pub(crate) fn unpadded(head: &Head, contents: &[u8]) -> Option<(usize, usize)> {
    if !head.has(PADDED) {
        return Some((0, contents.len()));
    }
    let padding = usize::from(*contents.first()?);
    let end = contents.len().checked_sub(padding).filter(|end| *end >= 1)?;
    Some((1, end))
}

/// The number in contents of four bytes.
pub(crate) fn number(contents: &[u8]) -> Option<u32> {
    contents.try_into().ok().map(u32::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read_as_written() {
        for (length, kind, flags, stream) in [
            (0, DATA, 0, 0),
            (5, HEADERS, END_STREAM | END_HEADERS, 1),
            (0x00ab_cdef, 0xee, 0xff, 0x7fff_ffff),
        ] {
            let mut bytes = Vec::new();
            put_head(&mut bytes, length, kind, flags, stream);
            assert_eq!(Head::read(&bytes), Some(Head { length, kind, flags, stream }));
            assert_eq!(Head::read(&bytes[..HEAD - 1]), None);
            // The first bit of the stream means nothing.
            bytes[5] |= 0x80;
            assert_eq!(Head::read(&bytes).map(|head| head.stream), Some(stream));
        }
    }

    #[test]
    fn padding_is_removed() {
        let head = |flags| Head { length: 0, kind: DATA, flags, stream: 1 };
        for (flags, contents, expected) in [
            (0, &[3, 7, 7][..], Some((0, 3))),
            (PADDED, &[0, 7, 7], Some((1, 3))),
            (PADDED, &[2, 0, 0], Some((1, 1))),
            (PADDED, &[3, 0, 0], None),
            (PADDED, &[], None),
            (PADDED, &[0], Some((1, 1))),
        ] {
            assert_eq!(unpadded(&head(flags), contents), expected, "{flags} {contents:?}");
        }
    }

    #[test]
    fn long_blocks_continue_in_further_frames() {
        for (length, expected) in [
            (0, vec![(0, HEADERS, END_STREAM | END_HEADERS)]),
            (10, vec![(10, HEADERS, END_STREAM | END_HEADERS)]),
            (11, vec![(10, HEADERS, END_STREAM), (1, CONTINUATION, END_HEADERS)]),
            (30, vec![(10, HEADERS, END_STREAM), (10, CONTINUATION, 0), (10, CONTINUATION, END_HEADERS)]),
        ] {
            let mut bytes = Vec::new();
            put_block(&mut bytes, &vec![7; length], END_STREAM, 3, 10);
            let (mut rest, mut found) = (&bytes[..], Vec::new());
            while let Some(head) = Head::read(rest) {
                found.push((head.length, head.kind, head.flags));
                rest = &rest[HEAD + head.length..];
            }
            assert_eq!(found, expected);
        }
    }
}
