//! Turns Caffe2's NetDef files into ONNX.
//!
//! A model is two nets: one fills blobs with weights, the other computes. [`Nets::read`] reads both, and
//! [`Nets::to_onnx`] makes one ONNX model of them, in memory. A NetDef says neither the types nor the dimensions of its
//! inputs, so the caller says them as far as it knows.
//!
//! Each operator has a function in `operators` that says the same in ONNX. An operator, an argument or a form of one that
//! has no counterpart is refused by name: a model is served as its authors meant it, or not at all.
//!
//! The crate opens no file, runs nothing and knows no server.

#![forbid(unsafe_code)]

mod arguments;
mod caffe2;
mod convert;
mod graph;
mod onnx;
mod operators;
mod value;

pub use convert::{Input, NetDefError, Nets};
pub use operators::names as operators;
pub use value::{Dims, Element};
