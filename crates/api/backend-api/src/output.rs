//! Memory for outputs: the server's own, or what the caller of the request provides.

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
    /// Where the backend prefers to write it.
    pub preferred: Memory,
    /// Whether the backend may read the output after writing it, so that no other process may write there until it is done.
    pub is_read_back: bool,
}

/// Provides memory for a request's outputs: a registered shared-memory region, or what a caller of the C API allocates.
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

    /// Where [`allocate`](Self::allocate) would place an output, if that is known before the output is.
    fn preferred_memory(&self, _name: &str, _byte_size: Option<usize>) -> Memory {
        Memory::HOST
    }

    /// Whether it places any output in device memory, which takes time to write.
    fn places_on_device(&self) -> bool {
        false
    }
}

/// Writable memory from an [`OutputAllocator`].
pub trait PlacedMemory: Send {
    /// The bytes to write, if the CPU can write them.
    fn as_mut_slice(&mut self) -> Option<&mut [u8]>;

    /// The memory, if the device is to write it.
    fn as_device(&self) -> Option<Buffer> {
        None
    }

    /// The written memory, for a response. Dropping the buffer returns the memory.
    ///
    /// # Errors
    /// The contents cannot be copied to where they belong.
    fn freeze(self: Box<Self>) -> Result<Buffer>;
}

/// Device memory for one output. If the backend prefers exactly this memory, its device writes there. Otherwise the backend
/// writes to host memory, which is copied when it is complete.
pub struct DeviceOutput {
    target: DeviceBuffer,
    device: i64,
    staged: Option<Vec<u8>>,
}

impl DeviceOutput {
    /// Memory of `device`, for an output that its backend prefers in `preferred`.
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

    /// The memory, if the device is to write it. Only a backend that [preferred](OutputSpec::preferred) it gets that.
    pub fn as_device(&self) -> Option<Buffer> {
        match &self.0 {
            Kind::Own(_) => None,
            Kind::Placed(memory) => memory.as_device(),
        }
    }

    /// The contents for a response.
    ///
    /// # Errors
    /// They cannot be copied to where the caller wants them.
    pub fn freeze(self) -> Result<Buffer> {
        match self.0 {
            Kind::Own(bytes) => Ok(Buffer::own(bytes)),
            Kind::Placed(memory) => Ok(memory.freeze()?.into_placed()),
        }
    }
}
