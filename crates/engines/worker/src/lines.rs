//! Splits the output of a process into lines.

use std::os::fd::OwnedFd;

/// Longer lines are cut into pieces.
const MAX_LINE: usize = 16 << 10;

/// Read at most this much at a time, so that a process that prints without end does not delay other work.
const READ: usize = 16 << 10;

/// One of a process's outputs.
pub(crate) struct Lines {
    pub pipe: Option<OwnedFd>,
    partial: Vec<u8>,
}

impl Lines {
    pub(crate) fn new(pipe: OwnedFd) -> Self {
        Self { pipe: Some(pipe), partial: Vec::new() }
    }

    /// Reads what was printed, and reports each line. `false` if nothing is there now, or ever.
    pub(crate) fn read(&mut self, report: &mut dyn FnMut(&str)) -> bool {
        let Some(pipe) = &self.pipe else { return false };
        let mut buffer = [0; READ];
        match rustix::io::read(pipe, &mut buffer) {
            Ok(count) if count > 0 => {
                self.take(buffer.get(..count).unwrap_or(&buffer), report);
                true
            }
            Err(rustix::io::Errno::INTR) => true,
            Err(rustix::io::Errno::AGAIN) => false,
            Ok(_) | Err(_) => {
                self.pipe = None;
                self.end(report);
                false
            }
        }
    }

    /// Reports what is left of a last line without an end.
    pub(crate) fn end(&mut self, report: &mut dyn FnMut(&str)) {
        if !self.partial.is_empty() {
            report(&String::from_utf8_lossy(&std::mem::take(&mut self.partial)));
        }
    }

    fn take(&mut self, mut printed: &[u8], report: &mut dyn FnMut(&str)) {
        while !printed.is_empty() {
            let room = MAX_LINE.saturating_sub(self.partial.len());
            let seen = printed.get(..room).unwrap_or(printed);
            let mut lines = seen.splitn(2, |byte| *byte == b'\n');
            self.partial.extend_from_slice(lines.next().unwrap_or_default());
            let used = match lines.next() {
                Some(rest) => seen.len() - rest.len(),
                None if seen.len() < room => return,
                None => seen.len(),
            };
            printed = printed.get(used..).unwrap_or_default();
            let line = std::mem::take(&mut self.partial);
            report(String::from_utf8_lossy(&line).trim_end_matches('\r'));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(pieces: &[&[u8]]) -> Vec<String> {
        let mut lines = Lines { pipe: None, partial: Vec::new() };
        let mut seen = Vec::new();
        let mut report = |line: &str| seen.push(line.to_owned());
        pieces.iter().for_each(|piece| lines.take(piece, &mut report));
        lines.end(&mut report);
        seen
    }

    #[test]
    fn lines_are_reported_once_they_are_whole_or_too_long() {
        for (pieces, expected) in [
            (&[&b"a\nb\r\n\nc"[..]][..], vec!["a", "b", "", "c"]),
            (&[b"a", b"b\n", b"\n"], vec!["ab", ""]),
            (&[b"\xff\n"], vec!["\u{fffd}"]),
            (&[], vec![]),
        ] {
            assert_eq!(lines(pieces), expected);
        }
        let long = vec![b'x'; MAX_LINE + 5];
        assert_eq!(lines(&[&long]).iter().map(String::len).collect::<Vec<_>>(), [MAX_LINE, 5]);
    }

    proptest! {
        #[test]
        fn how_the_pieces_arrive_makes_no_difference(text in "[a-c\n]{0,60}", cuts in prop::collection::vec(1_usize..9, 1..9)) {
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
            prop_assert_eq!(lines(&pieces), text.lines().map(str::to_owned).collect::<Vec<_>>());
        }
    }
}
