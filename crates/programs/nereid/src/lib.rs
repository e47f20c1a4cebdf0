//! Nereid, an inference server, embedded in your program.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/model_repository");
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use nereid::{Request, Server, elements, tensor};
//!
//! let server = Server::builder()
//!     .model_repository(repository)
//!     .option("model-control-mode", "explicit")
//!     .option("load-model", "identity_fp32")
//!     .start()
//!     .await?;
//! let request = Request::new("identity_fp32").input(tensor("INPUT0", [1, 3], &[1.0_f32, 2.0, 3.0]));
//! let response = server.infer(request).await?;
//! assert_eq!(elements::<f32>(&response.outputs[0])?, [1.0, 2.0, 3.0]);
//! server.stop().await?;
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! - A [`Server`] is configured by a [`Builder`], with the options of the command line. It opens no port unless you
//!   call [listen](Builder::listen).
//! - A [`Request`] is answered by [one response](Server::infer) or, by models that send several, a
//!   [stream](Server::infer_stream).
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
mod inference;
mod server;

pub use nereid_core::backend_api::{
    Buffer, DataType, Error, ErrorCode, ParameterValue, Parameters, Response, Shape, Tensor,
};

pub use nereid_options::option_names;

pub use builder::Builder;
pub use inference::{Element, Request, Responses, elements, tensor};
pub use server::Server;
