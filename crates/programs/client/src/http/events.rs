//! Server-sent events.

use std::collections::VecDeque;

use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use serde_json::Value;

use crate::transport::innermost;
use crate::{Code, Error};

/// The responses of a stream, as they arrive. Dropped early, it cancels the request.
#[derive(Debug)]
pub struct Events {
    body: Incoming,
    parser: EventParser,
    ready: VecDeque<String>,
}

impl Events {
    pub(super) fn new(body: Incoming) -> Self {
        Self { body, parser: EventParser::default(), ready: VecDeque::new() }
    }

    /// The next response; `None` at the end.
    ///
    /// # Errors
    /// The model failed, or the stream broke off.
    pub async fn next(&mut self) -> Result<Option<Value>, Error> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return read(&event).map(Some);
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(error)) => return Err(Error::Lost(innermost(&error))),
                Some(Ok(frame)) => {
                    if let Some(bytes) = frame.data_ref() {
                        self.ready.extend(self.parser.add(bytes));
                    }
                }
            }
        }
    }
}

/// The document of an event. A document with nothing but an error is one.
fn read(event: &str) -> Result<Value, Error> {
    let document: Value = serde_json::from_str(event)
        .map_err(|error| Error::response(format!("an event is not JSON: {error}")))?;
    match document.as_object() {
        Some(members) if members.len() == 1 => match document["error"].as_str() {
            Some(message) => {
                Err(Error::Status { code: Code::Unknown, message: message.to_owned(), retry_after: None })
            }
            None => Ok(document),
        },
        _ => Ok(document),
    }
}

/// Splits a stream into the data of its events.
#[derive(Debug, Default)]
pub struct EventParser {
    /// A line without its end so far.
    line: Vec<u8>,
    /// The lines of data of an event so far.
    data: Vec<String>,
}

impl EventParser {
    /// The events that are complete with these bytes.
    pub fn add(&mut self, bytes: &[u8]) -> Vec<String> {
        let mut events = Vec::new();
        for byte in bytes {
            if *byte != b'\n' {
                self.line.push(*byte);
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(&line)).into_owned();
            if line.is_empty() {
                let data = std::mem::take(&mut self.data);
                events.extend((!data.is_empty()).then(|| data.join("\n")));
            } else if let Some(data) = line.strip_prefix("data:") {
                self.data.push(data.strip_prefix(' ').unwrap_or(data).to_owned());
            }
        }
        events
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn events_are_complete_in_pieces_of_any_size() {
        let stream = "data: {\"a\":\"ü\"}\n\n: a comment\n\ndata:two\ndata: lines\nid: 7\n\ndata: x\r\n\r\ndata: unfinished";
        for size in 1..stream.len() {
            let mut parser = EventParser::default();
            let found: Vec<_> = stream.as_bytes().chunks(size).flat_map(|piece| parser.add(piece)).collect();
            assert_eq!(found, ["{\"a\":\"ü\"}", "two\nlines", "x"], "{size}");
        }
    }

    #[test]
    fn errors_of_models_end_as_errors() {
        assert_eq!(read(r#"{"error": "no", "y": 1}"#).unwrap(), json!({"error": "no", "y": 1}));
        assert_eq!(read(r#"{"error": "no"}"#).unwrap_err().to_string(), "no (unknown error)");
        assert!(matches!(read("x"), Err(Error::Response(_))));
    }
}
