//! Memory that outputs are written to: the backend's own, or placed by whoever made the request.

use bytes::Bytes;
use nereid_model_config::DataType;

use crate::{Buffer, DeviceBuffer, Memory, MemoryKind, Result, Shape};

/// An output that needs memory.
#[derive(Clone, Copy, Debug)]
pub struct OutputSpec<'a> {
    /// Name of the output.
    pub name: &'a str,
    /// Type of its elements.
    pub data_type: DataType,
    /// Its dimensions, the batch dimension included.
    pub shape: &'a Shape,
    /// Length of its contents in bytes.
    pub byte_size: usize,
    /// Where the backend would like to write it.
    pub preferred: Memory,
}

/// Gives memory for a request's outputs: a registered shared-memory region, or what a caller of the C API allocates.
///
/// Called from whatever thread the backend answers on.
pub trait OutputAllocator: Send + Sync {
    /// Memory for one output of one response, of exactly `byte_size` bytes; `None` if any memory will do.
    ///
    /// # Errors
    /// Fails the response, for example when a region is too small.
    fn allocate(&self, output: &OutputSpec<'_>) -> Result<Option<Box<dyn PlacedMemory>>>;

    /// The outputs that follow are those of one more response. Called for each response that has any placed here.
    ///
    /// # Errors
    /// Fails the response.
    fn begin_response(&self) -> Result<()> {
        Ok(())
    }

    /// Where [`allocate`](Self::allocate) would place an output, if that is known before the output is.
    fn preferred_memory(&self, _name: &str, _byte_size: Option<usize>) -> Memory {
        Memory::HOST
    }

    /// Whether it places any output in a device's memory, which takes its time to be written.
    fn places_on_device(&self) -> bool {
        false
    }
}

/// Writable memory that an [`OutputAllocator`] gave.
pub trait PlacedMemory: Send {
    /// The bytes to write, if the processor can write them.
    fn as_mut_slice(&mut self) -> Option<&mut [u8]>;

    /// The memory, if it is a device's that the device is to write.
    fn as_device(&self) -> Option<Buffer> {
        None
    }

    /// The memory after it was written, to go into a response. Dropping the buffer gives the memory back.
    ///
    /// # Errors
    /// What was written cannot be brought where it belongs.
    fn freeze(self: Box<Self>) -> Result<Buffer>;
}

/// A device's memory for one output. A backend that asked for just that memory has its device write there. Any other
/// writes to host memory, which is copied when it is complete.
pub struct DeviceOutput {
    target: DeviceBuffer,
    device: i64,
    staged: Option<Vec<u8>>,
}

impl DeviceOutput {
    /// Memory of `device`, for an output whose backend would like it in `preferred`.
    pub fn new(target: DeviceBuffer, device: i64, preferred: Memory) -> Self {
        let wanted = preferred == Memory { kind: MemoryKind::Gpu, device };
        let staged = (!wanted).then(|| vec![0; target.len]);
        Self { target, device, staged }
    }
}

impl PlacedMemory for DeviceOutput {
    fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        self.staged.as_deref_mut()
    }

    fn as_device(&self) -> Option<Buffer> {
        self.staged.is_none().then(|| Buffer::device(self.target.clone(), self.device))
    }

    fn freeze(self: Box<Self>) -> Result<Buffer> {
        if let Some(staged) = &self.staged {
            self.target.owner.write(self.target.address, staged)?;
        }
        Ok(Buffer::device(self.target, self.device))
    }
}

/// Writable memory for one output.
pub struct OutputBuffer(Kind);

enum Kind {
    Own(Vec<u8>),
    Placed(Box<dyn PlacedMemory>),
}

impl OutputBuffer {
    /// Zeroed memory of the server's own.
    pub(crate) fn own(byte_size: usize) -> Self {
        Self(Kind::Own(vec![0; byte_size]))
    }

    pub(crate) fn placed(memory: Box<dyn PlacedMemory>) -> Self {
        Self(Kind::Placed(memory))
    }

    /// The bytes to write. `None` for device memory, which its driver writes.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        match &mut self.0 {
            Kind::Own(bytes) => Some(bytes),
            Kind::Placed(memory) => memory.as_mut_slice(),
        }
    }

    /// The memory, if it is a device's that the device is to write: only a backend that [preferred](OutputSpec) it is
    /// given that.
    pub fn as_device(&self) -> Option<Buffer> {
        match &self.0 {
            Kind::Own(_) => None,
            Kind::Placed(memory) => memory.as_device(),
        }
    }

    /// The contents for a response.
    ///
    /// # Errors
    /// They cannot be brought where the caller wants them.
    pub fn freeze(self) -> Result<Buffer> {
        match self.0 {
            Kind::Own(bytes) => Ok(Buffer::host(Bytes::from(bytes))),
            Kind::Placed(memory) => Ok(memory.freeze()?.into_placed()),
        }
    }
}
