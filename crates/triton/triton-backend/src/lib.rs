//! Write backends for Triton, and for any server that loads Triton's backends, in safe Rust.
//!
//! A backend is a shared library that a server loads and that serves models. Implement three traits, [`Backend`],
//! [`Model`] and [`Instance`], name the first of them in [`export_backend!`], and build a `cdylib`: the result is
//! `libtriton_<name>.so` if the crate's library is called `triton_<name>`. Any server with Triton's C interface for
//! backends, version 1.19 or a later 1.x, loads it.
//!
//! ```no_run
//! use std::sync::Arc;
//! use triton_backend::{
//!     Backend, BackendContext, Batch, DataType, Instance, InstanceContext, Model, ModelConfig, ModelContext, Result,
//! };
//!
//! struct Doubling;
//! struct DoublingModel;
//! struct DoublingInstance;
//!
//! impl Backend for Doubling {
//!     type Model = DoublingModel;
//!
//!     fn start(_context: &BackendContext<'_>) -> Result<Self> {
//!         Ok(Self)
//!     }
//! }
//!
//! impl Model for DoublingModel {
//!     type Backend = Doubling;
//!     type Instance = DoublingInstance;
//!
//!     fn complete_config(
//!         _backend: &Arc<Doubling>,
//!         _context: &ModelContext<'_>,
//!         config: &mut ModelConfig,
//!     ) -> Result<()> {
//!         config.add_input("IN", DataType::Fp32, &[-1]);
//!         config.add_output("OUT", DataType::Fp32, &[-1]);
//!         Ok(())
//!     }
//!
//!     fn load(_backend: &Arc<Doubling>, context: &ModelContext<'_>) -> Result<Self> {
//!         triton_backend::info!("model {} is loaded", context.name());
//!         Ok(Self)
//!     }
//! }
//!
//! impl Instance for DoublingInstance {
//!     type Model = DoublingModel;
//!
//!     fn start(_model: &Arc<DoublingModel>, _context: &InstanceContext<'_>) -> Result<Self> {
//!         Ok(Self)
//!     }
//!
//!     fn execute(&mut self, batch: &mut Batch) -> Result<()> {
//!         for request in &*batch {
//!             let input = request.input("IN")?;
//!             let doubled: Vec<f32> = input.to_vec::<f32>()?.iter().map(|value| value * 2.0).collect();
//!             let mut response = request.respond()?;
//!             response.output("OUT", input.shape(), &doubled)?;
//!             response.send_last()?;
//!         }
//!         Ok(())
//!     }
//! }
//!
//! triton_backend::export_backend!(Doubling);
//! # fn main() {}
//! ```
//!
//! The library guarantees the following:
//!
//! - **Every request is answered, once.** Requests that `execute` leaves unanswered fail, with the error that
//!   `execute` returned, if any. A panic counts as an error, and does not reach the server.
//! - **Every request is released** to the server, at the end of `execute` or when it is dropped after [`Batch::take`].
//! - **Statistics** are reported for each request, each batch and, where the model is decoupled, each response.
//!   [`Batch::mark_compute_start`] and [`Batch::mark_compute_end`] make them finer.
//! - **Decoupled models** send through [`Request::responder`], from any thread and as often as they like.
//! - **Other models** are called through [`ModelContext::server`] and [`InferRequest`]; [`Responses::canceller`] stops a
//!   call.
//! - **Memory of the server** comes from [`BackendContext::memory_manager`] and is returned when dropped.
//!   [`ModelContext::report_memory_usage`] reports memory that the backend allocates itself.
//!
//! - **Outputs** are copied from slices ([`Response::output`]), computed directly into the server's memory
//!   ([`Response::output_from`], [`Response::zeroed_output`]), or placed on a device ([`Response::output_memory`]).
//! - **Device memory** is passed by its address: of inputs ([`Piece::Device`]), of outputs, and of buffers
//!   ([`MemoryManager::allocate_on_device`]). Copying it and computing on it needs a library of the device's maker. All
//!   other methods refuse it.
//!
//! A backend's threads must have ended when their owner is dropped, because the server may unload the library then.
//! The library calls the functions of the server that loads it, so a standalone program cannot be linked with it.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod answer;
mod batch;
mod cancel;
mod clock;
mod config;
mod context;
mod data;
#[doc(hidden)]
pub mod entry;
mod error;
mod execution;
mod infer;
mod input;
mod log;
mod memory;
mod message;
mod metrics;
mod property;
mod request;
mod response;
mod server;
mod state;
#[doc(hidden)]
pub mod strategy;
mod traits;

pub use answer::Responder;
pub use batch::Batch;
pub use cancel::Canceller;
pub use config::{ModelConfig, TensorConfig};
pub use context::{
    BackendContext, ExecutionPolicy, InstanceContext, InstanceKind, ModelContext, SecondaryDevice,
};
pub use data::{Element, join_bytes, split_bytes};
pub use error::{Error, ErrorCode, Result};
pub use infer::{InferRequest, InferResponse, OutputTensor, Responses};
pub use input::{Input, Piece};
pub use log::{Level, log};
pub use memory::{DeviceMemory, MemoryKind, MemoryManager, MemoryUsage, ServerMemory};
pub use metrics::{Metric, MetricFamily, MetricKind};
pub use request::{CorrelationId, Parameter, Request, RequestInfo};
pub use response::{OutputMemory, Response};
pub use server::Server;
pub use state::State;
pub use strategy::BatchStrategy;
pub use tensor_types::DataType;
pub use traits::{Attributes, Backend, Instance, InstanceGroup, Model};

/// 16-bit floating-point numbers, as elements of tensors.
pub use half;
/// JSON, the format of configurations.
pub use serde_json;
/// The underlying C declarations.
pub use triton_sys as sys;

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Exports a [`Backend`] under the names that servers load. Use it once per library.
#[macro_export]
macro_rules! export_backend {
    ($backend:ty) => {
        $crate::export_functions! {
            entry, $backend;
            TRITONBACKEND_Initialize = initialize(backend: TRITONBACKEND_Backend);
            TRITONBACKEND_Finalize = finalize(backend: TRITONBACKEND_Backend);
            TRITONBACKEND_ModelInitialize = model_initialize(model: TRITONBACKEND_Model);
            TRITONBACKEND_ModelFinalize = model_finalize(model: TRITONBACKEND_Model);
            TRITONBACKEND_ModelInstanceInitialize = instance_initialize(instance: TRITONBACKEND_ModelInstance);
            TRITONBACKEND_ModelInstanceFinalize = instance_finalize(instance: TRITONBACKEND_ModelInstance);
            TRITONBACKEND_ModelInstanceReady = instance_ready(instance: TRITONBACKEND_ModelInstance);
        }

        /// # Safety
        /// Called only by the server.
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn TRITONBACKEND_GetBackendAttribute(
            _backend: *mut $crate::sys::TRITONBACKEND_Backend,
            attributes: *mut $crate::sys::TRITONBACKEND_BackendAttribute,
        ) -> *mut $crate::sys::TRITONSERVER_Error {
            // SAFETY: the server obeys the interface.
            unsafe { $crate::entry::attributes::<$backend>(attributes) }
        }

        /// # Safety
        /// Called only by the server.
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn TRITONBACKEND_ModelInstanceExecute(
            instance: *mut $crate::sys::TRITONBACKEND_ModelInstance,
            requests: *mut *mut $crate::sys::TRITONBACKEND_Request,
            count: u32,
        ) -> *mut $crate::sys::TRITONSERVER_Error {
            // SAFETY: the server obeys the interface.
            unsafe { $crate::entry::execute::<$backend>(instance, requests, count) }
        }
    };
}

/// Exports a [`BatchStrategy`] under the names that servers load from a `batchstrategy.so`. Use it once per library.
#[macro_export]
macro_rules! export_batch_strategy {
    ($strategy:ty) => {
        /// # Safety
        /// Called only by the server.
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn TRITONBACKEND_ModelBatcherInitialize(
            batcher: *mut *mut $crate::sys::TRITONBACKEND_Batcher,
            model: *mut $crate::sys::TRITONBACKEND_Model,
        ) -> *mut $crate::sys::TRITONSERVER_Error {
            // SAFETY: the server obeys the interface.
            unsafe { $crate::strategy::initialize::<$strategy>(batcher, model) }
        }

        /// # Safety
        /// Called only by the server.
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn TRITONBACKEND_ModelBatchInitialize(
            batcher: *const $crate::sys::TRITONBACKEND_Batcher,
            batch: *mut *mut ::std::ffi::c_void,
        ) -> *mut $crate::sys::TRITONSERVER_Error {
            // SAFETY: the server obeys the interface.
            unsafe { $crate::strategy::batch_initialize::<$strategy>(batcher, batch) }
        }

        /// # Safety
        /// Called only by the server.
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn TRITONBACKEND_ModelBatchIncludeRequest(
            request: *mut $crate::sys::TRITONBACKEND_Request,
            batch: *mut ::std::ffi::c_void,
            include: *mut bool,
        ) -> *mut $crate::sys::TRITONSERVER_Error {
            // SAFETY: the server obeys the interface.
            unsafe { $crate::strategy::batch_include::<$strategy>(request, batch, include) }
        }

        /// # Safety
        /// Called only by the server.
        #[doc(hidden)]
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn TRITONBACKEND_ModelBatchFinalize(
            batch: *mut ::std::ffi::c_void,
        ) -> *mut $crate::sys::TRITONSERVER_Error {
            // SAFETY: the server obeys the interface.
            unsafe { $crate::strategy::batch_finalize::<$strategy>(batch) }
        }

        $crate::export_functions! {
            strategy, $strategy;
            TRITONBACKEND_ModelBatcherFinalize = finalize(batcher: TRITONBACKEND_Batcher);
        }
    };
}

/// Functions that take one handle.
#[doc(hidden)]
#[macro_export]
macro_rules! export_functions {
    ($room:ident, $author:ty; $($name:ident = $function:ident($argument:ident: $handle:ident);)*) => {
        $(
            /// # Safety
            /// Called only by the server.
            #[doc(hidden)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name(
                $argument: *mut $crate::sys::$handle,
            ) -> *mut $crate::sys::TRITONSERVER_Error {
                // SAFETY: the server obeys the interface.
                unsafe { $crate::$room::$function::<$author>($argument) }
            }
        )*
    };
}
