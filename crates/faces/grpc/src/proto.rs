//! The wire types and the service, generated from `grpc_service.proto`, and their descriptors.

#[allow(missing_docs, unused_qualifications, clippy::all)]
mod generated {
    tonic::include_proto!("inference");
}

pub(crate) use generated::*;

/// The descriptors of the service and all it is made of: an encoded `FileDescriptorSet`.
pub const FILE_DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/grpc_service.bin"));
