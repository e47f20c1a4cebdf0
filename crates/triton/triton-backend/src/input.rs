//! An input of a request: its type, its shape, and its bytes, in the pieces in which they arrived.

use std::borrow::Cow;
use std::marker::PhantomData;
use std::{ptr, slice};

use tensor_types::DataType;
use triton_sys::*;

use crate::data::{self, Element, split_bytes};
use crate::error::{Error, Result, check, text};
use crate::request::Borrowed;

/// An input, borrowed from its request.
#[derive(Clone, Copy)]
pub struct Input<'r> {
    handle: *mut TRITONBACKEND_Input,
    name: &'r str,
    data_type: DataType,
    shape: &'r [i64],
    byte_size: u64,
    pieces: u32,
    _lives: Borrowed<'r>,
}

/// A contiguous part of an input's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'r> {
    /// Bytes in host memory.
    Host(&'r [u8]),
    /// Bytes in device memory.
    Device {
        /// The device address.
        address: usize,
        /// The number of bytes.
        byte_size: usize,
        /// The device's number.
        device_id: i64,
    },
}

impl<'r> Input<'r> {
    /// # Safety
    /// `handle` lives and does not change during `'r`.
    pub(crate) unsafe fn new(handle: *mut TRITONBACKEND_Input) -> Result<Self> {
        let (mut name, mut shape) = (ptr::null(), ptr::null());
        let (mut data_type, mut dimensions, mut byte_size, mut pieces) = (TRITONSERVER_TYPE_INVALID, 0, 0, 0);
        // SAFETY: the input lives, all addresses may be written, and the results live as long as the input.
        unsafe {
            check(TRITONBACKEND_InputProperties(
                handle,
                &mut name,
                &mut data_type,
                &mut shape,
                &mut dimensions,
                &mut byte_size,
                &mut pieces,
            ))?;
            let shape =
                if shape.is_null() { &[][..] } else { slice::from_raw_parts(shape, dimensions as usize) };
            Ok(Self {
                handle,
                name: text(name)?,
                data_type: data::from_c(data_type)?,
                shape,
                byte_size,
                pieces,
                _lives: PhantomData,
            })
        }
    }

    /// The input's name.
    pub fn name(&self) -> &'r str {
        self.name
    }

    /// The type of its elements.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The input's shape. The first dimension is the batch if the model supports batching.
    pub fn shape(&self) -> &'r [i64] {
        self.shape
    }

    /// The total size in bytes.
    pub fn byte_size(&self) -> u64 {
        self.byte_size
    }

    /// The input's bytes, in the pieces in which they arrived.
    ///
    /// # Errors
    /// The server's error.
    pub fn pieces(&self) -> Result<Vec<Piece<'r>>> {
        (0..self.pieces).map(|index| self.piece(index)).collect()
    }

    /// The input's bytes in one piece; copied only if they arrived in several.
    ///
    /// # Errors
    /// `Unsupported` if they are in device memory.
    pub fn bytes(&self) -> Result<Cow<'r, [u8]>> {
        let mut bytes = Cow::Borrowed(&[][..]);
        for piece in self.pieces()? {
            let Piece::Host(piece) = piece else {
                return Err(Error::unsupported(format!(
                    "input '{}' is in device memory, but this backend reads host memory",
                    self.name
                )));
            };
            if bytes.is_empty() {
                bytes = Cow::Borrowed(piece);
            } else {
                bytes.to_mut().extend_from_slice(piece);
            }
        }
        Ok(bytes)
    }

    /// The input's elements, copied.
    ///
    /// # Errors
    /// `InvalidArgument` if the input has another type, `Unsupported` if it is in device memory.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.expect(T::DATA_TYPE)?;
        Ok(T::read(&self.bytes()?))
    }

    /// The elements of a `Bytes` input, copied.
    ///
    /// # Errors
    /// `InvalidArgument` if the input has another type or is malformed, `Unsupported` if it is in device memory.
    pub fn to_byte_strings(&self) -> Result<Vec<Vec<u8>>> {
        self.expect(DataType::Bytes)?;
        Ok(split_bytes(&self.bytes()?)?.into_iter().map(<[u8]>::to_vec).collect())
    }

    fn expect(&self, expected: DataType) -> Result<()> {
        if self.data_type == expected {
            return Ok(());
        }
        Err(Error::invalid_argument(format!(
            "input '{}' has type {}, expected {}",
            self.name,
            self.data_type.protocol_name(),
            expected.protocol_name()
        )))
    }

    fn piece(&self, index: u32) -> Result<Piece<'r>> {
        let (mut base, mut length) = (ptr::null(), 0);
        let (mut kind, mut id) = (TRITONSERVER_MEMORY_CPU, 0);
        // SAFETY: the input lives, and all addresses may be written.
        unsafe {
            check(TRITONBACKEND_InputBuffer(self.handle, index, &mut base, &mut length, &mut kind, &mut id))?;
        }
        let byte_size = usize::try_from(length)
            .map_err(|_| Error::internal("a piece of an input exceeds the address space"))?;
        Ok(match kind {
            TRITONSERVER_MEMORY_GPU => Piece::Device { address: base.addr(), byte_size, device_id: id },
            _ if base.is_null() || byte_size == 0 => Piece::Host(&[]),
            // SAFETY: the server guarantees this many bytes of host memory, alive and unchanged as long as the request.
            _ => Piece::Host(unsafe { slice::from_raw_parts(base.cast(), byte_size) }),
        })
    }
}
