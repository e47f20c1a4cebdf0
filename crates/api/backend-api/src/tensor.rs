//! A named tensor: type, shape, and contents as slices of memory.

use std::borrow::Cow;

use bytes::Bytes;
use nereid_model_config::DataType;
use smallvec::SmallVec;

use crate::{Buffer, BytesElements, Error, ModelCapabilities, Result, Shape};

/// The slices of a tensor's contents, in order. Nearly always one.
pub type Buffers = SmallVec<[Buffer; 1]>;

/// One input of a request or one output of a response.
///
/// The contents are row-major and little-endian; elements of BYTES are length-prefixed (see [`BytesElements`]). They
/// may be in several slices, since a body may arrive in several reads: they are joined only on demand.
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
    /// A tensor whose contents are one slice of host memory.
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

    /// Whether any part is in device memory.
    pub fn is_on_device(&self) -> bool {
        self.buffers.iter().any(|buffer| !buffer.memory().is_host())
    }

    /// Copies the parts in device memory to host memory.
    ///
    /// # Errors
    /// The device's driver failed.
    pub fn copy_to_host(&mut self) -> Result<()> {
        for buffer in &mut self.buffers {
            if !buffer.memory().is_host() {
                let bytes = buffer.to_host().map_err(|error| named(error, &self.name))?;
                *buffer = Buffer::host(bytes);
            }
        }
        Ok(())
    }

    /// Whether a model with these capabilities does not take the tensor as an input where it is.
    pub(crate) fn is_to_be_copied(&self, capabilities: &ModelCapabilities) -> bool {
        let is_on_device = !capabilities.reads_device_memory && self.is_on_device();
        is_on_device || (!capabilities.shared_inputs.takes(self.data_type) && self.is_shared())
    }

    /// Whether another process may write the contents at any time.
    pub fn is_shared(&self) -> bool {
        self.buffers.iter().any(Buffer::is_shared)
    }

    /// Copies what another process may write.
    pub(crate) fn copy_shared(&mut self) {
        for buffer in self.buffers.iter_mut().filter(|buffer| buffer.is_shared()) {
            if let Some(bytes) = buffer.as_host() {
                *buffer = Buffer::own(bytes.to_vec());
            }
        }
    }

    /// The contents as one slice of host memory: without a copy if they are that already.
    ///
    /// # Errors
    /// A device's driver failed.
    pub fn contiguous(&self) -> Result<Cow<'_, [u8]>> {
        if let [buffer] = self.buffers.as_slice()
            && let Some(bytes) = buffer.as_host()
        {
            return Ok(Cow::Borrowed(bytes));
        }
        let mut joined = Vec::with_capacity(self.byte_size());
        self.copy_to(&mut joined)?;
        Ok(Cow::Owned(joined))
    }

    /// Appends the contents to `target`.
    ///
    /// # Errors
    /// A device's driver failed.
    pub fn copy_to(&self, target: &mut Vec<u8>) -> Result<()> {
        for buffer in &self.buffers {
            match buffer.as_host() {
                Some(bytes) => target.extend_from_slice(bytes),
                None => {
                    target.extend_from_slice(&buffer.to_host().map_err(|error| named(error, &self.name))?)
                }
            }
        }
        Ok(())
    }

    /// Checks that the contents have the length that type and shape require: by size for a fixed-size type, element
    /// by element for BYTES. BYTES in device memory are not checked before they are [copied](Self::copy_to_host).
    ///
    /// # Errors
    /// `InvalidArg` with the tensor, its size and the expected size.
    pub fn check_contents(&self) -> Result<()> {
        let count = self.shape.element_count().ok_or_else(|| {
            Error::invalid_arg(format!("tensor '{}' has an invalid shape {}", self.name, self.shape))
        })?;
        match self.data_type.byte_size() {
            Some(size) => self.check_size(count, size),
            None if self.is_on_device() => Ok(()),
            None => self.check_elements(count),
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

fn named(error: Error, tensor: &str) -> Error {
    error.context(format_args!("tensor '{tensor}' in device memory"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Card, on_card};

    fn in_pieces(pieces: &[&'static [u8]]) -> Tensor {
        let buffers = pieces.iter().map(|piece| Buffer::host(Bytes::from_static(piece))).collect();
        Tensor { name: "X".into(), data_type: DataType::Bytes, shape: [2].into(), buffers }
    }

    #[test]
    fn contiguous_contents_are_not_copied() {
        let bytes = Bytes::from_static(b"abcd");
        let tensor = Tensor::new("X", DataType::Uint8, [4], bytes.clone());
        assert_eq!(tensor.contiguous().unwrap().as_ptr(), bytes.as_ptr());
    }

    #[test]
    fn pieces_of_contents_are_joined_in_order() {
        assert_eq!(&*in_pieces(&[b"ab", b"", b"cd"]).contiguous().unwrap(), b"abcd");
    }

    #[test]
    fn bytes_elements_may_cross_pieces() {
        in_pieces(&[b"\x01\x00\x00", b"\x00a\x02\x00\x00\x00b", b"c"]).check_contents().unwrap();
    }

    #[test]
    fn wrong_element_count_is_refused() {
        let error = in_pieces(&[b"\x01\x00\x00\x00a"]).check_contents().unwrap_err();
        assert_eq!(error.message(), "tensor 'X' has 1 elements of data, but its shape [2] takes 2");
    }

    #[test]
    fn wrong_size_is_refused_with_the_expected_size() {
        let error = Tensor::new("X", DataType::Int32, [1, 2], vec![0; 7]).check_contents().unwrap_err();
        assert_eq!(error.message(), "tensor 'X' has 7 bytes of data, but INT32 of shape [1,2] takes 8");
    }

    #[test]
    fn device_contents_are_copied_for_reading() {
        let card = Card::holding(b"\x01\0\0\0ab");
        let mut tensor = in_pieces(&[b"\x01\0\0\0x"]);
        tensor.buffers.push(on_card(&card));
        assert!(tensor.is_on_device());
        tensor.check_contents().unwrap();
        assert_eq!(&*tensor.contiguous().unwrap(), b"\x01\0\0\0x\x01\0\0\0ab");
        tensor.copy_to_host().unwrap();
        assert!(!tensor.is_on_device());
        assert_eq!(tensor.buffers[1].as_host().unwrap(), "\x01\0\0\0ab");
        // Host contents are checked.
        assert!(tensor.check_contents().is_err());
    }

    #[test]
    fn device_read_failure_names_the_tensor() {
        let card = Card::holding(b"12345678");
        card.fail();
        let mut tensor = Tensor::new("X", DataType::Int32, [2], Bytes::new());
        tensor.buffers = SmallVec::from_buf([on_card(&card)]);
        let reported = "tensor 'X' in device memory: the card is gone";
        assert_eq!(tensor.contiguous().unwrap_err().message(), reported);
        assert_eq!(tensor.copy_to_host().unwrap_err().message(), reported);
        assert!(tensor.is_on_device());
    }
}
