//! Finds where HTTP/2 frames begin in a stream of bytes, however it is cut into pieces.

/// Length of a frame's head.
const HEAD: usize = 9;

/// Scans one direction of a connection.
#[derive(Clone, Debug)]
pub(super) struct Scanner {
    /// Bytes until the next head.
    skip: usize,
    head: [u8; HEAD],
    /// Bytes of the head read so far.
    have: usize,
}

impl Scanner {
    /// Scans bytes that begin with a frame.
    pub(super) fn between_frames() -> Self {
        Self { skip: 0, head: [0; HEAD], have: 0 }
    }

    /// Whether the next byte begins a frame.
    pub(super) fn is_between_frames(&self) -> bool {
        self.skip == 0 && self.have == 0
    }

    /// Reads on.
    pub(super) fn read(&mut self, mut bytes: &[u8]) {
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
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_begin_where_the_one_before_ends() {
        let lengths = [0, 300, 70_000, 8, 4];
        let (mut bytes, mut begins) = (Vec::new(), Vec::new());
        for length in lengths {
            begins.push(bytes.len());
            bytes.extend(&(length as u32).to_be_bytes()[1..]);
            bytes.resize(bytes.len() + HEAD - 3 + length, 0xee);
        }
        begins.push(bytes.len());
        for size in [1, 2, 8, 9, 10, 1000, bytes.len()] {
            let (mut scanner, mut read) = (Scanner::between_frames(), 0);
            for piece in bytes.chunks(size) {
                scanner.read(piece);
                read += piece.len();
                assert_eq!(scanner.is_between_frames(), begins.contains(&read), "{size}: {read}");
            }
        }
    }
}
