//! GPU memory through NVIDIA's driver library: memory shared by other processes, copies from and to it, and pools that
//! backends borrow from.
//!
//! `nereid-cuda-driver` loads the library and calls it. This crate knows no protocol, no server and no backend. It is one
//! of the few crates with unsafe code; its interface is safe to call from any thread, except where it trusts addresses
//! from C ([`ForeignMemory`]).

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod memory;
mod pool;
mod pools;

pub use memory::{DeviceAllocation, ForeignMemory, ImportedMemory, PinnedAllocation};
pub use nereid_cuda_driver::{Capability, Cuda, CudaError, DRIVER_LIBRARY, Device};
pub use pool::PoolUsage;
pub use pools::{PoolSizes, Pools};
