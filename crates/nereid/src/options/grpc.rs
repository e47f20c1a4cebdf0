//! The options of gRPC: where it is served.

use std::sync::Arc;

use clap::{ArgAction, Args};
use nereid_grpc::GrpcOptions as FaceOptions;
use nereid_shared_memory::Regions;

use super::boolean;

/// The options of gRPC.
#[derive(Debug, Args)]
pub(crate) struct GrpcOptions {
    /// Serve gRPC.
    #[arg(long, value_name = "BOOL", default_value = "true", value_parser = boolean(), action = ArgAction::Set)]
    pub allow_grpc: bool,

    /// Address or host name to serve gRPC on.
    #[arg(long, value_name = "ADDRESS", default_value = "0.0.0.0")]
    pub grpc_address: String,

    /// Port to serve gRPC on; 0 for any free one.
    #[arg(long, value_name = "PORT", default_value_t = 8001)]
    pub grpc_port: u16,
}

impl GrpcOptions {
    /// What the gRPC face is told.
    pub(crate) fn face(&self, regions: Arc<Regions>) -> FaceOptions {
        FaceOptions { regions, ..FaceOptions::default() }
    }
}
