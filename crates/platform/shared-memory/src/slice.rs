//! A slice of a region of either kind.

use std::sync::Arc;

use nereid_backend_api::{Buffer, DataType, DeviceBuffer, Result};
use nereid_cuda::ImportedMemory;

use crate::mapping::HostSlice;

/// A slice of a region. Keeps the memory mapped or open.
#[derive(Clone, Debug)]
pub struct Slice(pub(crate) Place);

#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// In host memory.
    Host(HostSlice),
    /// In a GPU's memory.
    Device(DeviceSlice),
}

impl Slice {
    /// Length in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Place::Host(slice) => slice.len(),
            Place::Device(slice) => slice.length,
        }
    }

    /// Whether the length is zero.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The contents of an input in this memory, see [`RequestMemory::input`](crate::RequestMemory::input).
    pub(crate) fn input(&self, data_type: DataType) -> Buffer {
        match &self.0 {
            Place::Host(slice) if data_type == DataType::Bytes => slice.copied(),
            Place::Host(slice) => slice.buffer(),
            // Readers copy device memory first.
            Place::Device(slice) => slice.buffer(),
        }
    }

    /// The first `length` bytes; `None` if the slice is shorter.
    pub(crate) fn first(&self, length: usize) -> Option<Self> {
        match &self.0 {
            Place::Host(slice) => Some(Self(Place::Host(slice.first(length)?))),
            Place::Device(slice) => Some(Self(Place::Device(slice.first(length)?))),
        }
    }

    /// Whether two slices share a byte.
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Place::Host(one), Place::Host(other)) => one.overlaps(other),
            (Place::Device(one), Place::Device(other)) => one.overlaps(other),
            _ => false,
        }
    }

    /// Checks that the memory still exists.
    pub(crate) fn check(&self) -> Result<()> {
        match &self.0 {
            Place::Host(slice) => slice.check(),
            // Imported memory exists until it is closed, even if its owner frees it.
            Place::Device(_) => Ok(()),
        }
    }
}

/// A slice of GPU memory.
#[derive(Clone)]
pub(crate) struct DeviceSlice {
    memory: Arc<ImportedMemory>,
    offset: usize,
    length: usize,
}

impl DeviceSlice {
    /// A slice of a region; `None` if it is out of bounds.
    pub(crate) fn of(memory: &Arc<ImportedMemory>, offset: usize, length: usize) -> Option<Self> {
        let within = offset.checked_add(length).is_some_and(|end| end <= memory.byte_size());
        within.then(|| Self { memory: Arc::clone(memory), offset, length })
    }

    fn first(&self, length: usize) -> Option<Self> {
        (length <= self.length).then(|| Self { length, ..self.clone() })
    }

    fn start(&self) -> u64 {
        self.memory.address() + self.offset as u64
    }

    /// Compares addresses, since several regions may share memory.
    fn overlaps(&self, other: &Self) -> bool {
        self.device() == other.device()
            && self.start() < other.start() + other.length as u64
            && other.start() < self.start() + self.length as u64
    }

    pub(crate) fn device(&self) -> i64 {
        self.memory.device()
    }

    pub(crate) fn contents(&self) -> DeviceBuffer {
        DeviceBuffer { address: self.start(), len: self.length, owner: Arc::clone(&self.memory) as _ }
    }

    fn buffer(&self) -> Buffer {
        Buffer::device(self.contents(), self.device())
    }
}

impl std::fmt::Debug for DeviceSlice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceSlice({} bytes from {:#x} on, GPU {})", self.length, self.start(), self.device())
    }
}
