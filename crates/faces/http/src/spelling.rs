//! Header names as the client spelled them.

use hyper::HeaderMap;
use hyper::header::HeaderName;

/// The headers' names and values. `head` is the request's head as received; names missing from it are lowercase.
pub(crate) fn spelled<'h>(
    headers: &'h HeaderMap,
    head: &'h [u8],
) -> impl Iterator<Item = (&'h str, &'h [u8])> {
    headers.iter().map(|(name, value)| (spelling(head, name).unwrap_or(name.as_str()), value.as_bytes()))
}

/// The name as the client wrote it.
fn spelling<'h>(head: &'h [u8], name: &HeaderName) -> Option<&'h str> {
    let length = name.as_str().len();
    let spelled = head.split(|byte| *byte == b'\n').find_map(|line| {
        let (spelled, rest) = line.split_at_checked(length)?;
        let is_name = rest.first() == Some(&b':') && spelled.eq_ignore_ascii_case(name.as_str().as_bytes());
        is_name.then_some(spelled)
    })?;
    std::str::from_utf8(spelled).ok()
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn names_are_spelled_as_in_the_head_and_in_lowercase_without_one() {
        let headers = HeaderMap::from_iter([
            (HeaderName::from_static("x-one"), HeaderValue::from_static("1")),
            (HeaderName::from_static("trace-id"), HeaderValue::from_static("2")),
        ]);
        let names =
            |head: &'static str| spelled(&headers, head.as_bytes()).map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(
            names("POST / HTTP/1.1\r\nTRACE-ID: 2\r\nX-One: 1\r\n\r\nx-one: body"),
            ["X-One", "TRACE-ID"]
        );
        assert_eq!(names(""), ["x-one", "trace-id"]);
    }
}
