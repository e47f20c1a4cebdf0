//! A response under construction.

use std::{ptr, slice};

use triton_sys::*;

use std::sync::atomic::Ordering;

use crate::answer::{Answer, ResponseTimes};
use crate::data::{DataType, Element, element_count, join_bytes};
use crate::error::{Error, Result, c_string, check};

/// A response that was not sent yet. Dropping it sends nothing.
pub struct Response<'a> {
    handle: *mut TRITONBACKEND_Response,
    answer: &'a Answer,
    /// When the first output was begun; 0 before.
    output_start: u64,
}

impl<'a> Response<'a> {
    /// # Safety
    /// The caller owns the response and gives it away.
    pub(crate) unsafe fn new(handle: *mut TRITONBACKEND_Response, answer: &'a Answer) -> Self {
        Self { handle, answer, output_start: 0 }
    }

    /// Adds an output. Its shape has the batch dimension first where the model has one.
    ///
    /// # Errors
    /// `InvalidArgument` where shape and number of values differ; whatever the server says, above all where the
    /// configuration has no such output.
    pub fn output<T: Element>(&mut self, name: &str, shape: &[i64], values: &[T]) -> Result<()> {
        expect_count(name, shape, values.len())?;
        self.raw_output(name, T::DATA_TYPE, shape, &T::bytes(values))
    }

    /// Adds an output of type `Bytes`.
    ///
    /// # Errors
    /// As for [`output`](Self::output).
    pub fn bytes_output(&mut self, name: &str, shape: &[i64], values: &[impl AsRef<[u8]>]) -> Result<()> {
        expect_count(name, shape, values.len())?;
        self.raw_output(name, DataType::Bytes, shape, &join_bytes(values)?)
    }

    /// Adds an output whose bytes are there as the protocol has them.
    ///
    /// # Errors
    /// `InvalidArgument` where shape and number of bytes differ; whatever the server says.
    pub fn raw_output(&mut self, name: &str, data_type: DataType, shape: &[i64], bytes: &[u8]) -> Result<()> {
        let buffer = self.allocate(name, data_type, shape, bytes.len())?;
        if !bytes.is_empty() {
            // SAFETY: the server gave host memory of this length for this output alone.
            unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), buffer, bytes.len()) };
        }
        Ok(())
    }

    /// Adds an output to be written in place: all zero at first.
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
        let buffer = self.allocate(name, data_type, shape, byte_size)?;
        if byte_size == 0 {
            return Ok(&mut []);
        }
        // SAFETY: the server gave host memory of this length for this output alone; it lives as long as the response,
        // which is borrowed meanwhile, and is initialized here.
        Ok(unsafe {
            ptr::write_bytes(buffer, 0, byte_size);
            slice::from_raw_parts_mut(buffer, byte_size)
        })
    }

    /// Adds a parameter that is a text.
    ///
    /// # Errors
    /// Whatever the server says; so for the other kinds.
    pub fn string_parameter(&mut self, name: &str, value: &str) -> Result<()> {
        let (name, value) = (c_string(name)?, c_string(value)?);
        // SAFETY: the response lives; both texts end with a zero and are copied.
        unsafe { check(TRITONBACKEND_ResponseSetStringParameter(self.handle, name.as_ptr(), value.as_ptr())) }
    }

    /// Adds a parameter that is a whole number.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn int_parameter(&mut self, name: &str, value: i64) -> Result<()> {
        let name = c_string(name)?;
        // SAFETY: the response lives; the name ends with a zero and is copied.
        unsafe { check(TRITONBACKEND_ResponseSetIntParameter(self.handle, name.as_ptr(), value)) }
    }

    /// Adds a parameter that is a truth value.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn bool_parameter(&mut self, name: &str, value: bool) -> Result<()> {
        let name = c_string(name)?;
        // SAFETY: the response lives; the name ends with a zero and is copied.
        unsafe { check(TRITONBACKEND_ResponseSetBoolParameter(self.handle, name.as_ptr(), value)) }
    }

    /// Adds a parameter that is a number.
    ///
    /// # Errors
    /// Whatever the server says.
    pub fn double_parameter(&mut self, name: &str, value: f64) -> Result<()> {
        let name = c_string(name)?;
        // SAFETY: the response lives; the name ends with a zero and is copied.
        unsafe { check(TRITONBACKEND_ResponseSetDoubleParameter(self.handle, name.as_ptr(), value)) }
    }

    /// Sends the response of a decoupled model, after which more may follow.
    ///
    /// # Errors
    /// `Unsupported` where the model is not decoupled, `AlreadyExists` after the last answer, or whatever the server
    /// says.
    pub fn send(self) -> Result<()> {
        self.give(false, None)
    }

    /// Sends the response as the last one, or the only one.
    ///
    /// # Errors
    /// `AlreadyExists` after the last answer, or whatever the server says.
    pub fn send_last(self) -> Result<()> {
        self.give(true, None)
    }

    /// Sends an error as the last answer, with what the response has so far.
    ///
    /// # Errors
    /// `AlreadyExists` after the last answer, or whatever the server says.
    pub fn send_error(self, error: Error) -> Result<()> {
        self.give(true, Some(&error))
    }

    fn give(mut self, last: bool, error: Option<&Error>) -> Result<()> {
        let answer = self.answer;
        if last {
            answer.finish(1)?;
            if error.is_some() {
                answer.has_failed.store(true, Ordering::Release);
            }
            self.hand_over(TRITONSERVER_RESPONSE_COMPLETE_FINAL.0, error)?;
        } else if answer.decoupled {
            answer.while_open(|| self.hand_over(0, None))?;
        } else {
            return Err(Error::unsupported(
                "the model is not decoupled: each request has one response, which is the last",
            ));
        }
        answer.report(&ResponseTimes { output_start: self.output_start, error });
        Ok(())
    }

    /// Gives the response to the server, whatever comes back.
    fn hand_over(&mut self, flags: u32, error: Option<&Error>) -> Result<()> {
        let c_error = error.map_or(ptr::null_mut(), |error| error.clone().into_c());
        let handle = std::mem::replace(&mut self.handle, ptr::null_mut());
        // SAFETY: the response is ours and given away here. The error stays ours.
        let sent = unsafe { check(TRITONBACKEND_ResponseSend(handle, flags, c_error)) };
        if !c_error.is_null() {
            // SAFETY: made above, and not used any more.
            unsafe { TRITONSERVER_ErrorDelete(c_error) };
        }
        sent
    }

    /// Host memory for an output; any address where there are no bytes.
    fn allocate(
        &mut self,
        name: &str,
        data_type: DataType,
        shape: &[i64],
        byte_size: usize,
    ) -> Result<*mut u8> {
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
        let (mut kind, mut id) = (TRITONSERVER_MEMORY_CPU, 0);
        // SAFETY: the response lives, and its outputs with it; name and shape are copied, and the shape has as many
        // dimensions as said. All addresses may be written. What places outputs is there until the last answer.
        self.answer.while_open(|| unsafe {
            check(TRITONBACKEND_ResponseOutput(
                self.handle,
                &mut output,
                c_name.as_ptr(),
                data_type.into_c(),
                shape.as_ptr(),
                dimensions,
            ))?;
            check(TRITONBACKEND_OutputBuffer(output, &mut buffer, byte_size as u64, &mut kind, &mut id))
        })?;
        if kind == TRITONSERVER_MEMORY_GPU {
            return Err(Error::unsupported(format!(
                "output '{name}' must be in device memory, but this backend writes host memory"
            )));
        }
        if buffer.is_null() && byte_size > 0 {
            return Err(Error::internal(format!("the server returned no memory for output '{name}'")));
        }
        Ok(buffer.cast())
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

fn expect_count(name: &str, shape: &[i64], count: usize) -> Result<()> {
    if element_count(shape)? == count {
        return Ok(());
    }
    Err(Error::invalid_argument(format!("output '{name}' of shape {shape:?} cannot hold {count} values")))
}
