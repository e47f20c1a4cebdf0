//! A response under construction.

use std::{ptr, slice};

use triton_sys::*;

use std::sync::atomic::Ordering;

use crate::answer::{Answer, ResponseTimes};
use tensor_types::DataType;

use crate::data::{self, Element, element_count, join_bytes};
use crate::error::{Error, Result, c_string, check};
use crate::memory::MemoryKind;

/// Memory of an output, to be written before the response is sent.
#[derive(Debug, PartialEq, Eq)]
pub enum OutputMemory<'r> {
    /// Host memory, zeroed.
    Host(&'r mut [u8]),
    /// Memory of a device, not initialized.
    Device {
        /// The device address.
        address: usize,
        /// The number of bytes.
        byte_size: usize,
        /// The device's number.
        device_id: i64,
    },
}

/// Where the server placed an output.
struct Place {
    /// Any address if the output is empty.
    start: *mut u8,
    kind: TRITONSERVER_MemoryType,
    device_id: i64,
}

/// An unsent response. Dropping it sends nothing.
pub struct Response<'a> {
    handle: *mut TRITONBACKEND_Response,
    answer: &'a Answer,
    /// The start of the first output; 0 before.
    output_start: u64,
}

impl<'a> Response<'a> {
    /// # Safety
    /// The caller owns the response and transfers it.
    pub(crate) unsafe fn new(handle: *mut TRITONBACKEND_Response, answer: &'a Answer) -> Self {
        Self { handle, answer, output_start: 0 }
    }

    /// Adds an output. The first dimension is the batch if the model supports batching.
    ///
    /// # Errors
    /// `InvalidArgument` if the shape and the number of values differ; otherwise the server's error, above all if the
    /// configuration has no such output.
    pub fn output<T: Element>(&mut self, name: &str, shape: &[i64], values: &[T]) -> Result<()> {
        expect_count(name, shape, values.len())?;
        self.raw_output(name, T::DATA_TYPE, shape, &T::bytes(values))
    }

    /// Adds an output whose elements are computed one by one, directly into the server's memory.
    ///
    /// # Errors
    /// As for [`output`](Self::output). The output then has zeros for missing values.
    pub fn output_from<T: Element>(
        &mut self,
        name: &str,
        shape: &[i64],
        values: impl IntoIterator<Item = T>,
    ) -> Result<()> {
        let size = size_of::<T>();
        let byte_size = element_count(shape)?.checked_mul(size).ok_or_else(|| cannot_hold(name, shape))?;
        let mut places = self.zeroed_output(name, T::DATA_TYPE, shape, byte_size)?.chunks_exact_mut(size);
        for value in values {
            value.write(places.next().ok_or_else(|| cannot_hold(name, shape))?);
        }
        match places.next() {
            Some(_) => {
                Err(Error::invalid_argument(format!("output '{name}' of shape {shape:?} lacks values")))
            }
            None => Ok(()),
        }
    }

    /// Adds an output of type `Bytes`.
    ///
    /// # Errors
    /// As for [`output`](Self::output).
    pub fn bytes_output(&mut self, name: &str, shape: &[i64], values: &[impl AsRef<[u8]>]) -> Result<()> {
        expect_count(name, shape, values.len())?;
        self.raw_output(name, DataType::Bytes, shape, &join_bytes(values)?)
    }

    /// Adds an output whose elements are already in the protocol's encoding.
    ///
    /// # Errors
    /// `InvalidArgument` if the shape and the number of bytes differ; otherwise the server's error.
    pub fn raw_output(&mut self, name: &str, data_type: DataType, shape: &[i64], bytes: &[u8]) -> Result<()> {
        let start = self.allocate_on_host(name, data_type, shape, bytes.len())?;
        if !bytes.is_empty() {
            // SAFETY: the server returned host memory of this length for this output alone.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), start, bytes.len()) };
        }
        Ok(())
    }

    /// Adds a zeroed output, to be written in place.
    ///
    /// # Errors
    /// As for [`raw_output`](Self::raw_output).
    pub fn zeroed_output(
        &mut self,
        name: &str,
        data_type: DataType,
        shape: &[i64],
        byte_size: usize,
    ) -> Result<&mut [u8]> {
        let start = self.allocate_on_host(name, data_type, shape, byte_size)?;
        // SAFETY: the server returned host memory of this length for this output alone, which lives as long as the
        // response.
        Ok(unsafe { zeroed(start, byte_size) })
    }

    /// Adds an output in memory of the preferred kind, if the server and the client allow it; `device_id` is the number of
    /// a GPU. Write the output where the server placed it.
    ///
    /// # Errors
    /// As for [`raw_output`](Self::raw_output).
    pub fn output_memory(
        &mut self,
        name: &str,
        data_type: DataType,
        shape: &[i64],
        byte_size: usize,
        preferred: (MemoryKind, i64),
    ) -> Result<OutputMemory<'_>> {
        let place = self.allocate(name, data_type, shape, byte_size, preferred)?;
        if place.kind == TRITONSERVER_MEMORY_GPU {
            let address = place.start.addr();
            return Ok(OutputMemory::Device { address, byte_size, device_id: place.device_id });
        }
        // SAFETY: the server returned host memory of this length for this output alone, which lives as long as the
        // response.
        Ok(OutputMemory::Host(unsafe { zeroed(place.start, byte_size) }))
    }

    /// Adds a string parameter.
    ///
    /// # Errors
    /// The server's error, as for the other kinds.
    pub fn string_parameter(&mut self, name: &str, value: &str) -> Result<()> {
        let (name, value) = (c_string(name)?, c_string(value)?);
        // SAFETY: the response lives; both texts end with a zero and are copied.
        unsafe { check(TRITONBACKEND_ResponseSetStringParameter(self.handle, name.as_ptr(), value.as_ptr())) }
    }

    /// Adds an integer parameter.
    ///
    /// # Errors
    /// The server's error.
    pub fn int_parameter(&mut self, name: &str, value: i64) -> Result<()> {
        let name = c_string(name)?;
        // SAFETY: the response lives; the name ends with a zero and is copied.
        unsafe { check(TRITONBACKEND_ResponseSetIntParameter(self.handle, name.as_ptr(), value)) }
    }

    /// Adds a boolean parameter.
    ///
    /// # Errors
    /// The server's error.
    pub fn bool_parameter(&mut self, name: &str, value: bool) -> Result<()> {
        let name = c_string(name)?;
        // SAFETY: the response lives; the name ends with a zero and is copied.
        unsafe { check(TRITONBACKEND_ResponseSetBoolParameter(self.handle, name.as_ptr(), value)) }
    }

    /// Adds a floating-point parameter.
    ///
    /// # Errors
    /// The server's error.
    pub fn double_parameter(&mut self, name: &str, value: f64) -> Result<()> {
        let name = c_string(name)?;
        // SAFETY: the response lives; the name ends with a zero and is copied.
        unsafe { check(TRITONBACKEND_ResponseSetDoubleParameter(self.handle, name.as_ptr(), value)) }
    }

    /// Sends the response of a decoupled model. More may follow.
    ///
    /// # Errors
    /// `Unsupported` if the model is not decoupled, `AlreadyExists` after the final response; otherwise the server's
    /// error.
    pub fn send(self) -> Result<()> {
        self.deliver(false, None)
    }

    /// Sends the response as the final one, or the only one.
    ///
    /// # Errors
    /// `AlreadyExists` after the final response; otherwise the server's error.
    pub fn send_last(self) -> Result<()> {
        self.deliver(true, None)
    }

    /// Sends an error as the final response, together with the outputs added so far.
    ///
    /// # Errors
    /// `AlreadyExists` after the final response; otherwise the server's error.
    pub fn send_error(self, error: Error) -> Result<()> {
        self.deliver(true, Some(&error))
    }

    fn deliver(mut self, last: bool, error: Option<&Error>) -> Result<()> {
        let answer = self.answer;
        if last {
            answer.finish(1)?;
            if error.is_some() {
                answer.has_failed.store(true, Ordering::Release);
            }
            self.transfer(TRITONSERVER_RESPONSE_COMPLETE_FINAL.0, error)?;
        } else if answer.decoupled {
            answer.while_open(|| self.transfer(0, None))?;
        } else {
            return Err(Error::unsupported(
                "the model is not decoupled: each request has one response, which is the last",
            ));
        }
        answer.report(&ResponseTimes { output_start: self.output_start, error });
        Ok(())
    }

    /// Transfers the response to the server, even if sending fails.
    fn transfer(&mut self, flags: u32, error: Option<&Error>) -> Result<()> {
        let c_error = error.map_or(ptr::null_mut(), |error| error.clone().into_c());
        let handle = std::mem::replace(&mut self.handle, ptr::null_mut());
        // SAFETY: the response is ours and transferred here. The error stays ours.
        let sent = unsafe { check(TRITONBACKEND_ResponseSend(handle, flags, c_error)) };
        if !c_error.is_null() {
            // SAFETY: made above, and not used any more.
            unsafe { TRITONSERVER_ErrorDelete(c_error) };
        }
        sent
    }

    /// Host memory for an output; any address if the output is empty.
    fn allocate_on_host(
        &mut self,
        name: &str,
        data_type: DataType,
        shape: &[i64],
        byte_size: usize,
    ) -> Result<*mut u8> {
        let place = self.allocate(name, data_type, shape, byte_size, (MemoryKind::Cpu, 0))?;
        if place.kind == TRITONSERVER_MEMORY_GPU {
            return Err(Error::unsupported(format!(
                "output '{name}' must be in device memory, but this backend writes host memory"
            )));
        }
        Ok(place.start)
    }

    fn allocate(
        &mut self,
        name: &str,
        data_type: DataType,
        shape: &[i64],
        byte_size: usize,
        (preferred, mut device_id): (MemoryKind, i64),
    ) -> Result<Place> {
        let count = element_count(shape)?;
        if let Some(expected) = data_type.byte_size().map(|size| count.saturating_mul(size))
            && expected != byte_size
        {
            return Err(Error::invalid_argument(format!(
                "output '{name}' of shape {shape:?} has {expected} bytes, not {byte_size}"
            )));
        }
        if self.output_start == 0 {
            self.output_start = crate::clock::now();
        }
        let c_name = c_string(name)?;
        let dimensions = u32::try_from(shape.len())
            .map_err(|_| Error::invalid_argument(format!("output '{name}' has too many dimensions")))?;
        let (mut output, mut buffer) = (ptr::null_mut(), ptr::null_mut());
        let mut kind = preferred.into_c();
        // SAFETY: the response lives, and so do its outputs; name and shape are copied, and the shape matches its
        // number of dimensions. All addresses may be written. The allocator is alive until the final response.
        self.answer.while_open(|| unsafe {
            check(TRITONBACKEND_ResponseOutput(
                self.handle,
                &mut output,
                c_name.as_ptr(),
                data::to_c(data_type),
                shape.as_ptr(),
                dimensions,
            ))?;
            check(TRITONBACKEND_OutputBuffer(
                output,
                &mut buffer,
                byte_size as u64,
                &mut kind,
                &mut device_id,
            ))
        })?;
        if buffer.is_null() && byte_size > 0 {
            return Err(Error::internal(format!("the server returned no memory for output '{name}'")));
        }
        Ok(Place { start: buffer.cast(), kind, device_id })
    }
}

impl Drop for Response<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the response is ours, was not sent, and is not used after this.
            drop(unsafe { check(TRITONBACKEND_ResponseDelete(self.handle)) });
        }
        self.answer.close();
    }
}

/// # Safety
/// `start` is host memory of this size, which belongs to one output alone during `'r`. It may be any address if the size is 0.
unsafe fn zeroed<'r>(start: *mut u8, byte_size: usize) -> &'r mut [u8] {
    if byte_size == 0 {
        return &mut [];
    }
    // SAFETY: as the caller promises; the memory is initialized here.
    unsafe {
        ptr::write_bytes(start, 0, byte_size);
        slice::from_raw_parts_mut(start, byte_size)
    }
}

fn expect_count(name: &str, shape: &[i64], count: usize) -> Result<()> {
    if element_count(shape)? == count {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("output '{name}' of shape {shape:?} cannot hold {count} values")))
}

fn cannot_hold(name: &str, shape: &[i64]) -> Error {
    Error::invalid_argument(format!("output '{name}' of shape {shape:?} cannot hold all values"))
}
