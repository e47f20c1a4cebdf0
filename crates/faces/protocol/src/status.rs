//! The protocols' statuses for each error code, side by side.

use nereid_backend_api::ErrorCode;

/// The HTTP status and the gRPC status number.
const fn statuses(code: ErrorCode) -> (u16, i32) {
    match code {
        ErrorCode::Unknown => (400, 2),
        ErrorCode::Internal => (500, 13),
        ErrorCode::NotFound => (404, 5),
        ErrorCode::InvalidArg => (400, 3),
        ErrorCode::Unavailable => (503, 14),
        ErrorCode::Unsupported => (501, 12),
        ErrorCode::AlreadyExists => (400, 6),
        ErrorCode::Cancelled => (400, 1),
    }
}

/// The HTTP status of an error.
pub const fn http_status(code: ErrorCode) -> u16 {
    statuses(code).0
}

/// The gRPC status number of an error.
pub const fn grpc_status(code: ErrorCode) -> i32 {
    statuses(code).1
}
