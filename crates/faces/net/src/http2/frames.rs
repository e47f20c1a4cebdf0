//! Finds HTTP/2 frames in a stream of bytes, however it is cut into pieces. Reads their heads only.

/// Length of the preface that a client sends before its first frame.
pub const PREFACE: usize = 24;

/// Length of a frame's head.
pub const HEAD: usize = 9;

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The frame's type.
    pub kind: Kind,
    /// The stream that it belongs to; 0 for the connection.
    pub stream: u32,
    flags: u8,
}

/// The kinds of frames that matter here (RFC 9113, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Part of a message.
    Data,
    /// The head or the trailers of a message.
    Headers,
    /// RST_STREAM: the end of a stream.
    Reset,
    /// A ping, or its acknowledgement.
    Ping,
    /// Any other.
    Other,
}

impl Frame {
    fn read(head: [u8; HEAD]) -> Self {
        let kind = match head[3] {
            0 => Kind::Data,
            1 => Kind::Headers,
            3 => Kind::Reset,
            6 => Kind::Ping,
            _ => Kind::Other,
        };
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        Self { kind, stream, flags: head[4] }
    }

    /// Whether the frame is the sender's last on its stream.
    pub fn ends_stream(self) -> bool {
        match self.kind {
            Kind::Data | Kind::Headers => self.flags & 1 != 0,
            Kind::Reset => true,
            Kind::Ping | Kind::Other => false,
        }
    }

    /// Whether the frame acknowledges a ping.
    pub fn answers(self) -> bool {
        self.kind == Kind::Ping && self.flags & 1 != 0
    }
}

/// Scans one direction of a connection.
#[derive(Clone, Debug)]
pub struct Scanner {
    /// Bytes until the next head.
    skip: usize,
    head: [u8; HEAD],
    /// Bytes of the head read so far.
    have: usize,
}

impl Scanner {
    /// Scans a client's bytes, which begin with the preface.
    pub fn of_client() -> Self {
        Self { skip: PREFACE, ..Self::between_frames() }
    }

    /// Scans bytes that begin with a frame, as a server's do.
    pub fn between_frames() -> Self {
        Self { skip: 0, head: [0; HEAD], have: 0 }
    }

    /// Whether the next byte begins a frame.
    pub fn is_between_frames(&self) -> bool {
        self.skip == 0 && self.have == 0
    }

    /// Reads on and reports each complete head.
    pub fn read(&mut self, mut bytes: &[u8], mut found: impl FnMut(Frame)) {
        while !bytes.is_empty() {
            let skipped = self.skip.min(bytes.len());
            self.skip -= skipped;
            bytes = &bytes[skipped..];
            let taken = (HEAD - self.have).min(bytes.len());
            self.head[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            self.have += taken;
            bytes = &bytes[taken..];
            if self.have == HEAD {
                let [high, middle, low, ..] = self.head;
                self.skip = u32::from_be_bytes([0, high, middle, low]) as usize;
                self.have = 0;
                found(Frame::read(self.head));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A frame with this many bytes of contents.
    fn frame(kind: u8, flags: u8, stream: u32, length: usize) -> Vec<u8> {
        let mut bytes = (length as u32).to_be_bytes()[1..].to_vec();
        bytes.extend([kind, flags]);
        bytes.extend(stream.to_be_bytes());
        bytes.resize(HEAD + length, 0xee);
        bytes
    }

    #[test]
    fn frames_are_found_for_any_segmentation() {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(4, 0, 0, 0));
        bytes.extend(frame(1, 4, 1, 300));
        bytes.extend(frame(0, 1, 1, 70_000));
        bytes.extend(frame(6, 1, 0, 8));
        bytes.extend(frame(3, 0, 0x7fff_ffff, 4));
        for size in [1, 2, 8, 9, 10, 1000, bytes.len()] {
            let mut scanner = Scanner::of_client();
            let mut found = Vec::new();
            for piece in bytes.chunks(size) {
                scanner.read(piece, |frame| found.push(frame));
            }
            let kinds: Vec<_> = found.iter().map(|frame| frame.kind).collect();
            assert_eq!(kinds, [Kind::Other, Kind::Headers, Kind::Data, Kind::Ping, Kind::Reset], "{size}");
            assert_eq!(found.iter().map(|frame| frame.stream).collect::<Vec<_>>(), [0, 1, 1, 0, 0x7fff_ffff]);
            let ends: Vec<_> = found.iter().map(|frame| frame.ends_stream()).collect();
            assert_eq!(ends, [false, false, true, false, true]);
            assert!(found[3].answers() && !found[2].answers());
            assert!(scanner.is_between_frames());
        }
    }

    #[test]
    fn between_frames_is_true_at_boundaries_only() {
        let mut scanner = Scanner::between_frames();
        assert!(scanner.is_between_frames());
        let bytes = frame(0, 0, 1, 3);
        for byte in &bytes[..bytes.len() - 1] {
            scanner.read(&[*byte], |_| {});
            assert!(!scanner.is_between_frames());
        }
        scanner.read(&bytes[bytes.len() - 1..], |_| {});
        assert!(scanner.is_between_frames());
    }
}
