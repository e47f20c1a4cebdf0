//! The header `Accept`: which media types a client names.

use hyper::HeaderMap;
use hyper::header::ACCEPT;

/// Whether `Accept` names a media type, wildcards not counted.
pub fn accepts(headers: &HeaderMap, media_type: &str) -> bool {
    let lists = headers.get_all(ACCEPT).iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).any(|range| {
        let mut parts = range.split(';').map(str::trim);
        let is_named = parts.next().is_some_and(|kind| kind.eq_ignore_ascii_case(media_type));
        is_named && !parts.any(has_no_weight)
    })
}

/// Whether a parameter of a media range is a weight of 0: the client does not accept that type.
fn has_no_weight(parameter: &str) -> bool {
    parameter.split_once('=').is_some_and(|(name, weight)| {
        name.trim().eq_ignore_ascii_case("q") && weight.trim().parse() == Ok(0.0_f32)
    })
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderValue;

    use super::*;

    #[test]
    fn only_types_that_the_client_names_are_accepted() {
        for (accepted, expected) in [
            (&[][..], false),
            (&[""], false),
            (&["*/*"], false),
            (&["application/*"], false),
            (&["*/*;q=0.8, application/*"], false),
            (&["text/html, */*"], false),
            (&["text/html", "*/*"], false),
            (&["text/html, application/jsonl"], false),
            (&["application/problem+json", "text/json", "json", "application"], false),
            (&["application/json;q=0"], false),
            (&["application/json; Q=0.000, */*"], false),
            (&["application/json;charset=utf-8;q=0."], false),
            (&["application/json"], true),
            (&["Application/JSON; q=0.5"], true),
            (&["application/json;q=0.001"], true),
            (&["application/json;charset=utf-8"], true),
            (&["application/json;q=1;version=0"], true),
            (&["*/*, application/json;q=0.9"], true),
            (&["text/html,\tapplication/json ,*/*"], true),
            (&["application/json, text/plain, */*"], true),
            (&["text/html", "*/*", "application/json"], true),
            (&["application/json;q=0", "application/json"], true),
        ] {
            let headers = accepted.iter().map(|list| (ACCEPT, HeaderValue::from_static(list)));
            let headers: HeaderMap = headers.collect();
            assert_eq!(accepts(&headers, "application/json"), expected, "{accepted:?}");
        }
    }

    #[test]
    fn accept_header_that_is_not_ascii_does_not_hide_the_others() {
        let mut headers = HeaderMap::new();
        headers.append(ACCEPT, HeaderValue::from_bytes(b"text/\xff").unwrap());
        assert!(!accepts(&headers, "application/json"));
        headers.append(ACCEPT, HeaderValue::from_static("application/json"));
        assert!(accepts(&headers, "application/json"));
    }
}
