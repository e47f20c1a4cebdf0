//! A named tensor: type, shape, and its contents as pieces of memory.

use std::borrow::Cow;

use bytes::Bytes;
use nereid_model_config::DataType;
use smallvec::SmallVec;

use crate::{Buffer, BytesElements, Error, Result, Shape};

/// The pieces a tensor's contents are made of, in order. Nearly always one.
pub type Buffers = SmallVec<[Buffer; 1]>;

/// One input of a request or one output of a response.
///
/// The contents are row-major and little-endian; elements of BYTES are length-prefixed (see [`BytesElements`]). They
/// may lie in several pieces, since a body may have arrived in several reads: nobody joins them before a backend
/// needs them joined.
#[derive(Clone, Debug)]
pub struct Tensor {
    /// The name in the model's configuration.
    pub name: String,
    /// The type of each element.
    pub data_type: DataType,
    /// The dimensions, the batch dimension included.
    pub shape: Shape,
    /// The contents.
    pub buffers: Buffers,
}

impl Tensor {
    /// A tensor whose contents are one piece of host memory.
    pub fn new(
        name: impl Into<String>,
        data_type: DataType,
        shape: impl Into<Shape>,
        contents: impl Into<Bytes>,
    ) -> Self {
        let buffers = SmallVec::from_buf([Buffer::host(contents)]);
        Self { name: name.into(), data_type, shape: shape.into(), buffers }
    }

    /// Length of the contents in bytes.
    pub fn byte_size(&self) -> usize {
        self.buffers.iter().map(Buffer::len).sum()
    }

    /// The contents as one run of host memory: without a copy when they lie in one piece.
    ///
    /// # Errors
    /// `Unsupported` if a piece lies in device memory.
    pub fn contiguous(&self) -> Result<Cow<'_, [u8]>> {
        if let [buffer] = self.buffers.as_slice() {
            return Ok(Cow::Borrowed(self.host(buffer)?));
        }
        let mut joined = Vec::with_capacity(self.byte_size());
        self.copy_to(&mut joined)?;
        Ok(Cow::Owned(joined))
    }

    /// Appends the contents to `target`.
    ///
    /// # Errors
    /// `Unsupported` if a piece lies in device memory.
    pub fn copy_to(&self, target: &mut Vec<u8>) -> Result<()> {
        for buffer in &self.buffers {
            target.extend_from_slice(self.host(buffer)?);
        }
        Ok(())
    }

    fn host<'a>(&self, buffer: &'a Buffer) -> Result<&'a [u8]> {
        buffer.as_host().map(|bytes| &bytes[..]).ok_or_else(|| {
            Error::unsupported(format!(
                "tensor '{}' lies in device memory, which is not read here",
                self.name
            ))
        })
    }

    /// Checks that the contents are as long as type and shape say: by size for a fixed-size type, element by element
    /// for BYTES. Contents of BYTES in device memory cannot be looked at and are taken on trust.
    ///
    /// # Errors
    /// `InvalidArg` that names the tensor, what it has and what it should have.
    pub fn check_contents(&self) -> Result<()> {
        let count = self.shape.element_count().ok_or_else(|| {
            Error::invalid_arg(format!("tensor '{}' has an impossible shape {}", self.name, self.shape))
        })?;
        match self.data_type.byte_size() {
            Some(size) => self.check_size(count, size),
            None if self.buffers.iter().all(|buffer| buffer.as_host().is_some()) => {
                self.check_elements(count)
            }
            None => Ok(()),
        }
    }

    fn check_size(&self, count: usize, size: usize) -> Result<()> {
        let actual = self.byte_size();
        if count.checked_mul(size) == Some(actual) {
            return Ok(());
        }
        Err(Error::invalid_arg(format!(
            "tensor '{}' has {actual} bytes of data, but {} of shape {} takes {}",
            self.name,
            self.data_type,
            self.shape,
            (count as u128) * (size as u128),
        )))
    }

    fn check_elements(&self, count: usize) -> Result<()> {
        let contents = self.contiguous()?;
        let mut found = 0;
        for element in BytesElements::new(&contents) {
            element.map_err(|error| error.context(format_args!("tensor '{}'", self.name)))?;
            found += 1;
        }
        if found == count {
            return Ok(());
        }
        Err(Error::invalid_arg(format!(
            "tensor '{}' has {found} elements of data, but its shape {} takes {count}",
            self.name, self.shape,
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DeviceBuffer;
    use std::sync::Arc;

    fn in_pieces(pieces: &[&'static [u8]]) -> Tensor {
        let buffers = pieces.iter().map(|piece| Buffer::host(Bytes::from_static(piece))).collect();
        Tensor { name: "X".into(), data_type: DataType::Bytes, shape: [2].into(), buffers }
    }

    #[test]
    fn contents_in_one_piece_are_not_copied() {
        let bytes = Bytes::from_static(b"abcd");
        let tensor = Tensor::new("X", DataType::Uint8, [4], bytes.clone());
        assert_eq!(tensor.contiguous().unwrap().as_ptr(), bytes.as_ptr());
    }

    #[test]
    fn contents_in_pieces_are_joined_in_order() {
        assert_eq!(&*in_pieces(&[b"ab", b"", b"cd"]).contiguous().unwrap(), b"abcd");
    }

    #[test]
    fn bytes_elements_may_cross_pieces() {
        in_pieces(&[b"\x01\x00\x00", b"\x00a\x02\x00\x00\x00b", b"c"]).check_contents().unwrap();
    }

    #[test]
    fn a_wrong_element_count_is_refused() {
        let error = in_pieces(&[b"\x01\x00\x00\x00a"]).check_contents().unwrap_err();
        assert_eq!(error.message(), "tensor 'X' has 1 elements of data, but its shape [2] takes 2");
    }

    #[test]
    fn a_wrong_size_is_refused_with_what_would_be_right() {
        let error = Tensor::new("X", DataType::Int32, [1, 2], vec![0; 7]).check_contents().unwrap_err();
        assert_eq!(error.message(), "tensor 'X' has 7 bytes of data, but INT32 of shape [1,2] takes 8");
    }

    #[test]
    fn device_memory_is_not_read() {
        let device = DeviceBuffer { address: 1 << 40, len: 8, owner: Arc::new(()) };
        let mut tensor = Tensor::new("X", DataType::Int32, [2], Bytes::new());
        tensor.buffers = SmallVec::from_buf([Buffer::device(device, 0)]);
        tensor.check_contents().unwrap();
        assert!(tensor.contiguous().is_err());
    }
}
