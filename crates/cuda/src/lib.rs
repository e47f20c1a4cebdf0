//! Memory of GPUs, by NVIDIA's driver library: which GPUs there are, memory that other processes share with this one,
//! copies from and to it, and pools of memory that is lent to backends.
//!
//! The library is looked for and loaded at run time: a machine without it is an [error](CudaError) and nothing worse.
//! Only the driver's own interface is used, so no part of the CUDA toolkit is needed. What is declared of it stands in
//! `driver.rs`, and is little: the crates that declare all of it end the process when the library, or one of its
//! functions, is not there.
//!
//! It knows no protocol, no server and no backend. It is one of the few crates that may hold unsafe code; what it offers
//! is safe to call from any thread, except where it takes addresses from C on trust ([`ForeignMemory`]).

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
