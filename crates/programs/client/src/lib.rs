//! A client of every server of the [open inference protocol](https://github.com/kserve/open-inference-protocol) (KServe v2):
//! Nereid, NVIDIA Triton Inference Server, KServe's own servers, and others.
//!
//! [`http::Client`] and `grpc::Client` have the same methods and the same types. Extensions of Triton, such as statistics and
//! loads, are methods as well; a server that lacks one answers with an error.
//!
//! ```no_run
//! use nereid_client::{InferRequest, Tensor, http};
//!
//! # async fn run() -> Result<(), nereid_client::Error> {
//! let client = http::Client::new("http://localhost:8000")?;
//! let input = Tensor::new("INPUT0", [1, 3], [1.5_f32, 2.0, 0.1])?;
//! let response = client.infer(InferRequest::new("identity_fp32").input(input)).await?;
//! assert_eq!(response.output("OUTPUT0")?.to_vec::<f32>()?, [1.5, 2.0, 0.1]);
//! # Ok(())
//! # }
//! ```
//!
//! # Features
//! - `grpc` (default): [`grpc::Client`](grpc)
//! - `tls` (default): `https://`, by rustls
//! - `ndarray`: [`Tensor`]s from and to arrays

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod error;
#[cfg(feature = "grpc")]
pub mod grpc;
pub mod http;
mod model;
mod options;
mod request;
mod retry;
#[cfg(target_os = "linux")]
mod shared_memory;
mod tensor;
#[cfg(feature = "tls")]
mod tls;
mod transport;

pub use tensor_types::DataType;

pub use self::error::{Code, Error};
pub use self::model::{
    BatchStatistics, ConfiguredTensor, IndexEntry, LoadOverrides, ModelConfig, ModelMetadata, ModelState,
    ModelStatistics, RegionStatus, Scheduling, ServerMetadata, TensorMetadata, Times,
};
pub use self::options::Options;
pub use self::request::{InferRequest, InferResponse, Parameter, Parameters, RequestedOutput, SequenceId};
pub use self::retry::Retry;
#[cfg(target_os = "linux")]
pub use self::shared_memory::SharedMemory;
pub use self::tensor::{Element, Tensor};
#[cfg(feature = "tls")]
pub use self::tls::{Identity, Tls, Trust};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
