//! A frame: the length of its payload (u32), its kind (u16), 2 bytes that are 0, then the payload.

use crate::codec::{Malformed, Reader};

/// Largest payload, in bytes. Tensors are elsewhere: this is for configurations, files of models, and many small tensors.
pub const MAX_FRAME: usize = 1 << 30;

/// Length of what precedes a payload.
pub(crate) const HEADER: usize = 8;

/// A frame as it was received.
#[derive(Debug)]
pub struct Frame {
    /// The kind: a constant of [`call`](crate::call) or [`side`](crate::side).
    pub kind: u16,
    /// The contents.
    pub payload: Vec<u8>,
}

impl Frame {
    /// Reads the payload.
    pub fn reader(&self) -> Reader<'_> {
        Reader::new(&self.payload)
    }
}

/// The header of a frame. `None` if the payload is too long.
pub(crate) fn header(kind: u16, length: usize) -> Option<[u8; HEADER]> {
    let length = u32::try_from(length).ok().filter(|length| *length as usize <= MAX_FRAME)?;
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&length.to_le_bytes());
    header[4..6].copy_from_slice(&kind.to_le_bytes());
    Some(header)
}

/// Kind and length of the frame with this header.
pub(crate) fn parse_header(header: [u8; HEADER]) -> Result<(u16, usize), Malformed> {
    let [a, b, c, d, kind_low, kind_high, zero, other] = header;
    let length = u32::from_le_bytes([a, b, c, d]) as usize;
    if length > MAX_FRAME {
        return Err(Malformed("the frame is too long"));
    }
    if (zero, other) != (0, 0) {
        return Err(Malformed("the frame's header is invalid"));
    }
    Ok((u16::from_le_bytes([kind_low, kind_high]), length))
}
