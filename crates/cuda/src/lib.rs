//! GPU memory through NVIDIA's driver library: which GPUs exist, memory shared by other processes, copies from and to
//! it, and pools that backends borrow from.
//!
//! The library is loaded at run time: on a machine without it, opening it is an [error](CudaError) and nothing worse.
//! Only the driver's own interface is used, so no part of the CUDA toolkit is needed. `driver.rs` declares the few
//! functions we use: crates that declare all of them panic when the library, or one function, is missing.
//!
//! It knows no protocol, no server and no backend. It is one of the few crates with unsafe code; its interface is safe
//! to call from any thread, except where it trusts addresses from C ([`ForeignMemory`]).

mod cuda;
mod driver;
mod error;
mod memory;
mod pool;
mod pools;

pub use cuda::{Capability, Cuda, Device};
pub use error::CudaError;
pub use memory::{DeviceAllocation, ForeignMemory, ImportedMemory, PinnedAllocation};
pub use pool::PoolUsage;
pub use pools::{PoolSizes, Pools};

/// The name of the driver library, as the system's loader finds it.
pub const DRIVER_LIBRARY: &str = "libcuda.so.1";
