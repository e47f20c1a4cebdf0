//! Requests, responses and their parts, in both channels. Texts and small contents borrow from the message.

use std::io;

use crate::channel::Message;
use crate::codec::{Malformed, Reader, Writer};
use crate::memory::Region;

/// Largest number of dimensions of a tensor, as in numpy.
pub const MAX_DIMENSIONS: usize = 64;

/// A received tensor.
#[derive(Debug)]
pub struct Tensor<'a> {
    /// The name.
    pub name: &'a str,
    /// The type of its elements, by its number in Triton's C interface: BOOL is 1, BYTES 13, BF16 14.
    pub data_type: u8,
    /// The dimensions, outermost first.
    pub shape: Vec<i64>,
    /// The elements, row-major and little-endian. Each element of BYTES follows its length (u32).
    pub contents: Contents<'a>,
}

/// Where the contents of a tensor are.
#[derive(Debug)]
pub enum Contents<'a> {
    /// In the message.
    Inline(&'a [u8]),
    /// In shared memory.
    Region(Region),
    /// In memory of a device.
    Device(DeviceContents),
    /// In shared memory that cannot be mapped, for example for lack of memory. The channel stays usable.
    Unmapped(io::Error),
}

/// Contents in memory of a device, which a third process shares. Only a server sends them, to processes that read such
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceContents {
    /// The device's number.
    pub device: u32,
    /// The handle that opens the memory: CUDA's `cudaIpcMemHandle_t`.
    pub handle: [u8; 64],
    /// Where the contents begin in what the handle opens.
    pub offset: u64,
    /// Their length in bytes.
    pub length: u64,
}

impl Contents<'_> {
    /// The contents, if the CPU can read them.
    pub fn as_host(&self) -> Option<&[u8]> {
        match self {
            Self::Inline(bytes) => Some(bytes),
            Self::Region(region) => Some(region.as_ref()),
            Self::Device(_) | Self::Unmapped(_) => None,
        }
    }
}

/// The value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'a> {
    /// `true` or `false`.
    Bool(bool),
    /// A whole number.
    Int(i64),
    /// A floating-point number.
    Double(f64),
    /// Text.
    Text(&'a str),
}

/// The sequence of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Correlation<'a> {
    /// None.
    #[default]
    None,
    /// A number.
    Number(u64),
    /// A text.
    Text(&'a str),
}

/// A request without its inputs, which follow it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Request<'a> {
    /// By what the process names the request to the server; the server's alone to choose. 0 in requests that the process
    /// makes.
    pub handle: u64,
    /// The client's id; may be empty.
    pub id: &'a str,
    /// The sequence.
    pub correlation: Correlation<'a>,
    /// [`SEQUENCE_START`] and [`SEQUENCE_END`].
    pub flags: u32,
    /// 0 for the default.
    pub priority: u64,
    /// How long it may wait in a queue, in microseconds; 0 for the default.
    pub timeout: u64,
    /// The number of its sender; 0 for unknown ones, and in requests that the process makes.
    pub flow: u64,
    /// The context of its trace, if it is traced: a text in the form of the tracing mode, empty if the mode has none.
    pub trace: Option<&'a str>,
    /// The requested outputs; none for all.
    pub outputs: Vec<&'a str>,
    /// The parameters.
    pub parameters: Vec<(&'a str, Value<'a>)>,
}

/// A request is the first of its sequence.
pub const SEQUENCE_START: u32 = 1;

/// A request is the last of its sequence.
pub const SEQUENCE_END: u32 = 2;

/// A response as it was received.
#[derive(Debug, Default)]
pub struct Response<'a> {
    /// The outputs.
    pub outputs: Vec<Tensor<'a>>,
    /// The parameters.
    pub parameters: Vec<(&'a str, Value<'a>)>,
}

/// An error: a code, by its number in Triton's C interface (0 is unknown, 1 internal, 7 cancelled), and words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure<'a> {
    /// The code.
    pub code: u8,
    /// The error's text.
    pub message: &'a str,
}

impl Writer {
    /// Parameters.
    pub fn parameters<'a>(&mut self, parameters: impl ExactSizeIterator<Item = (&'a str, Value<'a>)>) {
        self.count(parameters.len());
        for (name, value) in parameters {
            self.text(name);
            match value {
                Value::Bool(value) => {
                    self.u8(0);
                    self.bool(value);
                }
                Value::Int(value) => {
                    self.u8(1);
                    self.i64(value);
                }
                Value::Double(value) => {
                    self.u8(2);
                    self.f64(value);
                }
                Value::Text(value) => {
                    self.u8(3);
                    self.text(value);
                }
            }
        }
    }

    /// A request. The number of its inputs and the [inputs](Message::tensor) have to follow.
    pub fn request(&mut self, request: &Request<'_>) {
        self.u64(request.handle);
        self.text(request.id);
        match request.correlation {
            Correlation::None => self.u8(0),
            Correlation::Number(number) => {
                self.u8(1);
                self.u64(number);
            }
            Correlation::Text(text) => {
                self.u8(2);
                self.text(text);
            }
        }
        self.u32(request.flags);
        self.u64(request.priority);
        self.u64(request.timeout);
        self.u64(request.flow);
        self.optional_text(request.trace);
        self.count(request.outputs.len());
        request.outputs.iter().for_each(|output| self.text(output));
        self.parameters(request.parameters.iter().copied());
    }

    /// An error.
    pub fn failure(&mut self, failure: Failure<'_>) {
        self.u8(failure.code);
        self.text(failure.message);
    }
}

impl Message<'_> {
    /// A tensor whose contents, of `length` bytes, `fill` writes.
    ///
    /// # Errors
    /// The system is out of memory. [Truncate](Message::truncate) the message to where the tensor began.
    pub fn tensor(
        &mut self,
        name: &str,
        data_type: u8,
        shape: &[i64],
        length: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> io::Result<()> {
        self.tensor_head(name, data_type, shape);
        self.contents(length, fill)
    }

    /// A tensor in memory of a device.
    pub fn device_tensor(&mut self, name: &str, data_type: u8, shape: &[i64], contents: &DeviceContents) {
        self.tensor_head(name, data_type, shape);
        self.u8(2);
        self.u32(contents.device);
        self.bytes(&contents.handle);
        self.u64(contents.offset);
        self.u64(contents.length);
    }

    fn tensor_head(&mut self, name: &str, data_type: u8, shape: &[i64]) {
        self.text(name);
        self.u8(data_type);
        self.count(shape.len());
        shape.iter().for_each(|dimension| self.i64(*dimension));
    }
}

impl<'a> Reader<'a> {
    /// A tensor.
    ///
    /// # Errors
    /// The tensor is malformed. Whether contents fit type and shape is not checked.
    pub fn tensor(&mut self) -> Result<Tensor<'a>, Malformed> {
        let (name, data_type) = (self.text()?, self.u8()?);
        let shape = (0..self.count(8)?).map(|_| self.i64()).collect::<Result<_, _>>()?;
        let contents = match self.u8()? {
            0 => Contents::Inline(self.bytes()?),
            1 => self.region()?.map_or_else(Contents::Unmapped, Contents::Region),
            2 => Contents::Device(self.device_contents()?),
            _ => return Err(Malformed("unknown kind of contents")),
        };
        Ok(Tensor { name, data_type, shape, contents })
    }

    fn device_contents(&mut self) -> Result<DeviceContents, Malformed> {
        let device = self.u32()?;
        let handle = self.bytes()?.try_into().map_err(|_| Malformed("a handle is not 64 bytes"))?;
        Ok(DeviceContents { device, handle, offset: self.u64()?, length: self.u64()? })
    }

    /// Tensors after their number.
    ///
    /// # Errors
    /// One is malformed.
    pub fn tensors(&mut self) -> Result<Vec<Tensor<'a>>, Malformed> {
        (0..self.count(14)?).map(|_| self.tensor()).collect()
    }

    /// Parameters.
    ///
    /// # Errors
    /// One is malformed.
    pub fn parameters(&mut self) -> Result<Vec<(&'a str, Value<'a>)>, Malformed> {
        (0..self.count(6)?).map(|_| Ok((self.text()?, self.value()?))).collect()
    }

    fn value(&mut self) -> Result<Value<'a>, Malformed> {
        Ok(match self.u8()? {
            0 => Value::Bool(self.bool()?),
            1 => Value::Int(self.i64()?),
            2 => Value::Double(self.f64()?),
            3 => Value::Text(self.text()?),
            _ => return Err(Malformed("unknown kind of parameter")),
        })
    }

    /// A request and its inputs.
    ///
    /// # Errors
    /// The value is malformed.
    pub fn request(&mut self) -> Result<(Request<'a>, Vec<Tensor<'a>>), Malformed> {
        let request = Request {
            handle: self.u64()?,
            id: self.text()?,
            correlation: match self.u8()? {
                0 => Correlation::None,
                1 => Correlation::Number(self.u64()?),
                2 => Correlation::Text(self.text()?),
                _ => return Err(Malformed("unknown kind of correlation id")),
            },
            flags: self.u32()?,
            priority: self.u64()?,
            timeout: self.u64()?,
            flow: self.u64()?,
            trace: self.optional_text()?,
            outputs: (0..self.count(4)?).map(|_| self.text()).collect::<Result<_, _>>()?,
            parameters: self.parameters()?,
        };
        Ok((request, self.tensors()?))
    }

    /// A response: parameters, then outputs.
    ///
    /// # Errors
    /// The value is malformed.
    pub fn response(&mut self) -> Result<Response<'a>, Malformed> {
        Ok(Response { parameters: self.parameters()?, outputs: self.tensors()? })
    }

    /// An error.
    ///
    /// # Errors
    /// The value is malformed.
    pub fn failure(&mut self) -> Result<Failure<'a>, Malformed> {
        Ok(Failure { code: self.u8()?, message: self.text()? })
    }
}
