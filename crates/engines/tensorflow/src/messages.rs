//! The parts that we read or write of TensorFlow's files and options.
//!
//! Field numbers are from TensorFlow's `saved_model.proto`, `meta_graph.proto`, `tensor_shape.proto` and `config.proto`.

use std::collections::BTreeMap;

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SavedModel {
    #[prost(message, repeated, tag = "2")]
    pub(crate) meta_graphs: Vec<MetaGraphDef>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MetaGraphDef {
    #[prost(message, optional, tag = "1")]
    pub(crate) meta_info: Option<MetaInfoDef>,
    #[prost(btree_map = "string, message", tag = "5")]
    pub(crate) signatures: BTreeMap<String, SignatureDef>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct MetaInfoDef {
    #[prost(string, repeated, tag = "4")]
    pub(crate) tags: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SignatureDef {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) inputs: BTreeMap<String, TensorInfo>,
    #[prost(btree_map = "string, message", tag = "2")]
    pub(crate) outputs: BTreeMap<String, TensorInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorInfo {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(int32, tag = "2")]
    pub(crate) dtype: i32,
    #[prost(message, optional, tag = "3")]
    pub(crate) shape: Option<TensorShape>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorShape {
    #[prost(message, repeated, tag = "2")]
    pub(crate) dim: Vec<Dim>,
    #[prost(bool, tag = "3")]
    pub(crate) unknown_rank: bool,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Dim {
    #[prost(int64, tag = "1")]
    pub(crate) size: i64,
}

/// The options of a session.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct ConfigProto {
    #[prost(int32, tag = "2")]
    pub(crate) intra_op_threads: i32,
    #[prost(int32, tag = "5")]
    pub(crate) inter_op_threads: i32,
    #[prost(bool, tag = "7")]
    pub(crate) allow_soft_placement: bool,
    #[prost(bool, tag = "9")]
    pub(crate) use_per_session_threads: bool,
}
