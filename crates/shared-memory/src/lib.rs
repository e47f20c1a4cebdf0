//! Shared memory, of the system and of GPUs: regions that clients register, inputs that are read from them and outputs
//! that are written to them where they lie.
//!
//! Every protocol shares one [`Regions`]; this crate knows no protocol. It is one of the few that may hold unsafe code:
//! a region is memory that other processes change as they like. Three rules follow from that:
//!
//! - No value in a region is relied upon after it was checked. Contents whose structure matters (BYTES) are copied out
//!   first; contents in a GPU's memory are, whenever the processor reads them.
//! - A file that is cut short after it was registered does not end the process. Touching what is gone raises SIGBUS;
//!   [`faults`] puts zeroes there, and the region is broken from then on.
//! - A mapping lives as long as a slice of it, whatever is unregistered meanwhile.

mod faults;
mod mapping;
mod outputs;
mod regions;
mod request;
mod slice;
#[cfg(test)]
mod testing;

pub use regions::{CudaRegionStatus, RegionStatus, Regions};
pub use request::RequestMemory;
pub use slice::Slice;
