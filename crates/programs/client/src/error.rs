//! Errors of requests.

use std::time::Duration;

/// The outcome of a request without a response.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server answered with an error.
    #[error("{message} ({code})")]
    Status {
        /// The kind of error, the same for HTTP and gRPC.
        code: Code,
        /// The server's message.
        message: String,
        /// The time after which another attempt may succeed, if the server names one.
        retry_after: Option<Duration>,
    },
    /// No connection could be made; nothing was sent.
    #[error("cannot connect: {0}")]
    Connect(String),
    /// The connection broke while the request or its response was on the way. The server may have executed the request.
    #[error("connection lost: {0}")]
    Lost(String),
    /// The deadline passed.
    #[error("deadline exceeded after {0:?}")]
    Deadline(Duration),
    /// The request or an option is invalid; nothing was sent.
    #[error("{0}")]
    Invalid(String),
    /// The server's response does not follow the protocol.
    #[error("unexpected response: {0}")]
    Response(String),
}

impl Error {
    pub(crate) fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid(message.into())
    }

    pub(crate) fn response(message: impl Into<String>) -> Self {
        Self::Response(message.into())
    }

    /// The kind of error that the server reported.
    pub fn code(&self) -> Option<Code> {
        match self {
            Self::Status { code, .. } => Some(*code),
            _ => None,
        }
    }

    /// Whether the server has not executed the request and may accept it later.
    pub(crate) fn may_retry(&self) -> bool {
        match self {
            Self::Connect(_) => true,
            Self::Status { code: Code::Unavailable, .. } => true,
            // Without a time, the limit may be one that no later attempt meets, such as the size of a message.
            Self::Status { code: Code::ResourceExhausted, retry_after, .. } => retry_after.is_some(),
            _ => false,
        }
    }
}

/// The kind of an error, by its name in gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Code {
    /// The request does not fit the model.
    InvalidArgument,
    /// The server has no such model, version or region.
    NotFound,
    /// The name is taken.
    AlreadyExists,
    /// The client is unknown: its key is missing or wrong.
    Unauthenticated,
    /// The client is known and has no right to do this.
    PermissionDenied,
    /// A limit of the client or of the server is reached.
    ResourceExhausted,
    /// The server or the model is not ready, or overloaded.
    Unavailable,
    /// The server lacks this extension of the protocol.
    Unimplemented,
    /// The request took longer than its deadline allows.
    DeadlineExceeded,
    /// The request was cancelled.
    Cancelled,
    /// The model or the server failed.
    Internal,
    /// Any other error.
    Unknown,
}

impl std::fmt::Display for Code {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::InvalidArgument => "invalid argument",
            Self::NotFound => "not found",
            Self::AlreadyExists => "already exists",
            Self::Unauthenticated => "unauthenticated",
            Self::PermissionDenied => "permission denied",
            Self::ResourceExhausted => "resource exhausted",
            Self::Unavailable => "unavailable",
            Self::Unimplemented => "unimplemented",
            Self::DeadlineExceeded => "deadline exceeded",
            Self::Cancelled => "cancelled",
            Self::Internal => "internal error",
            Self::Unknown => "unknown error",
        })
    }
}
