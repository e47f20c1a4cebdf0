//! Decodes header blocks.

use std::collections::VecDeque;

use super::field::{Field, STATIC_COUNT, static_field};
use super::{TABLE_SIZE, huffman};

/// The decoder of a connection, with its dynamic table.
#[derive(Debug)]
pub(crate) struct Decoder {
    /// The dynamic table, newest first.
    table: VecDeque<Field>,
    /// The size of the table's fields.
    size: usize,
    /// The size that the client chose, at most [`TABLE_SIZE`].
    limit: usize,
    changes: u64,
    /// Memory for decoded strings.
    strings: Vec<u8>,
}

/// A malformed header block. The tables of client and server differ from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

impl Default for Decoder {
    fn default() -> Self {
        Self { table: VecDeque::new(), size: 0, limit: TABLE_SIZE, changes: 0, strings: Vec::new() }
    }
}

impl Decoder {
    /// The number of changes of the table. While it is the same, equal blocks have equal fields.
    pub(crate) fn changes(&self) -> u64 {
        self.changes
    }

    /// Decodes a block and passes each field to `found`.
    ///
    /// # Errors
    /// The block is malformed.
    pub(crate) fn decode(
        &mut self,
        mut block: &[u8],
        mut found: impl FnMut(&Field),
    ) -> Result<(), Malformed> {
        let mut may_resize = true;
        while let Some(first) = block.first().copied() {
            match first {
                // An indexed field.
                0x80.. => found(self.field(integer(&mut block, 7)?)?),
                // A literal that enters the table.
                0x40..0x80 => {
                    let field = self.literal(&mut block, 6)?;
                    found(&field);
                    self.insert(field);
                }
                // A new size of the table, at the beginning of a block only.
                0x20..0x40 => {
                    let limit = integer(&mut block, 5)?;
                    if !may_resize || limit > TABLE_SIZE {
                        return Err(Malformed);
                    }
                    self.limit = limit;
                    self.changes += 1;
                    self.evict(limit);
                    continue;
                }
                // A literal that does not enter the table.
                0..0x20 => found(&self.literal(&mut block, 4)?),
            }
            may_resize = false;
        }
        Ok(())
    }

    /// The field of either table.
    fn field(&self, index: usize) -> Result<&Field, Malformed> {
        match index.checked_sub(STATIC_COUNT + 1) {
            None => static_field(index),
            Some(index) => self.table.get(index),
        }
        .ok_or(Malformed)
    }

    /// Reads a literal field; its name may refer to a table.
    fn literal(&mut self, block: &mut &[u8], prefix: u32) -> Result<Field, Malformed> {
        let mut strings = std::mem::take(&mut self.strings);
        strings.clear();
        let field = match integer(block, prefix)? {
            0 => {
                string(block, &mut strings)?;
                let name_length = strings.len();
                string(block, &mut strings)?;
                let (name, value) = strings.split_at(name_length);
                Field::new(name, value)
            }
            index => {
                string(block, &mut strings)?;
                let named = self.field(index)?;
                Field::with_name(named.name.clone(), named.name_length(), &strings)
            }
        };
        self.strings = strings;
        Ok(field)
    }

    fn insert(&mut self, field: Field) {
        self.changes += 1;
        // A field that is larger than the table empties it.
        self.evict(self.limit.saturating_sub(field.size));
        if field.size <= self.limit {
            self.size += field.size;
            self.table.push_front(field);
        }
    }

    /// Removes the oldest fields until the others take this size at most.
    fn evict(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.table.pop_back()
        {
            self.size -= oldest.size;
        }
    }
}

/// Reads an integer that begins in the last `prefix` bits of a byte.
fn integer(block: &mut &[u8], prefix: u32) -> Result<usize, Malformed> {
    let (first, mut rest) = block.split_first().ok_or(Malformed)?;
    let most = (1 << prefix) - 1;
    let mut value = usize::from(*first) & most;
    if value == most {
        let mut shift = 0;
        loop {
            let (next, others) = rest.split_first().ok_or(Malformed)?;
            rest = others;
            // Four bytes are more than any index or length can need.
            if shift > 21 {
                return Err(Malformed);
            }
            value += usize::from(*next & 0x7f) << shift;
            shift += 7;
            if *next & 0x80 == 0 {
                break;
            }
        }
    }
    *block = rest;
    Ok(value)
}

/// Reads a string and appends it to `text`.
fn string(block: &mut &[u8], text: &mut Vec<u8>) -> Result<(), Malformed> {
    let is_coded = block.first().ok_or(Malformed)? & 0x80 != 0;
    let length = integer(block, 7)?;
    let (bytes, rest) = block.split_at_checked(length).ok_or(Malformed)?;
    *block = rest;
    if is_coded {
        return huffman::decode(bytes, text).ok_or(Malformed);
    }
    text.extend_from_slice(bytes);
    Ok(())
}

#[cfg(test)]
mod tests;
