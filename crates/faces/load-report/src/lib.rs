//! Load reports: servers attach their load to answers, for load balancers (ORCA, open request cost aggregation).
//!
//! A client requests reports with the header `endpoint-load-metrics-format: text`, `json` or `bin`, or the server
//! always reports. The load is measured when a report is needed, at most once per interval; in between, a report costs
//! as much as copying a header. This crate depends on HTTP headers, and on no protocol.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod format;
mod measure;

use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::{ArcSwap, Guard};
use http::{HeaderMap, HeaderName, HeaderValue};
use nereid_core::Server;

use crate::format::Formats;
use crate::measure::Meter;

/// Request header that requests a report and selects its format.
pub const FORMAT: HeaderName = HeaderName::from_static("endpoint-load-metrics-format");

/// The header of a report as text or JSON.
pub const REPORT: HeaderName = HeaderName::from_static("endpoint-load-metrics");

/// The header or trailer of a binary report, in base64.
pub const BINARY_REPORT: HeaderName = HeaderName::from_static("endpoint-load-metrics-bin");

/// How long a measurement is used. Balancers adapt about once a second.
const INTERVAL: Duration = Duration::from_millis(500);

/// When the load is reported.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reporting {
    /// With answers to requests that have the header.
    #[default]
    OnRequest,
    /// With every answer to an inference request. Without a rate, only if the request has the header: balancers weigh servers
    /// by it.
    Always,
}

/// The load of a server, for the headers of its answers. Cheap to clone.
#[derive(Clone)]
pub struct LoadReports(Arc<Shared>);

struct Shared {
    reporting: Reporting,
    /// Whether reports contain the busiest models by name.
    names_models: bool,
    server: Arc<Server>,
    meter: Meter,
    current: ArcSwap<Report>,
}

/// A report, ready to send.
struct Report {
    /// When the next measurement is due.
    until: Instant,
    /// Whether requests have ended since the measurement before.
    has_rate: bool,
    formats: Formats,
}

/// The report of a gRPC call, which its answer has as a trailer.
#[derive(Clone, Debug)]
pub struct TrailerReport {
    reports: LoadReports,
    is_requested: bool,
}

impl std::fmt::Debug for LoadReports {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LoadReports").field("reporting", &self.0.reporting).finish_non_exhaustive()
    }
}

impl LoadReports {
    /// Reports the load of `server`, with its busiest models if `names_models`: clients need not have rights on these.
    pub fn new(reporting: Reporting, names_models: bool, server: Arc<Server>) -> Self {
        let now = Instant::now();
        let current =
            ArcSwap::from_pointee(Report { until: now, has_rate: false, formats: Formats::default() });
        Self(Arc::new(Shared { reporting, names_models, server, meter: Meter::new(now), current }))
    }

    /// The header for an HTTP answer, if the request has the header or the server always reports. Unknown formats
    /// get none.
    pub fn header(&self, request: &HeaderMap) -> Option<(HeaderName, HeaderValue)> {
        self.header_at(request, Instant::now)
    }

    fn header_at(&self, request: &HeaderMap, now: impl Fn() -> Instant) -> Option<(HeaderName, HeaderValue)> {
        let requested = request.get(FORMAT);
        let format = match requested {
            Some(format) => format.as_bytes(),
            None if self.0.reporting == Reporting::Always => b"text".as_slice(),
            None => return None,
        };
        let report = || self.report(now());
        if requested.is_none() && !report().has_rate {
            return None;
        }
        // Some clients write the formats in capitals, like the reports do.
        let (name, value) = match () {
            () if format.eq_ignore_ascii_case(b"text") => (REPORT, report().formats.text.clone()),
            () if format.eq_ignore_ascii_case(b"json") => (REPORT, report().formats.json.clone()),
            () if format.eq_ignore_ascii_case(b"bin") => (BINARY_REPORT, report().formats.binary.clone()),
            () => return None,
        };
        Some((name, value?))
    }

    /// The report of a gRPC call, if it has the header or the server always reports. Any value of the header requests one.
    pub fn for_call(&self, call: &HeaderMap) -> Option<TrailerReport> {
        let is_requested = call.contains_key(FORMAT);
        let has_report = is_requested || self.0.reporting == Reporting::Always;
        has_report.then(|| TrailerReport { reports: self.clone(), is_requested })
    }

    /// The current report, with a new measurement if one is due.
    fn report(&self, now: Instant) -> Guard<Arc<Report>> {
        if self.0.current.load().until <= now
            && let Some(load) = self.0.meter.measure(&self.0.server, self.0.names_models, now)
        {
            let has_rate = load.requests_per_second > 0.0;
            let report = Report { until: now + INTERVAL, has_rate, formats: Formats::of(&load) };
            self.0.current.store(Arc::new(report));
        }
        self.0.current.load()
    }
}

impl TrailerReport {
    /// The trailer, once the answer is complete.
    pub fn trailer(&self) -> Option<(HeaderName, HeaderValue)> {
        let report = self.reports.report(Instant::now());
        let value = report.formats.binary.clone().filter(|_| self.is_requested || report.has_rate)?;
        Some((BINARY_REPORT, value))
    }
}

#[cfg(test)]
mod tests;
