//! The shared memory of one request: what it reads, and where its outputs go.

use std::sync::Arc;

use nereid_backend_api::{Buffer, DataType, OutputAllocator, Result};

use crate::outputs::{PlacedOutputs, Placement};
use crate::slice::Slice;

/// What a request uses of the regions. Kept until its answer is sent.
#[derive(Debug, Default)]
pub struct RequestMemory {
    inputs: Vec<Slice>,
    outputs: Vec<Placement>,
}

impl RequestMemory {
    /// The contents of an input in `memory`. They are read in place, unless they are BYTES: their lengths
    /// are relied upon once they are checked, and that memory may change at any time. Those in a GPU's memory stay there
    /// in any case, for who can read them there.
    pub fn input(&mut self, memory: Slice, data_type: DataType) -> Buffer {
        let buffer = memory.input(data_type);
        self.inputs.push(memory);
        buffer
    }

    /// Places an output.
    pub fn output(&mut self, output: String, memory: Slice) {
        self.outputs.push(Placement { output, memory });
    }

    /// What places the outputs, if any has a place. To be asked for when all inputs and outputs are known.
    pub fn allocator(&self) -> Option<Arc<dyn OutputAllocator>> {
        let placed = || PlacedOutputs::new(self.outputs.clone(), self.inputs.clone());
        (!self.outputs.is_empty()).then(|| Arc::new(placed()) as _)
    }

    /// Whether what was read and written was there. To be asked after the last bytes were read: an output may be an input
    /// that lies here.
    ///
    /// # Errors
    /// `Unavailable` if a part of it was cut off meanwhile.
    pub fn check(&self) -> Result<()> {
        let outputs = self.outputs.iter().map(|placement| &placement.memory);
        self.inputs.iter().chain(outputs).try_for_each(Slice::check)
    }
}
