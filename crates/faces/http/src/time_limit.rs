//! How long the client of a request waits, as it or a proxy before the server announces it.

use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::HeaderValue;

/// Seconds, or a number with its unit.
const TIMEOUT: &str = "x-request-timeout";

/// Milliseconds. Envoy sets it to its own timeout.
const ENVOY_TIMEOUT: &str = "x-envoy-expected-rq-timeout-ms";

/// The shortest time that the headers announce. Values that are not times of any length are ignored, like unknown headers.
pub fn time_limit(headers: &HeaderMap) -> Option<Duration> {
    // Most requests have a few headers and neither of these: one look at all of them is quicker than two at the map.
    let times = headers.iter().filter_map(|(name, value)| match name.as_str() {
        TIMEOUT => duration(value, "s"),
        ENVOY_TIMEOUT => duration(value, "ms"),
        _ => None,
    });
    times.min()
}

/// A positive decimal number with a unit, or without one in the `default` unit.
fn duration(value: &HeaderValue, default: &str) -> Option<Duration> {
    let text = value.to_str().ok()?.trim();
    let end =
        text.find(|character: char| !character.is_ascii_digit() && character != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let seconds = match if unit.is_empty() { default } else { unit } {
        "s" => 1.0,
        "ms" => 1e-3,
        "us" => 1e-6,
        _ => return None,
    };
    let limit = Duration::try_from_secs_f64(number.parse::<f64>().ok()? * seconds).ok()?;
    (!limit.is_zero()).then_some(limit)
}

#[cfg(test)]
mod tests {
    use hyper::header::HeaderName;

    use super::*;

    fn limit(headers: &[(&'static str, &str)]) -> Option<Duration> {
        let headers = headers
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()));
        time_limit(&headers.collect())
    }

    #[test]
    fn times_have_units_or_are_seconds_and_milliseconds_of_envoy() {
        let (own, envoy) = ("x-request-timeout", "x-envoy-expected-rq-timeout-ms");
        for (header, value, expected) in [
            (own, "30", Some(30_000_000)),
            (own, "0.25", Some(250_000)),
            (own, "1.5s", Some(1_500_000)),
            (own, "250ms", Some(250_000)),
            (own, "40us", Some(40)),
            (own, " 2 ", Some(2_000_000)),
            (envoy, "1500", Some(1_500_000)),
            (envoy, "2s", Some(2_000_000)),
            (own, "99999999999999999999999", None),
            (own, "0", None),
            (own, "-1", None),
            (own, "", None),
            (own, "s", None),
            (own, ".", None),
            (own, "1.2.3", None),
            (own, "1 s", None),
            (own, "5m", None),
            (own, "5S", None),
            (own, "1e3", None),
            (own, "inf", None),
            (own, "soon", None),
        ] {
            assert_eq!(limit(&[(header, value)]), expected.map(Duration::from_micros), "{header}: {value}");
        }
        assert_eq!(limit(&[]), None);
        for (first, second, shortest) in [("2", "1500", 1_500), ("1", "1500", 1_000), ("soon", "3", 3)] {
            let expected = Some(Duration::from_millis(shortest));
            assert_eq!(limit(&[(own, first), (envoy, second)]), expected, "{first} {second}");
        }
    }
}
