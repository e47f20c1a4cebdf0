//! A call's deadline, as its client sets it.

use std::time::Duration;

use http::{HeaderMap, HeaderName};
use tonic::Status;

/// Header with the call's timeout.
static TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");

/// The call's timeout; `None` without one or if the header is malformed, in which case only the client enforces its
/// deadline.
pub(crate) fn of(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get(&TIMEOUT)?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    // As the protocol has it: up to eight digits.
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|digit| digit.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

/// The end of a call that took longer, in the words of gRPC libraries, which clients compare.
pub(crate) fn exceeded() -> Status {
    Status::deadline_exceeded("Deadline Exceeded")
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn timeouts_parse_known_units_only() {
        let read = |text: &'static str| {
            of(&HeaderMap::from_iter([(TIMEOUT.clone(), HeaderValue::from_static(text))]))
        };
        assert_eq!(read("2H"), Some(Duration::from_secs(7200)));
        assert_eq!(read("2M"), Some(Duration::from_secs(120)));
        assert_eq!(read("2S"), Some(Duration::from_secs(2)));
        assert_eq!(read("100m"), Some(Duration::from_millis(100)));
        assert_eq!(read("99999999u"), Some(Duration::from_micros(99_999_999)));
        assert_eq!(read("0n"), Some(Duration::ZERO));
        for wrong in ["", "S", "1", "1s", "-1S", "+1S", "1.5S", "123456789S", "1 S"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        assert_eq!(of(&HeaderMap::new()), None);
    }
}
