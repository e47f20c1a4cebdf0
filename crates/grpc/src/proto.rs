//! The wire types and the service, generated from `grpc_service.proto`, and their descriptors.

#[allow(missing_docs, unused_qualifications, clippy::all)]
mod generated {
    tonic::include_proto!("inference");
}

pub(crate) use generated::*;
