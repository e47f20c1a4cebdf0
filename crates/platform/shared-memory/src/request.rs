//! The shared memory of a request: its inputs and the placements of its outputs.

use std::sync::Arc;

use nereid_backend_api::{Buffer, DataType, OutputAllocator, Result};

use crate::outputs::{PlacedOutputs, Placement};
use crate::slice::Slice;

/// The slices of regions that a request uses. Kept until its answer is sent.
#[derive(Debug, Default)]
pub struct RequestMemory {
    inputs: Vec<Slice>,
    outputs: Vec<Placement>,
}

impl RequestMemory {
    /// The contents of an input in `memory`, in place. BYTES in host memory are copied, because the memory may change
    /// after their lengths were checked. Contents in GPU memory stay there for backends that can read them.
    pub fn input(&mut self, memory: Slice, data_type: DataType) -> Buffer {
        let buffer = memory.input(data_type);
        self.inputs.push(memory);
        buffer
    }

    /// Places an output.
    pub fn output(&mut self, output: String, memory: Slice) {
        self.outputs.push(Placement { output, memory });
    }

    /// The allocator of the placed outputs; `None` if none is placed. Call it after all inputs and outputs were added.
    pub fn allocator(&self) -> Option<Arc<dyn OutputAllocator>> {
        let placed = || PlacedOutputs::new(self.outputs.clone(), self.inputs.clone());
        (!self.outputs.is_empty()).then(|| Arc::new(placed()) as _)
    }

    /// Checks that the memory existed while it was used. Call it after the last read: an output may be an input in a
    /// region.
    ///
    /// # Errors
    /// `Unavailable` if a region was truncated.
    pub fn check(&self) -> Result<()> {
        let outputs = self.outputs.iter().map(|placement| &placement.memory);
        self.inputs.iter().chain(outputs).try_for_each(Slice::check)
    }
}
