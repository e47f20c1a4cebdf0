//! The server's errors as gRPC statuses.

use nereid_core::backend_api::Error;
use nereid_protocol::grpc_status;
use tonic::{Code, Status};

/// The status that an error is answered with: its code by the table beside HTTP's, its message unchanged.
pub(crate) fn of(error: &Error) -> Status {
    Status::new(Code::from_i32(grpc_status(error.code())), error.message())
}
