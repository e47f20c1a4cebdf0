//! What a client tells of the trace that its request is part of (W3C Trace Context).

/// The headers, in any protocol.
const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";

/// The trace, and the part of it, that a request belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace's id, not all zeroes.
    pub trace_id: [u8; 16],
    /// The id of the part that the request was made in, not all zeroes.
    pub span_id: [u8; 8],
    /// The flags. The lowest says that the client records its part.
    pub flags: u8,
    /// What others said about the trace, to be handed on as it is; empty if nothing was said.
    pub state: String,
}

impl TraceParent {
    /// Reads it from the headers. `None` if they tell of none, or of none that makes sense.
    pub fn read<'h>(header: impl Fn(&str) -> Option<&'h str>) -> Option<Self> {
        let text = header(PARENT)?.trim();
        let mut parts = text.split('-');
        let version = hex::<1>(parts.next()?)?;
        let (trace_id, span_id) = (hex::<16>(parts.next()?)?, hex::<8>(parts.next()?)?);
        let [flags] = hex::<1>(parts.next()?)?;
        // Later versions may say more, this one does not; the last version is none.
        let complete = version != [0] || parts.next().is_none();
        let valid = complete && version != [0xff] && trace_id != [0; 16] && span_id != [0; 8];
        let state = || header(STATE).unwrap_or_default().trim().to_owned();
        valid.then(|| Self { trace_id, span_id, flags, state: state() })
    }
}

/// So many bytes, written in small hexadecimal digits.
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
        TraceParent::read(|name| match name {
            "traceparent" => Some(parent),
            "tracestate" => state,
            _ => None,
        })
    }

    const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
    const SPAN: &str = "b7ad6b7169203331";

    #[test]
    fn a_parent_is_read_with_its_state() {
        let parent = read(&format!("00-{TRACE}-{SPAN}-01"), Some(" a=1,b=2 ")).unwrap();
        assert_eq!((parent.trace_id[0], parent.trace_id[15]), (0x0a, 0x9c));
        assert_eq!(parent.span_id, [0xb7, 0xad, 0x6b, 0x71, 0x69, 0x20, 0x33, 0x31]);
        assert_eq!((parent.flags, parent.state.as_str()), (1, "a=1,b=2"));
        assert!(read(&format!("cc-{TRACE}-{SPAN}-00-later"), None).is_some());
        assert_eq!(TraceParent::read(|_| None), None);
    }

    #[test]
    fn what_makes_no_sense_is_no_parent() {
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
