//! An input's elements of a fixed size, joined from the tensors of requests: in place where they can be, or else copied.

use std::ops::Range;

use bytes::Bytes;
use nereid_backend_api::{DataType, Error, Result, Tensor};
use smallvec::SmallVec;

/// Memory for copies, aligned for every element type.
pub type Words = Vec<u64>;

/// The elements of an input, aligned for their type. Bools are 0 or 1.
#[derive(Debug)]
pub enum Elements {
    /// In the memory of the request.
    Given(Bytes),
    /// A copy, of this many bytes.
    Copied(Words, usize),
}

impl Elements {
    /// Joins the contents of `parts`, which are of that type. A copy goes to memory from `spare`.
    ///
    /// # Errors
    /// `Unsupported` if a tensor lies in device memory.
    pub fn join(data_type: DataType, parts: &[&Tensor], spare: impl FnOnce() -> Words) -> Result<Self> {
        let pieces = host_pieces(parts)?;
        if let [piece] = pieces.as_slice()
            && fits(data_type, piece)
        {
            return Ok(Self::Given((*piece).clone()));
        }
        let size: usize = pieces.iter().map(|piece| piece.len()).sum();
        let mut words = spare();
        if words.len() * size_of::<u64>() < size {
            words.resize(size.div_ceil(size_of::<u64>()), 0);
        }
        let mut target: &mut [u8] = bytemuck::cast_slice_mut(&mut words);
        for piece in pieces {
            let (here, rest) = target.split_at_mut(piece.len());
            here.copy_from_slice(piece);
            if data_type == DataType::Bool {
                // Bytes other than 0 and 1 are not valid bools, here or in the kernels of frameworks.
                here.iter_mut().for_each(|byte| *byte = u8::from(*byte != 0));
            }
            target = rest;
        }
        Ok(Self::Copied(words, size))
    }

    /// Their bytes.
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Given(bytes) => bytes,
            Self::Copied(words, size) => &bytemuck::cast_slice(words)[..*size],
        }
    }

    /// The addresses at which they are read.
    pub fn addresses(&self) -> Range<usize> {
        let range = self.as_bytes().as_ptr_range();
        range.start.addr()..range.end.addr()
    }
}

/// Whether the bytes are aligned for elements of this type.
pub fn fits_address(data_type: DataType, bytes: &[u8]) -> bool {
    bytes.as_ptr().addr().is_multiple_of(data_type.byte_size().unwrap_or(1))
}

/// Whether a framework may read the bytes in place, as elements of this type.
fn fits(data_type: DataType, bytes: &[u8]) -> bool {
    fits_address(data_type, bytes) && (data_type != DataType::Bool || bytes.iter().all(|&byte| byte <= 1))
}

fn host_pieces<'a>(parts: &[&'a Tensor]) -> Result<SmallVec<[&'a Bytes; 8]>> {
    let pieces = parts.iter().flat_map(|part| part.buffers.iter().map(move |buffer| (part, buffer)));
    pieces
        .map(|(part, buffer)| {
            buffer.as_host().ok_or_else(|| {
                Error::unsupported(format!(
                    "input '{}' lies in device memory, which this backend does not read",
                    part.name
                ))
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(data_type: DataType, shape: &[i64], parts: &[&[u8]]) -> Elements {
        let tensor = |part: &&[u8]| Tensor::new("X", data_type, shape, part.to_vec());
        let tensors: Vec<_> = parts.iter().map(tensor).collect();
        Elements::join(data_type, &tensors.iter().collect::<Vec<_>>(), Words::new).unwrap()
    }

    #[test]
    fn one_piece_is_not_copied_if_it_is_aligned() {
        let words = vec![0_u64; 2];
        let bytes = Bytes::from_owner(bytemuck::cast_slice::<u64, u8>(&words).to_vec());
        let start = bytes.as_ptr().addr() % 4;
        let aligned =
            Tensor::new("X", DataType::Fp32, [1], bytes.slice((4 - start) % 4..(4 - start) % 4 + 4));
        let value = Elements::join(DataType::Fp32, &[&aligned], Words::new).unwrap();
        assert_eq!(value.addresses().start, aligned.buffers[0].as_host().unwrap().as_ptr().addr());
        assert!(matches!(value, Elements::Given(_)));
        let odd =
            Tensor::new("X", DataType::Fp32, [1], bytes.slice((4 - start) % 4 + 1..(4 - start) % 4 + 5));
        let value = Elements::join(DataType::Fp32, &[&odd], Words::new).unwrap();
        assert!(matches!(value, Elements::Copied(_, 4)));
    }

    #[test]
    fn pieces_are_joined_in_order_in_memory_that_is_used_again() {
        let Elements::Copied(words, 6) = join(DataType::Uint8, &[6], &[b"abc", b"def"]) else { panic!() };
        assert_eq!(&bytemuck::cast_slice::<u64, u8>(&words)[..6], b"abcdef");
        let parts = [
            Tensor::new("X", DataType::Uint8, [1], vec![b'x']),
            Tensor::new("X", DataType::Uint8, [1], vec![b'y']),
        ];
        let before = words.as_ptr();
        let value = Elements::join(DataType::Uint8, &parts.iter().collect::<Vec<_>>(), || words).unwrap();
        let Elements::Copied(words, 2) = value else { panic!() };
        assert_eq!(
            (words.as_ptr(), &bytemuck::cast_slice::<u64, u8>(&words)[..2]),
            (before, b"xy".as_slice())
        );
    }

    #[test]
    fn any_byte_but_zero_is_true() {
        assert!(matches!(join(DataType::Bool, &[2], &[&[0, 1]]), Elements::Given(_)));
        let Elements::Copied(words, 3) = join(DataType::Bool, &[3], &[&[0, 1, 255]]) else { panic!() };
        assert_eq!(bytemuck::cast_slice::<u64, u8>(&words)[..3], [0, 1, 1]);
    }

    #[test]
    fn an_empty_input_needs_no_memory() {
        let value = join(DataType::Fp64, &[0], &[]);
        assert!(
            matches!(&value, Elements::Copied(words, 0) if words.is_empty()) && value.addresses().is_empty()
        );
    }
}
