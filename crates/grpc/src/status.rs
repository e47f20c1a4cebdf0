//! The server's errors as gRPC statuses.

use nereid_core::backend_api::Error;
use tonic::{Code, Status};

/// The status that an error is answered with: its code by the table beside HTTP's, its message as it is.
pub(crate) fn of(error: &Error) -> Status {
    Status::new(Code::from_i32(error.code().grpc_status()), error.message())
}
