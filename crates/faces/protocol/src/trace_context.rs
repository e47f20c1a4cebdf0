//! The trace context of a client's request, from its headers (W3C Trace Context).

use nereid_trace_settings::TraceParent;

/// The headers, in any protocol.
const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

/// Parses a request's trace parent from its headers. `None` if the header is missing or malformed.
pub fn trace_parent<'h>(header: impl Fn(&str) -> Option<&'h str>) -> Option<TraceParent> {
    let text = header(PARENT)?.trim();
    let mut parts = text.split('-');
    let version = hex::<1>(parts.next()?)?;
    let (trace_id, span_id) = (hex::<16>(parts.next()?)?, hex::<8>(parts.next()?)?);
    let [flags] = hex::<1>(parts.next()?)?;
    // Later versions may append fields, version 0 has none; version 255 is invalid.
    let complete = version != [0] || parts.next().is_none();
    let valid = complete && version != [0xff] && trace_id != [0; 16] && span_id != [0; 8];
    let state = || header(STATE).unwrap_or_default().trim().to_owned();
    valid.then(|| TraceParent { trace_id, span_id, flags, state: state() })
}

/// `COUNT` bytes in lowercase hexadecimal digits.
fn hex<const COUNT: usize>(text: &str) -> Option<[u8; COUNT]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut bytes = [0; COUNT];
    let (pairs, []) = text.as_bytes().as_chunks::<2>() else { return None };
    if pairs.len() != COUNT {
        return None;
    }
    for (byte, [high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(*high)? << 4 | digit(*low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(parent: &str, state: Option<&str>) -> Option<TraceParent> {
        trace_parent(|name| match name {
            "traceparent" => Some(parent),
            "tracestate" => state,
            _ => None,
        })
    }

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn trace_parent_parses_with_its_state() {
        let parent = read(&format!("00-{TRACE}-{SPAN}-01"), Some(" a=1,b=2 ")).unwrap();
        assert_eq!((parent.trace_id[0], parent.trace_id[15]), (0x0a, 0x9c));
        assert_eq!(parent.span_id, [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
        assert_eq!((parent.flags, parent.state.as_str()), (1, "a=1,b=2"));
        assert!(read(&format!("cc-{TRACE}-{SPAN}-00-later"), None).is_some());
        assert_eq!(trace_parent(|_| None), None);
    }

    #[test]
    fn malformed_parents_are_ignored() {
        for text in [
            "",
            "00",
            &format!("00-{TRACE}-{SPAN}"),
            &format!("00-{TRACE}-{SPAN}-1"),
            &format!("00-{TRACE}-{SPAN}-01-more"),
            &format!("ff-{TRACE}-{SPAN}-01"),
            &format!("00-{}-{SPAN}-01", TRACE.to_uppercase()),
            &format!("00-{}-{SPAN}-01", "0".repeat(32)),
            &format!("00-{TRACE}-{}-01", "0".repeat(16)),
            &format!("00-{TRACE}é-{SPAN}-01"),
            &format!("00-{}-{SPAN}-01", &TRACE[1..]),
        ] {
            assert_eq!(read(text, None), None, "{text}");
        }
    }
}
