//! The memory of tensors, and reference-counted slices of it.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;

use crate::Result;

/// The kind of memory, and the device's number (0 for host memory).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Memory {
    /// The kind of memory.
    pub kind: MemoryKind,
    /// The number of its device.
    pub device: i64,
}

/// The kinds of memory, with the C API's numbers.
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
    /// The name in the protocols.
    pub fn protocol_name(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::CpuPinned => "CPU_PINNED",
            Self::Gpu => "GPU",
        }
    }
}

/// The amount of memory used in one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUsage {
    /// The kind and device.
    pub memory: Memory,
    /// The size in bytes.
    pub byte_size: u64,
}

/// A reference-counted slice of memory. Cloning copies no bytes.
///
/// Host bytes may belong to a request's body, a backend's allocation or a registered region; [`Bytes`] keeps the
/// owner alive in each case. Device memory is an address with an owner.
#[derive(Clone)]
pub struct Buffer {
    contents: Contents,
    memory: Memory,
    placed: bool,
    owner: Owner,
}

/// The possible writers of the bytes, and the allocation that they keep alive.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// Only the server, whose allocation is exactly these bytes.
    Server,
    /// Unknown owner, perhaps of a larger allocation.
    Unknown,
    /// A client's process, which may write them at any time.
    Client,
    /// A model's process, which may write them at any time.
    ModelProcess,
}

#[derive(Clone)]
enum Contents {
    Host(Bytes),
    Device(DeviceBuffer),
}

/// A slice of device memory: an address for the device's driver, and its owner.
#[derive(Clone)]
pub struct DeviceBuffer {
    /// Address in the device's address space.
    pub address: u64,
    /// Length in bytes.
    pub len: usize,
    /// Keeps the memory allocated.
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

    /// The handle that the memory was opened with, if another process allocated it.
    fn ipc_handle(&self) -> Option<&IpcHandle> {
        None
    }

    /// The address, in this process, at which the handle's memory starts; `None` without a handle, or if unknown.
    fn ipc_base(&self) -> Option<u64> {
        None
    }
}

impl Buffer {
    /// Ordinary host memory.
    pub fn host(bytes: impl Into<Bytes>) -> Self {
        Self::new(Contents::Host(bytes.into()), Memory::HOST)
    }

    /// Ordinary host memory without other owners: retaining it retains only these bytes.
    pub fn own(bytes: Vec<u8>) -> Self {
        // A boxed slice has no spare capacity.
        Self { owner: Owner::Server, ..Self::host(bytes.into_boxed_slice()) }
    }

    /// Host memory of a client, whose process may write it at any time.
    pub fn shared(bytes: Bytes) -> Self {
        Self { owner: Owner::Client, ..Self::host(bytes) }
    }

    /// Host memory that the server shares with the process of a model, which may write it at any time.
    pub fn shared_with_model(bytes: Bytes) -> Self {
        Self { owner: Owner::ModelProcess, ..Self::host(bytes) }
    }

    /// Host memory pinned for `device`.
    pub fn pinned(bytes: Bytes, device: i64) -> Self {
        Self::new(Contents::Host(bytes), Memory { kind: MemoryKind::CpuPinned, device })
    }

    /// Memory of `device`.
    pub fn device(buffer: DeviceBuffer, device: i64) -> Self {
        Self::new(Contents::Device(buffer), Memory { kind: MemoryKind::Gpu, device })
    }

    fn new(contents: Contents, memory: Memory) -> Self {
        Self { contents, memory, placed: false, owner: Owner::Unknown }
    }

    /// Marks the buffer as being where the request's caller wants it.
    pub(crate) fn into_placed(self) -> Self {
        Self { placed: true, ..self }
    }

    /// Whether the bytes are in memory provided by the request's caller.
    pub fn is_placed(&self) -> bool {
        self.placed
    }

    /// Whether another process may write the bytes at any time.
    pub fn is_shared(&self) -> bool {
        matches!(self.owner, Owner::Client | Owner::ModelProcess)
    }

    /// A buffer safe to retain: self if it pins nothing else and no one else can write it, else a copy in host
    /// memory.
    ///
    /// # Errors
    /// The device's driver failed.
    pub fn to_retained(&self) -> Result<Self> {
        if self.owner == Owner::Server && !self.placed {
            return Ok(self.clone());
        }
        Ok(match &self.contents {
            Contents::Host(bytes) => Self::own(bytes.to_vec()),
            Contents::Device(_) => Self { owner: Owner::Server, ..Self::host(self.to_host()?) },
        })
    }

    /// The kind and device of the memory.
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

    /// Whether the length is zero.
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

    /// A part of host memory, without a copy; `None` for device memory, and for a range beyond the end.
    pub fn slice(&self, range: Range<usize>) -> Option<Self> {
        let bytes = self.as_host().filter(|bytes| range.start <= range.end && range.end <= bytes.len())?;
        let whole = range.len() == bytes.len();
        // A part pins the rest of the allocation.
        let owner = if self.owner == Owner::Server && !whole { Owner::Unknown } else { self.owner };
        Some(Self { contents: Contents::Host(bytes.slice(range)), owner, ..self.clone() })
    }

    /// Replaces the bytes by the same elsewhere, or with another owner, if they are in host memory and not a client's.
    ///
    /// # Errors
    /// The error of `replace`. The buffer is empty then.
    pub fn try_replace(&mut self, replace: impl FnOnce(Bytes) -> Result<Bytes>) -> Result<()> {
        if self.owner != Owner::Client
            && let Contents::Host(bytes) = &mut self.contents
        {
            *bytes = replace(std::mem::take(bytes))?;
            // They may be a part of something larger now, which must not be kept for any time.
            if self.owner == Owner::Server {
                self.owner = Owner::Unknown;
            }
        }
        Ok(())
    }

    /// The bytes in host memory. Device memory is copied, which takes time.
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

    /// The device memory, if the buffer is in device memory.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Card, on_card};

    #[test]
    fn parts_of_host_memory_share_it_and_are_marked_like_it() {
        let card = Card::holding(b"abc");
        for buffer in [Buffer::own(b"abc".to_vec()), Buffer::shared(Bytes::from_static(b"abc"))] {
            let part = buffer.slice(1..3).unwrap();
            assert_eq!(part.as_host().unwrap()[..], b"bc"[..]);
            assert_eq!(part.as_host().unwrap().as_ptr(), buffer.as_host().unwrap()[1..].as_ptr());
            assert_eq!(part.is_shared(), buffer.is_shared());
            let kept = part.to_retained().unwrap();
            assert_ne!(kept.as_host().unwrap().as_ptr(), part.as_host().unwrap().as_ptr());
            assert!(buffer.slice(3..3).unwrap().is_empty() && buffer.slice(2..4).is_none());
        }
        assert!(on_card(&card).slice(0..1).is_none());
    }

    #[test]
    fn only_server_owned_buffers_are_retained_without_a_copy() {
        let card = Card::holding(b"abc");
        let own = Buffer::own(b"abc".to_vec());
        let cases = [
            (own.clone(), true),
            (own.clone().into_placed(), false),
            (Buffer::host(own.as_host().unwrap().clone()), false),
            (Buffer::shared(Bytes::from_static(b"abc")), false),
            (Buffer::shared_with_model(Bytes::from_static(b"abc")), false),
            (Buffer::pinned(Bytes::from_static(b"abc"), 0), false),
            (on_card(&card), false),
        ];
        for (buffer, same) in cases {
            let kept = buffer.to_retained().unwrap();
            let address = |it: &Buffer| it.as_host().map(|bytes| bytes.as_ptr());
            assert_eq!(kept.as_host().unwrap()[..], buffer.to_host().unwrap()[..], "{buffer:?}");
            assert_eq!(address(&kept) == address(&buffer), same, "{buffer:?}");
            assert!(!kept.is_placed() && !kept.is_shared() && kept.memory() == Memory::HOST);
            // Once retained, it stays in place.
            assert_eq!(address(&kept.to_retained().unwrap()), address(&kept));
        }
        card.fail();
        assert!(on_card(&card).to_retained().is_err());
        assert!(Buffer::shared(Bytes::new()).is_shared() && !own.is_shared());
    }
}
