//! Server-sent events, of which streamed answers consist.

/// The events of a stream, from its bytes.
#[derive(Debug, Default)]
pub(super) struct Events {
    /// Bytes received since the last complete event.
    rest: Vec<u8>,
}

impl Events {
    /// The data of the events that these bytes complete.
    pub(super) fn add(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let mut events = Vec::new();
        while let Some((end, mark)) = end(&self.rest) {
            let event: Vec<u8> = self.rest.drain(..end + mark).collect();
            let text = String::from_utf8_lossy(&event);
            let data = text.lines().filter_map(|line| line.strip_prefix("data:"));
            let data: Vec<_> = data.map(|data| data.strip_prefix(' ').unwrap_or(data)).collect();
            if !data.is_empty() {
                events.push(data.join("\n"));
            }
        }
        events
    }
}

/// Where the first event ends, and the length of the mark of its end.
fn end(bytes: &[u8]) -> Option<(usize, usize)> {
    let find =
        |mark: &[u8]| bytes.windows(mark.len()).position(|window| window == mark).map(|at| (at, mark.len()));
    [find(b"\n\n"), find(b"\r\n\r\n")].into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_complete_in_pieces_of_any_size() {
        let stream = "data: {\"a\":\"ü\"}\n\n: a comment\n\ndata:two\ndata: lines\nid: 7\n\r\ndata: x\r\n\r\ndata: unfinished";
        // The end of the third event is a line break of each kind.
        let stream = stream.replace("7\n\r\n", "7\n\n");
        for size in 1..stream.len() {
            let mut events = Events::default();
            let found: Vec<_> = stream.as_bytes().chunks(size).flat_map(|piece| events.add(piece)).collect();
            assert_eq!(found, ["{\"a\":\"ü\"}", "two\nlines", "x"], "{size}");
        }
    }
}
