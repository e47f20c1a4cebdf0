//! Where a tensor's bytes are, and reference-counted slices of them.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::Result;

/// Where memory is: its kind, and the device's number (0 for host memory).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Memory {
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The device it belongs to.
    pub device: i64,
}

/// The kinds of memory, numbered as the C API numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// Ordinary host memory.
    Cpu = 0,
    /// Host memory pinned for transfers to a device.
    CpuPinned = 1,
    /// Device memory, which the CPU cannot address.
    Gpu = 2,
}

impl Memory {
    /// Ordinary host memory.
    pub const HOST: Self = Self { kind: MemoryKind::Cpu, device: 0 };

    /// Whether the CPU can read it.
    pub fn is_host(self) -> bool {
        self.kind != MemoryKind::Gpu
    }
}

impl MemoryKind {
    /// Its name in the protocols.
    pub fn protocol_name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::CpuPinned => "CPU_PINNED",
            Self::Gpu => "GPU",
        }
    }
}

/// How much memory is used in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// Where it is.
    pub memory: Memory,
    /// How much, in bytes.
    pub byte_size: u64,
}

/// A reference-counted slice of memory. Cloning copies no bytes.
///
/// Host bytes may belong to a request's body, a backend's allocation or a registered region; [`Bytes`] keeps the owner alive
/// in each case. Device memory is an address with an owner.
#[derive(Clone)]
pub struct Buffer {
    contents: Contents,
    memory: Memory,
    placed: bool,
}

#[derive(Clone)]
enum Contents {
    Host(Bytes),
    Device(DeviceBuffer),
}

/// A slice of device memory: an address for the device's driver, and what keeps it allocated.
#[derive(Clone)]
pub struct DeviceBuffer {
    /// Address in the device's address space.
    pub address: u64,
    /// Length in bytes.
    pub len: usize,
    /// Keeps it allocated.
    pub owner: Arc<dyn DeviceMemory>,
}

/// A handle with which other processes open device memory: CUDA's `cudaIpcMemHandle_t`.
pub type IpcHandle = [u8; 64];

/// Device memory: keeps it allocated and copies from and to it.
pub trait DeviceMemory: Send + Sync {
    /// Copies bytes that begin at `address` to host memory, and waits for them.
    ///
    /// # Errors
    /// The bytes are outside of this memory, or the driver failed.
    fn read(&self, address: u64, target: &mut [u8]) -> Result<()>;

    /// Copies bytes to the device, beginning at `address`, and waits for them.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    fn write(&self, address: u64, source: &[u8]) -> Result<()>;

    /// The handle it was opened with, if another process allocated it.
    fn ipc_handle(&self) -> Option<&IpcHandle> {
        None
    }
}

impl Buffer {
    /// Ordinary host memory.
    pub fn host(bytes: impl Into<Bytes>) -> Self {
        Self { contents: Contents::Host(bytes.into()), memory: Memory::HOST, placed: false }
    }

    /// Host memory pinned for `device`.
    pub fn pinned(bytes: Bytes, device: i64) -> Self {
        let memory = Memory { kind: MemoryKind::CpuPinned, device };
        Self { contents: Contents::Host(bytes), memory, placed: false }
    }

    /// Memory of `device`.
    pub fn device(buffer: DeviceBuffer, device: i64) -> Self {
        let memory = Memory { kind: MemoryKind::Gpu, device };
        Self { contents: Contents::Device(buffer), memory, placed: false }
    }

    /// The same bytes, marked as being where the caller of the request wants them.
    pub(crate) fn into_placed(self) -> Self {
        Self { placed: true, ..self }
    }

    /// Whether the bytes are in memory that the caller of the request provided.
    pub fn is_placed(&self) -> bool {
        self.placed
    }

    /// Where it is.
    pub fn memory(&self) -> Memory {
        self.memory
    }

    /// Length in bytes.
    pub fn len(&self) -> usize {
        match &self.contents {
            Contents::Host(bytes) => bytes.len(),
            Contents::Device(device) => device.len,
        }
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes, if the CPU can read them.
    pub fn as_host(&self) -> Option<&Bytes> {
        match &self.contents {
            Contents::Host(bytes) => Some(bytes),
            Contents::Device(_) => None,
        }
    }

    /// The bytes in host memory. Those of a device are copied, which takes time.
    ///
    /// # Errors
    /// The device's driver failed.
    pub fn to_host(&self) -> Result<Bytes> {
        match &self.contents {
            Contents::Host(bytes) => Ok(bytes.clone()),
            Contents::Device(device) => {
                let mut bytes = vec![0; device.len];
                device.owner.read(device.address, &mut bytes)?;
                Ok(bytes.into())
            }
        }
    }

    /// The device memory, if it is that.
    pub fn as_device(&self) -> Option<&DeviceBuffer> {
        match &self.contents {
            Contents::Host(_) => None,
            Contents::Device(device) => Some(device),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes, {:?})", self.len(), self.memory)
    }
}
