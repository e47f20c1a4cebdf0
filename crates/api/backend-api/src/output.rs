//! Memory for outputs: the server's own, or memory provided by the request's caller.

use nereid_model_config::DataType;

use crate::{Buffer, DeviceBuffer, Memory, MemoryKind, Result, Shape};

/// An output that needs memory.
#[derive(Clone, Copy, Debug)]
pub struct OutputSpec<'a> {
    /// Name of the output.
    pub name: &'a str,
    /// Type of its elements.
    pub data_type: DataType,
    /// The dimensions, including the batch dimension.
    pub shape: &'a Shape,
    /// Size of the contents in bytes.
    pub byte_size: usize,
    /// The memory that the backend prefers to write.
    pub preferred: Memory,
    /// Whether the backend may read the output after writing it, so that no other process may write there until it is done.
    pub is_read_back: bool,
}

/// Provides memory for a request's outputs: in a registered shared-memory region, or allocated by a caller of the C
/// API.
///
/// Called on the thread on which the backend answers.
pub trait OutputAllocator: Send + Sync {
    /// Memory for one output of one response, of exactly `byte_size` bytes; `None` if any memory will do.
    ///
    /// # Errors
    /// Fails the response, for example when a region is too small.
    fn allocate(&self, output: &OutputSpec<'_>) -> Result<Option<Box<dyn PlacedMemory>>>;

    /// Begins another response. Called for each response that has outputs placed here.
    ///
    /// # Errors
    /// Fails the response.
    fn begin_response(&self) -> Result<()> {
        Ok(())
    }

    /// The memory in which [`allocate`](Self::allocate) would place an output, if known in advance.
    fn preferred_memory(&self, _name: &str, _byte_size: Option<usize>) -> Memory {
        Memory::HOST
    }

    /// Whether any output is placed in device memory, which is slow to write.
    fn places_on_device(&self) -> bool {
        false
    }
}

/// Writable memory from an [`OutputAllocator`].
pub trait PlacedMemory: Send {
    /// The bytes to write, if the CPU can write them.
    fn as_mut_slice(&mut self) -> Option<&mut [u8]>;

    /// The memory, for the device to write.
    fn as_device(&self) -> Option<Buffer> {
        None
    }

    /// The written memory, for a response. Dropping the buffer returns the memory.
    ///
    /// # Errors
    /// The contents cannot be copied to their target.
    fn freeze(self: Box<Self>) -> Result<Buffer>;
}

/// Device memory for one output. If the backend prefers exactly this memory, its device writes there. Otherwise the
/// backend writes to host memory, which is copied once complete.
pub struct DeviceOutput {
    target: DeviceBuffer,
    device: i64,
    staged: Option<Vec<u8>>,
}

impl DeviceOutput {
    /// Memory of `device`, for an output whose backend prefers `preferred`.
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
    /// Zeroed memory of the server.
    pub(crate) fn own(byte_size: usize) -> Self {
        Self(Kind::Own(vec![0; byte_size]))
    }

    pub(crate) fn placed(memory: Box<dyn PlacedMemory>) -> Self {
        Self(Kind::Placed(memory))
    }

    /// The bytes to write. `None` for device memory, which the driver writes.
    pub fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        match &mut self.0 {
            Kind::Own(bytes) => Some(bytes),
            Kind::Placed(memory) => memory.as_mut_slice(),
        }
    }

    /// The memory, for the device to write. `None` unless the backend [preferred](OutputSpec::preferred) this memory.
    pub fn as_device(&self) -> Option<Buffer> {
        match &self.0 {
            Kind::Own(_) => None,
            Kind::Placed(memory) => memory.as_device(),
        }
    }

    /// The contents for a response.
    ///
    /// # Errors
    /// The contents cannot be copied to the caller's memory.
    pub fn freeze(self) -> Result<Buffer> {
        match self.0 {
            Kind::Own(bytes) => Ok(Buffer::own(bytes)),
            Kind::Placed(memory) => Ok(memory.freeze()?.into_placed()),
        }
    }
}
