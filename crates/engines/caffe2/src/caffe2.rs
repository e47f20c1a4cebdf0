//! The parts that we read of Caffe2's files: nets, operators, their arguments, tensors.
//!
//! Field numbers follow Caffe2's `caffe2.proto`. The decoder skips unlisted fields.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NetDef {
    #[prost(message, repeated, tag = "2")]
    pub(crate) op: Vec<OperatorDef>,
    #[prost(message, repeated, tag = "6")]
    pub(crate) arg: Vec<Argument>,
    #[prost(string, repeated, tag = "7")]
    pub(crate) external_input: Vec<String>,
    #[prost(string, repeated, tag = "8")]
    pub(crate) external_output: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OperatorDef {
    #[prost(string, repeated, tag = "1")]
    pub(crate) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) output: Vec<String>,
    #[prost(string, tag = "4")]
    pub(crate) r#type: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) arg: Vec<Argument>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Argument {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(float, optional, tag = "2")]
    pub(crate) f: Option<f32>,
    #[prost(int64, optional, tag = "3")]
    pub(crate) i: Option<i64>,
    #[prost(bytes = "vec", optional, tag = "4")]
    pub(crate) s: Option<Vec<u8>>,
    #[prost(float, repeated, packed = "false", tag = "5")]
    pub(crate) floats: Vec<f32>,
    #[prost(int64, repeated, packed = "false", tag = "6")]
    pub(crate) ints: Vec<i64>,
    #[prost(bytes = "vec", repeated, tag = "7")]
    pub(crate) strings: Vec<Vec<u8>>,
}

/// Caffe2's numbers of element types.
pub(crate) mod data_type {
    pub(crate) const FLOAT: i64 = 1;
    pub(crate) const INT32: i64 = 2;
    pub(crate) const BYTE: i64 = 3;
    pub(crate) const STRING: i64 = 4;
    pub(crate) const BOOL: i64 = 5;
    pub(crate) const UINT8: i64 = 6;
    pub(crate) const INT8: i64 = 7;
    pub(crate) const UINT16: i64 = 8;
    pub(crate) const INT16: i64 = 9;
    pub(crate) const INT64: i64 = 10;
    pub(crate) const FLOAT16: i64 = 12;
    pub(crate) const DOUBLE: i64 = 13;
}
