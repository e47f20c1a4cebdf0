//! NVIDIA's driver library: the list of GPUs, and calls in their contexts.
//!
//! The library is loaded at run time: on a machine without it, opening it is just an [error](CudaError). Only the
//! driver's own interface is used, so no part of the CUDA toolkit is needed. `driver.rs` declares the few functions
//! we use: crates that declare all of them panic if the library, or one function, is missing.
//!
//! This crate does not know what its callers keep in GPU memory: servers and the processes of models both use it.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod cuda;
mod driver;
mod error;

pub use cuda::{Capability, Cuda, Device, log_failure};
pub use driver::{Driver, LAZY_PEER_ACCESS, PORTABLE, RawIpcHandle};
pub use error::CudaError;

/// The name of the driver library for the system's loader.
pub const DRIVER_LIBRARY: &str = "libcuda.so.1";
