//! Errors of calls.

use std::error::Error as _;
use std::time::Duration;

use hyper_util::client::legacy;
use tonic::Status;

use crate::transport::{innermost, unreachable};
use crate::{Code, Error};

/// When another attempt may succeed, in milliseconds; negative for never (gRPC, "Client Retry Design").
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// The error of a call.
pub(super) fn error(status: Status) -> Error {
    let mut cause = status.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<legacy::Error>() {
            return unreachable(error);
        }
        cause = error.source();
    }
    if let Some(source) = status.source() {
        return Error::Lost(innermost(source));
    }
    let pushback = status.metadata().get(PUSHBACK);
    let retry_after = pushback.map(|value| {
        let millis = value.to_str().ok().and_then(|value| value.parse().ok());
        millis.map_or(Duration::MAX, Duration::from_millis)
    });
    Error::Status { code: code(status.code()), message: status.message().to_owned(), retry_after }
}

fn code(code: tonic::Code) -> Code {
    match code {
        tonic::Code::InvalidArgument | tonic::Code::OutOfRange | tonic::Code::FailedPrecondition => {
            Code::InvalidArgument
        }
        tonic::Code::NotFound => Code::NotFound,
        tonic::Code::AlreadyExists => Code::AlreadyExists,
        tonic::Code::Unauthenticated => Code::Unauthenticated,
        tonic::Code::PermissionDenied => Code::PermissionDenied,
        tonic::Code::ResourceExhausted => Code::ResourceExhausted,
        tonic::Code::Unavailable => Code::Unavailable,
        tonic::Code::Unimplemented => Code::Unimplemented,
        tonic::Code::DeadlineExceeded => Code::DeadlineExceeded,
        tonic::Code::Cancelled => Code::Cancelled,
        tonic::Code::Internal | tonic::Code::DataLoss => Code::Internal,
        tonic::Code::Ok | tonic::Code::Unknown | tonic::Code::Aborted => Code::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pushback_is_the_time_of_another_attempt() {
        for (pushback, expected) in [
            (None, None),
            (Some("1500"), Some(Duration::from_millis(1500))),
            (Some("-1"), Some(Duration::MAX)),
            (Some("soon"), Some(Duration::MAX)),
        ] {
            let mut status = Status::unavailable("busy");
            if let Some(pushback) = pushback {
                status.metadata_mut().insert(PUSHBACK, pushback.parse().unwrap());
            }
            let expected =
                Error::Status { code: Code::Unavailable, message: "busy".into(), retry_after: expected };
            assert_eq!(error(status), expected);
        }
    }

    #[test]
    fn causes_that_are_no_answer_are_lost_connections() {
        let broken = Status::from_error(Box::new(std::io::Error::other("reset")));
        assert_eq!(error(broken), Error::Lost("reset".into()));
    }
}
