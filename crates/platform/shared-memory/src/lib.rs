//! System and CUDA shared memory: regions that clients register, with inputs read and outputs written in place.
//!
//! Every protocol shares one [`Regions`]; this crate knows no protocol. It is one of the few crates with unsafe code:
//! other processes may change a region at any time. Three rules follow from that:
//!
//! - No value in a region is relied upon after a check. Contents whose structure matters (BYTES) are copied out first;
//!   contents of GPU memory are, whenever the CPU reads them.
//! - A file that is truncated after registration does not end the process. Touching the missing part raises SIGBUS;
//!   `faults` maps zeroes there, and the region is broken from then on.
//! - A mapping lives as long as any slice of it, even after its region is unregistered.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod faults;
mod mapping;
mod outputs;
mod regions;
mod request;
mod slice;
#[cfg(test)]
mod testing;

pub use faults::FaultHandler;
pub use regions::{CudaRegionStatus, RegionStatus, Regions};
pub use request::RequestMemory;
pub use slice::Slice;
