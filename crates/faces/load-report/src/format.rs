//! A report in the three formats available to clients.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::HeaderValue;
use prost::Message;
use serde_json::{Map, Value, json};

use crate::measure::Load;

/// A report as the value of a header, in each format.
#[derive(Default)]
pub(crate) struct Formats {
    pub text: Option<HeaderValue>,
    pub json: Option<HeaderValue>,
    pub binary: Option<HeaderValue>,
}

/// `xds.data.orca.v3.OrcaLoadReport`, without the fields that are not reported.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct OrcaLoadReport {
    #[prost(double, tag = "1")]
    pub cpu_utilization: f64,
    #[prost(double, tag = "6")]
    pub rps_fractional: f64,
    #[prost(double, tag = "7")]
    pub eps: f64,
    #[prost(map = "string, double", tag = "8")]
    pub named_metrics: HashMap<String, f64>,
    #[prost(double, tag = "9")]
    pub application_utilization: f64,
}

impl Formats {
    /// The formats of a report.
    pub(crate) fn of(load: &Load) -> Self {
        let fields = [
            ("application_utilization", load.application_utilization),
            ("cpu_utilization", load.cpu_utilization),
            ("rps_fractional", load.requests_per_second),
            ("eps", load.errors_per_second),
        ];
        Self {
            text: HeaderValue::try_from(text(&fields, &load.named)).ok(),
            json: HeaderValue::try_from(json(&fields, &load.named)).ok(),
            binary: HeaderValue::try_from(binary(load)).ok(),
        }
    }
}

fn text(fields: &[(&str, f64)], named: &BTreeMap<String, f64>) -> String {
    let mut text = "TEXT ".to_owned();
    for (index, (name, value)) in fields.iter().enumerate() {
        let comma = if index > 0 { ", " } else { "" };
        // Writing to a string does not fail.
        let _ = write!(text, "{comma}{name}={value:.6}");
    }
    // Other names would be misparsed, or are invalid in a header.
    let is_plain = |name: &str| name.bytes().all(|byte| byte.is_ascii_graphic() && !b"=,:".contains(&byte));
    for (name, value) in named.iter().filter(|(name, _)| is_plain(name)) {
        let _ = write!(text, ", named_metrics.{name}={value:.6}");
    }
    text
}

fn json(fields: &[(&str, f64)], named: &BTreeMap<String, f64>) -> String {
    let mut object: Map<_, _> =
        fields.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
    if !named.is_empty() {
        object.insert("named_metrics".to_owned(), json!(named));
    }
    format!("JSON {}", Value::Object(object))
}

/// Padded, because Envoy requires it; gRPC implementations must accept both.
fn binary(load: &Load) -> String {
    let report = OrcaLoadReport {
        cpu_utilization: load.cpu_utilization,
        rps_fractional: load.requests_per_second,
        eps: load.errors_per_second,
        named_metrics: load.named.clone().into_iter().collect(),
        application_utilization: load.application_utilization,
    };
    STANDARD.encode(report.encode_to_vec())
}
