//! BYTES tensors: each element is its length as a little-endian 32-bit integer, followed by its bytes (Triton's binary
//! tensor data extension).

use crate::{Error, Result};

const LENGTH: usize = size_of::<u32>();

/// Iterates over the elements of a BYTES tensor. Ends after the first truncated element.
#[derive(Clone, Debug)]
pub struct BytesElements<'a> {
    rest: &'a [u8],
}

impl<'a> BytesElements<'a> {
    /// Iterates over the entire contents of one tensor.
    pub fn new(contents: &'a [u8]) -> Self {
        Self { rest: contents }
    }
}

impl<'a> Iterator for BytesElements<'a> {
    type Item = Result<&'a [u8]>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let Some((length, rest)) = self.rest.split_first_chunk::<LENGTH>() else {
            self.rest = &[];
            return Some(Err(Error::invalid_arg("a BYTES element is truncated within its 4-byte length")));
        };
        let length = u32::from_le_bytes(*length) as usize;
        let Some((element, rest)) = rest.split_at_checked(length) else {
            let left = rest.len();
            self.rest = &[];
            return Some(Err(Error::invalid_arg(format!(
                "a BYTES element declares {length} bytes, but only {left} follow"
            ))));
        };
        self.rest = rest;
        Some(Ok(element))
    }
}

/// Appends one element in the encoding that [`BytesElements`] reads.
///
/// # Errors
/// `InvalidArg` if the length does not fit into 32 bits.
pub fn push_bytes_element(contents: &mut Vec<u8>, element: &[u8]) -> Result<()> {
    let length = u32::try_from(element.len()).map_err(|_| {
        Error::invalid_arg(format!("a BYTES element of {} bytes exceeds the limit of 4 GiB", element.len()))
    })?;
    contents.reserve(LENGTH + element.len());
    contents.extend_from_slice(&length.to_le_bytes());
    contents.extend_from_slice(element);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{BytesElements, push_bytes_element};

    #[test]
    fn pushed_elements_are_read_back() {
        let mut contents = Vec::new();
        for element in [b"abc".as_slice(), b"", b"\xff\x00"] {
            push_bytes_element(&mut contents, element).unwrap();
        }
        let elements: Vec<_> = BytesElements::new(&contents).collect::<Result<_, _>>().unwrap();
        assert_eq!(elements, [b"abc".as_slice(), b"", b"\xff\x00"]);
    }

    #[test]
    fn truncated_element_is_an_error_and_the_end() {
        for contents in [b"\x01\x00".as_slice(), b"\x02\x00\x00\x00a", b"\xff\xff\xff\xffabc"] {
            let mut elements = BytesElements::new(contents);
            assert!(elements.next().unwrap().is_err());
            assert!(elements.next().is_none());
        }
    }
}
