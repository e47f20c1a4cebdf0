//! Outputs placed in regions.

use nereid_backend_api::{
    Buffer, DeviceOutput, Error, Memory, MemoryKind, OutputAllocator, OutputSpec, PlacedMemory, Result,
};

use crate::mapping::HostSlice;
use crate::slice::{Place, Slice};

/// The region slice for an output.
#[derive(Clone, Debug)]
pub(crate) struct Placement {
    /// The output's name.
    pub output: String,
    /// The slice. Bytes past the end of the output stay unchanged.
    pub memory: Slice,
}

/// The placements of a request's outputs.
#[derive(Debug)]
pub(crate) struct PlacedOutputs {
    placements: Vec<Placement>,
    /// The request's inputs in regions.
    inputs: Vec<Slice>,
}

impl PlacedOutputs {
    /// Places outputs of a request whose inputs are in `inputs`.
    pub(crate) fn new(placements: Vec<Placement>, inputs: Vec<Slice>) -> Self {
        Self { placements, inputs }
    }
}

impl OutputAllocator for PlacedOutputs {
    fn allocate(&self, output: &OutputSpec<'_>) -> Result<Option<Box<dyn PlacedMemory>>> {
        let Some(placement) = self.placements.iter().find(|placement| placement.output == output.name) else {
            return Ok(None);
        };
        let memory = placement.memory.first(output.byte_size).ok_or_else(|| {
            // The reference's error code.
            Error::internal(format!(
                "output '{}' has {} bytes, but only {} of shared memory are given for it",
                output.name,
                output.byte_size,
                placement.memory.len()
            ))
        })?;
        memory.check()?;
        // Write elsewhere first if the slice overlaps an input or another output, or if the backend reads its outputs back,
        // which clients may have overwritten by then.
        let others =
            self.placements.iter().filter(|other| other.output != output.name).map(|other| &other.memory);
        let overlaps = self.inputs.iter().chain(others).any(|other| other.overlaps(&memory));
        let aside = overlaps || output.is_read_back;
        Ok(Some(match memory.0 {
            Place::Host(memory) => {
                let aside = aside.then(|| vec![0; memory.len()]);
                Box::new(RegionOutput { memory, aside })
            }
            Place::Device(memory) => {
                let preferred = if aside { Memory::HOST } else { output.preferred };
                Box::new(DeviceOutput::new(memory.contents(), memory.device(), preferred))
            }
        }))
    }

    fn preferred_memory(&self, name: &str, _byte_size: Option<usize>) -> Memory {
        match self.placements.iter().find(|placement| placement.output == name) {
            Some(Placement { memory: Slice(Place::Device(slice)), .. }) => {
                Memory { kind: MemoryKind::Gpu, device: slice.device() }
            }
            _ => Memory::HOST,
        }
    }

    fn places_on_device(&self) -> bool {
        self.placements.iter().any(|placement| matches!(placement.memory.0, Place::Device(_)))
    }
}

struct RegionOutput {
    memory: HostSlice,
    aside: Option<Vec<u8>>,
}

impl PlacedMemory for RegionOutput {
    fn as_mut_slice(&mut self) -> Option<&mut [u8]> {
        Some(match &mut self.aside {
            Some(aside) => aside,
            None => self.memory.as_mut_slice(),
        })
    }

    fn freeze(mut self: Box<Self>) -> Result<Buffer> {
        if let Some(aside) = self.aside.take() {
            self.memory.as_mut_slice().copy_from_slice(&aside);
        }
        Ok(self.memory.buffer())
    }
}

#[cfg(test)]
mod tests;
