//! Nereid, an inference server, embedded in your program.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/model_repository");
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use nereid::{ModelControl, Request, Server, elements, tensor};
//!
//! let server = Server::builder()
//!     .model_repository(repository)
//!     .model_control(ModelControl::Explicit)
//!     .load_at_start("identity_fp32")
//!     .start()
//!     .await?;
//! let request = Request::new("identity_fp32").input(tensor("INPUT0", [1, 3], &[1.0_f32, 2.0, 3.0]));
//! let response = server.infer(request).await?;
//! assert_eq!(elements::<f32>(response.output("OUTPUT0")?)?, [1.0, 2.0, 3.0]);
//! server.stop().await?;
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! - A [`Server`] is configured by a [`Builder`]: by typed settings, by the options of the command line under their names, or by
//!   the [configuration](mod@config) itself. It opens no port unless you call [listen](Builder::listen).
//! - A [`Request`] is answered by [one response](Server::infer) or, by models that send several, a
//!   [stream](Server::infer_stream).
//! - Interceptors and executors of your own [extend] it.
//! - A server does not touch process-wide state: it installs no signal handlers and no log, and one process may run
//!   several. Servers log through the crate `tracing`, to your program's subscriber.
//! - Futures run on any executor; the server has threads of its own.
//!
//! A program that loads backends built for Triton, as shared libraries, must export this crate's functions to them, in
//! its `build.rs`:
//!
//! ```no_run
//! println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol=TRITON*");
//! ```

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod builder;
pub mod config;
pub mod extend;
mod inference;
mod overrides;
mod server;
mod tensors;

pub use nereid_core::backend_api::{
    Buffer, DataType, Error, ErrorCode, ParameterValue, Parameters, Response, Shape, Tensor,
};

/// Numbers of 16 bits, the elements of FP16 and BF16.
pub use half::{bf16, f16};

pub use nereid_options::option_names;

pub use builder::{Builder, ModelControl};
pub use inference::{Request, Responses};
pub use nereid_core::model_config::ModelConfig;
pub use nereid_protocol::documents::{
    BatchStatistics, Durations, IndexEntry, InferenceStatistics, MemoryUsage, ModelMetadata, ModelStatistics,
    ResponseStatistics, ServerMetadata, TensorMetadata,
};
pub use overrides::ModelOverrides;
pub use server::Server;
pub use tensors::{Element, byte_strings, elements, strings, tensor, tensor_of, texts, view};
