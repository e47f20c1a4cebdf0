//! Serves Caffe2's NetDef models: converts their files to ONNX, for an engine that the caller passes.
//!
//! A model is two nets: one fills blobs with weights, the other computes. [`Nets::read`] reads both, and
//! [`Nets::to_onnx`] converts them to one ONNX model, in memory. A NetDef declares neither types nor dimensions of its
//! inputs, so the caller passes those that it knows.
//!
//! Each operator has a function in `operators` that converts it. An operator, an argument or a form without an
//! equivalent in ONNX is refused by name: a model computes what its authors meant, or is not served at all.
//!
//! Only `backend` opens files. The converter runs no model and knows no server.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod arguments;
mod backend;
mod caffe2;
mod convert;
mod graph;
mod onnx;
mod operators;
mod value;

pub use backend::{LoadOnnx, NetDefBackend};
pub use convert::{Input, NetDefError, Nets};
pub use operators::names as operators;
pub use value::{Dims, Element};
