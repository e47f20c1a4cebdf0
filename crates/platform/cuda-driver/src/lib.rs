//! NVIDIA's driver library: which GPUs exist, and calls in their contexts.
//!
//! The library is loaded at run time: on a machine without it, opening it is an [error](CudaError) and nothing worse.
//! Only the driver's own interface is used, so no part of the CUDA toolkit is needed. `driver.rs` declares the few
//! functions we use: crates that declare all of them panic when the library, or one function, is missing.
//!
//! It knows nothing of what its callers keep in the memory of GPUs: servers and the processes of models use it alike.

mod cuda;
mod driver;
mod error;

pub use cuda::{Capability, Cuda, Device, log_failure};
pub use driver::{Driver, LAZY_PEER_ACCESS, PORTABLE, RawIpcHandle};
pub use error::CudaError;

/// The name of the driver library, as the system's loader finds it.
pub const DRIVER_LIBRARY: &str = "libcuda.so.1";
