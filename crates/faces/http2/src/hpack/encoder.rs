//! Encodes the header blocks of replies.
//!
//! Replies repeat a few fields, such as the content type and the status of success. These enter the dynamic table once and take a
//! byte then. All others are literals: they change with each reply, or are rare.

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::TABLE_SIZE;
use super::field::STATIC_COUNT;

/// Most fields in the table. With the limit of their length, they always fit, so none is ever evicted.
const MOST: usize = 16;

/// The longest value that enters the table.
const LONGEST: usize = 64;

/// The names of the fields that enter the table.
const REPEATED: [&str; 4] = ["grpc-status", "grpc-encoding", "grpc-accept-encoding", "server"];

/// The encoder of a connection, with its dynamic table.
#[derive(Debug, Default)]
pub(crate) struct Encoder {
    /// The table, oldest first.
    table: Vec<(HeaderName, HeaderValue)>,
    /// Whether the client has a smaller table than the usual one. Then nothing enters it.
    is_small: bool,
    /// Whether the next block has to begin with the size of the table.
    announces: bool,
}

impl Encoder {
    /// The client limits the table to this size.
    pub(crate) fn limit(&mut self, size: usize) {
        if size < TABLE_SIZE && !self.is_small {
            self.is_small = true;
            self.announces = true;
            self.table.clear();
        }
    }

    /// Appends the block of a reply's head.
    pub(crate) fn head(&mut self, status: StatusCode, headers: &HeaderMap, block: &mut Vec<u8>) {
        self.announce(block);
        match status.as_u16() {
            200 => block.push(0x88),
            204 => block.push(0x89),
            400 => block.push(0x8c),
            404 => block.push(0x8d),
            500 => block.push(0x8e),
            // A literal with the name of the static table's eighth field.
            _ => {
                block.push(0x08);
                string(status.as_str().as_bytes(), block);
            }
        }
        self.fields(headers, block);
    }

    /// Appends the block of a reply's trailers.
    pub(crate) fn trailers(&mut self, trailers: &HeaderMap, block: &mut Vec<u8>) {
        self.announce(block);
        self.fields(trailers, block);
    }

    fn announce(&mut self, block: &mut Vec<u8>) {
        if std::mem::take(&mut self.announces) {
            block.push(0x20);
        }
    }

    fn fields(&mut self, headers: &HeaderMap, block: &mut Vec<u8>) {
        for (name, value) in headers {
            if self.is_small || value.is_sensitive() || !is_repeated(name, value) {
                literal(0x00, name, value, block);
            } else if let Some(at) = self.table.iter().position(|known| known.0 == *name && known.1 == *value)
            {
                integer(0x80, 7, STATIC_COUNT + self.table.len() - at, block);
            } else if self.table.len() < MOST {
                self.table.push((name.clone(), value.clone()));
                literal(0x40, name, value, block);
            } else {
                literal(0x00, name, value, block);
            }
        }
    }
}

fn is_repeated(name: &HeaderName, value: &HeaderValue) -> bool {
    value.len() <= LONGEST
        && (name == CONTENT_TYPE || name == CONTENT_ENCODING || REPEATED.contains(&name.as_str()))
}

/// A literal field with its name in full. `kind` is its first byte.
fn literal(kind: u8, name: &HeaderName, value: &HeaderValue, block: &mut Vec<u8>) {
    // No intermediary may put credentials into a table.
    block.push(if value.is_sensitive() { 0x10 } else { kind });
    string(name.as_str().as_bytes(), block);
    string(value.as_bytes(), block);
}

fn string(text: &[u8], block: &mut Vec<u8>) {
    integer(0, 7, text.len(), block);
    block.extend_from_slice(text);
}

/// An integer that begins in the last `prefix` bits of the byte `kind`.
fn integer(kind: u8, prefix: u32, value: usize, block: &mut Vec<u8>) {
    let most = (1_usize << prefix) - 1;
    if value < most {
        block.push(kind | value as u8);
        return;
    }
    block.push(kind | most as u8);
    let mut rest = value - most;
    while rest >= 0x80 {
        block.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    block.push(rest as u8);
}

#[cfg(test)]
mod tests;
