//! HPACK (RFC 7541): decodes the header blocks of clients and encodes header blocks of replies.

mod decoder;
mod encoder;
mod field;
mod huffman;

pub(crate) use self::decoder::Decoder;
pub(crate) use self::encoder::Encoder;
pub(crate) use self::field::{Field, Name, Pseudo};

/// The default size of a dynamic table.
pub(crate) const TABLE_SIZE: usize = 4096;

/// Overhead of a field in a table and in the size of a header list, added to its name and value.
pub(crate) const OVERHEAD: usize = 32;
