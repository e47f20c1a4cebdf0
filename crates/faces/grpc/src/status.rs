//! The server's errors as gRPC statuses.

use std::borrow::Cow;

use nereid_core::backend_api::Error;
use nereid_protocol::{Denied, grpc_status};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Status};

/// Longest message, in bytes. A message travels in a header, in which each byte may take three, and clients refuse
/// answers with headers of more than 8 or 16 KiB.
const MAX_MESSAGE: usize = 2 << 10;

/// When a client may try again, in milliseconds (gRPC's proposal A6).
const PUSHBACK: &str = "grpc-retry-pushback-ms";

/// The gRPC status of an error: its code from the table shared with HTTP, and its message, truncated in the middle if
/// names sent by the client make it too long. An error that may be over later also says when, to the retry policies of clients.
pub(crate) fn of(error: &Error) -> Status {
    let mut status = Status::new(Code::from_i32(grpc_status(error.code())), shortened(error.message()));
    if let Some(seconds) = error.retry_after() {
        let millis = MetadataValue::from(u64::from(seconds.get()) * 1000);
        status.metadata_mut().insert(PUSHBACK, millis);
    }
    status
}

/// The status of a refused call.
pub(crate) fn denied(denied: &Denied) -> Status {
    match denied {
        // The reference's code.
        Denied::Restricted { header } => Status::unavailable(format!(
            "This protocol is restricted, expecting header '{header}' with the right key"
        )),
        Denied::Unauthenticated(message) => Status::unauthenticated(shortened(message)),
        Denied::Forbidden(message) => Status::permission_denied(shortened(message)),
        Denied::Exhausted(exhausted) => {
            let mut metadata = MetadataMap::new();
            // gRPC's own clients wait that long before they send the call again.
            metadata.insert(PUSHBACK, MetadataValue::from(exhausted.retry_after.as_millis() as u64));
            Status::with_metadata(Code::ResourceExhausted, shortened(&exhausted.message), metadata)
        }
    }
}

fn shortened(message: &str) -> Cow<'_, str> {
    if message.len() <= MAX_MESSAGE {
        return message.into();
    }
    // The middle is left out: what is wrong often comes last.
    let half = MAX_MESSAGE / 2;
    let (begin, end) = (message.floor_char_boundary(half), message.ceil_char_boundary(message.len() - half));
    format!("{} ... {}", &message[..begin], &message[end..]).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_messages_are_truncated_in_the_middle_at_char_boundaries() {
        for (unit, count) in [
            ("x", 10),
            ("x", MAX_MESSAGE),
            ("x", MAX_MESSAGE + 1),
            ("\u{20ac}", 1 << 20),
            ("ab\u{10348}", 9999),
        ] {
            let message = format!("unknown model '{}' in that repository", unit.repeat(count));
            let status = of(&Error::not_found(message.clone()));
            assert_eq!(status.code(), Code::NotFound);
            assert!(status.message().len() <= MAX_MESSAGE + 5, "{}", status.message().len());
            assert!(
                status.message().starts_with("unknown model '")
                    && status.message().ends_with("in that repository")
            );
            assert_eq!(status.message() == message, message.len() <= MAX_MESSAGE);
        }
    }
}
