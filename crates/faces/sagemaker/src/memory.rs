//! Recognises out-of-memory errors: a multi-model endpoint then unloads other models and tries again.

use hyper::StatusCode;
use nereid_core::backend_api::Error;
use nereid_http::{Reply, reply};

/// Frameworks' phrases for exhausted memory. The reference's list.
const WORDS: [&str; 17] = [
    "CUDA out of memory",
    "CUDA_OUT_OF_MEMORY",
    "Out of memory",
    "Out Of Memory",
    "out of memory",
    "MemoryError",
    "OutOfMemory",
    "OOM",
    "Dst tensor is not initialized",
    "Src tensor is not initialized",
    "CNMEM_STATUS_OUT_OF_MEMORY",
    "CUDNN_STATUS_NOT_INITIALIZED",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "CUBLAS_STATUS_NOT_INITIALIZED",
    "Failed to allocate memory",
    "failed to allocate memory",
    "No space left on device",
];

/// The reply to a request of a multi-model endpoint that failed: 507 where memory ran out, as the contract demands, and 400
/// otherwise, as in the reference.
pub(crate) fn reply(error: &Error) -> Reply {
    let status = match WORDS.iter().any(|words| error.message().contains(words)) {
        true => StatusCode::INSUFFICIENT_STORAGE,
        false => StatusCode::BAD_REQUEST,
    };
    reply::error_text(status, error.message())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_out_of_memory_errors_are_507() {
        for (message, status) in [
            ("CUDA out of memory. Tried to allocate 2 GiB", 507),
            ("load failed: Internal: MemoryError: x", 507),
            ("ran OOM", 507),
            ("write: No space left on device", 507),
            ("the input is too large for the memory", 400),
            ("", 400),
        ] {
            for error in [Error::internal(message), Error::not_found(message)] {
                assert_eq!(reply(&error).status(), status, "{message}");
            }
        }
    }
}
