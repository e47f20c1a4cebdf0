//! The contents of an output, and how they are sliced into the parts of several requests.

use std::ops::Range;

use bytes::Bytes;
use nereid_backend_api::{Buffer, Result, Shape, Tensor, push_bytes_element};

/// The contents of an output, ready to be sliced.
#[derive(Debug)]
pub enum Contents {
    /// Elements of a fixed size, in the engine's own memory. They are passed on without a copy.
    Fixed(Bytes),
    /// Strings.
    Strings(Vec<Vec<u8>>),
    /// The output of one request, in the memory that the client chose.
    Placed(Buffer),
}

impl Contents {
    /// The contents of some of `total` equal parts.
    ///
    /// # Errors
    /// `InvalidArg` if a string is too long for its length prefix.
    pub fn part(&self, range: Range<usize>, total: usize) -> Result<Buffer> {
        let cut = |len: usize| {
            let part = len.checked_div(total).unwrap_or(0);
            range.start * part..range.end * part
        };
        match self {
            Self::Placed(buffer) => Ok(buffer.clone()),
            Self::Fixed(bytes) => Ok(Buffer::host(bytes.slice(cut(bytes.len())))),
            Self::Strings(strings) => {
                let mut contents = Vec::new();
                for string in &strings[cut(strings.len())] {
                    push_bytes_element(&mut contents, string)?;
                }
                Ok(Buffer::host(contents))
            }
        }
    }
}

/// Whether the nonzero dimensions of a tensor multiply to more bytes than can be addressed. An empty tensor with such
/// dimensions passes the check of its contents, but engines multiply them.
pub(crate) fn exceeds_memory(tensor: &Tensor, element: usize) -> bool {
    let nonzero = |shape: &Shape| {
        shape.iter().filter(|&&dim| dim != 0).try_fold(element, |size, &dim| {
            size.checked_mul(usize::try_from(dim).ok()?).filter(|&size| size <= isize::MAX as usize)
        })
    };
    nonzero(&tensor.shape).is_none()
}

#[cfg(test)]
mod tests {
    use nereid_backend_api::{BytesElements, DataType};

    use super::*;

    #[test]
    fn parts_of_fixed_elements_are_slices_of_the_same_memory() {
        let bytes = Bytes::from_static(b"aabbcc");
        let contents = Contents::Fixed(bytes.clone());
        let part = contents.part(1..3, 3).unwrap();
        assert_eq!(part.as_host().unwrap(), "bbcc");
        assert_eq!(part.as_host().unwrap().as_ptr(), bytes[2..].as_ptr());
    }

    #[test]
    fn parts_of_strings_get_their_length_prefixes() {
        let contents =
            Contents::Strings(vec![b"a".to_vec(), b"".to_vec(), b"\xff\x00".to_vec(), b"d".to_vec()]);
        let part = contents.part(1..2, 2).unwrap();
        let elements: Vec<_> = BytesElements::new(part.as_host().unwrap()).map(Result::unwrap).collect();
        assert_eq!(elements, [b"\xff\x00".as_slice(), b"d"]);
    }

    #[test]
    fn an_empty_output_has_no_parts() {
        assert!(Contents::Fixed(Bytes::new()).part(0..0, 0).unwrap().is_empty());
    }

    #[test]
    fn an_empty_tensor_may_have_dimensions_that_exceed_memory() {
        let tensor = |shape: &[i64]| Tensor::new("X", DataType::Fp32, shape, Bytes::new());
        assert!(exceeds_memory(&tensor(&[0, i64::MAX, 4]), 4));
        assert!(!exceeds_memory(&tensor(&[0, 1 << 20, 1 << 20]), 4));
    }
}
