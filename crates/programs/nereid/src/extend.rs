//! The traits by which a program extends the server, and the types in them.
//!
//! - An [`Interceptor`] sees requests before they are queued: quotas, authentication, logs, answers from elsewhere. See
//!   [`Builder::interceptor`](crate::Builder::interceptor).
//! - An [`Executor`] executes the requests to models in place of a backend. See
//!   [`Builder::executor_factory`](crate::Builder::executor_factory).
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let repository = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples/model_repository");
//! # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
//! use std::sync::Arc;
//! use std::sync::atomic::{AtomicU32, Ordering};
//!
//! use nereid::extend::{Caller, Interceptor, Model, QueuedRequest, Step};
//! use nereid::{Error, ErrorCode, ModelControl, Request, Server, tensor};
//!
//! /// Lets each model answer a few requests.
//! struct Quota(AtomicU32);
//!
//! impl Interceptor for Quota {
//!     fn intercept(&self, model: &Arc<Model>, request: &mut QueuedRequest, _: &Caller) -> Step {
//!         if self.0.fetch_add(1, Ordering::Relaxed) < 2 {
//!             return Step::Proceed;
//!         }
//!         let reason = format!("the quota of '{}' is used up", model.name());
//!         request.responder().finish_with(Err(Error::unavailable(reason)));
//!         Step::Answered
//!     }
//! }
//!
//! let server = Server::builder()
//!     .model_repository(repository)
//!     .model_control(ModelControl::Explicit)
//!     .load_at_start("identity_fp32")
//!     .interceptor(Arc::new(Quota(AtomicU32::new(0))))
//!     .start()
//!     .await?;
//! let request = || Request::new("identity_fp32").input(tensor("INPUT0", [1, 1], &[1.0_f32]));
//! assert!(server.infer(request()).await.is_ok() && server.infer(request()).await.is_ok());
//! assert_eq!(server.infer(request()).await.unwrap_err().code(), ErrorCode::Unavailable);
//! server.stop().await?;
//! # Ok(())
//! # })
//! # }
//! ```

pub use nereid_core::backend_api::{
    CorrelationId, InferRequest, MemoryUsage, Request as QueuedRequest, Responder, SequenceFlags,
};
pub use nereid_core::model_config;
pub use nereid_core::{
    BuildError, Caller, Decision, Executable, Executor, ExecutorFactory, Interceptor, InterceptorFactory,
    LoadedVersion, Model, ModelId, ModelSpec, Principal, QueueListener, ReadyCheck, Sequences, Step, Ticket,
    VersionLoad, WaitingStep,
};
