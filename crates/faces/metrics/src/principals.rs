//! Metrics of principals, under an access policy.

use std::time::Duration;

use crate::text::{Labels, Text};

/// Usage of a principal since the start of the server.
#[derive(Clone, Debug, PartialEq)]
pub struct PrincipalMetrics {
    /// The principal's name.
    pub name: String,
    /// Requests within its limits.
    pub admitted: u64,
    /// Requests beyond them.
    pub refused: u64,
    /// Bytes of admitted requests.
    pub bytes: u64,
    /// The time that its requests were computed.
    pub compute: Duration,
    /// Tokens that its requests generated.
    pub tokens: u64,
}

/// Writes the counters.
pub(crate) fn write(text: &mut Text, principals: &[PrincipalMetrics]) {
    type Value = fn(&PrincipalMetrics) -> f64;
    let families: [(&str, &str, Value); 5] = [
        ("nereid_principal_requests_total", "Inference requests of a principal", |one| one.admitted as f64),
        ("nereid_principal_requests_over_limit_total", "Inference requests that a limit refused", |one| {
            one.refused as f64
        }),
        ("nereid_principal_request_bytes_total", "Bytes of a principal's inference requests", |one| {
            one.bytes as f64
        }),
        (
            "nereid_principal_compute_seconds_total",
            "Seconds that a principal's requests were computed",
            |one| one.compute.as_secs_f64(),
        ),
        ("nereid_principal_generated_tokens_total", "Tokens that a principal's requests generated", |one| {
            one.tokens as f64
        }),
    ];
    for (name, help, value) in families {
        if !principals.is_empty() {
            text.family(name, "counter", help);
        }
        for principal in principals {
            text.sample(name, "", &Labels::default().and("principal", &principal.name), value(principal));
        }
    }
}
