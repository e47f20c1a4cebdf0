//! Traces as spans, sent to an OpenTelemetry collector: OTLP over HTTP, in protobuf.

mod backoff;
mod batches;
mod client;
mod messages;
mod spans;

use std::sync::Arc;
use std::time::Duration;

use nereid_backend_api::TraceSink;
use nereid_trace_settings::{TraceParent, TraceSettings, TraceStore, TraceStream};

use self::backoff::RetryRules;
use self::batches::{Batches, Rules};
use self::client::Client;
use self::messages::KeyValue;
use self::spans::SpanRecord;

/// The collector's address, and options of the exported spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectorOptions {
    /// The collector's URL, including the path for traces.
    pub url: String,
    /// Attributes that describe this server, by name. The last value of a repeated name wins.
    pub resource: Vec<(String, String)>,
    /// The most spans that wait to be sent; at least 1.
    pub max_queue_size: usize,
    /// The most spans sent at once; at least 1.
    pub max_export_batch_size: usize,
    /// A smaller batch is sent when its first span has waited this long.
    pub schedule_delay: Duration,
}

impl Default for CollectorOptions {
    fn default() -> Self {
        Self {
            url: "http://localhost:4318/v1/traces".to_owned(),
            resource: vec![("service.name".to_owned(), "triton-inference-server".to_owned())],
            max_queue_size: 2048,
            max_export_batch_size: 512,
            schedule_delay: Duration::from_secs(5),
        }
    }
}

/// Sends spans to a collector.
#[derive(Debug)]
pub struct Collector(Arc<Batches>);

impl Collector {
    /// Sends to the configured collector. Does not connect yet.
    ///
    /// # Errors
    /// The URL is invalid.
    pub fn new(options: &CollectorOptions) -> Result<Self, String> {
        Self::with_retries(options, RetryRules::default())
    }

    fn with_retries(options: &CollectorOptions, retry: RetryRules) -> Result<Self, String> {
        let client = Client::new(&options.url)?;
        let mut resource = vec![
            ("telemetry.sdk.language", "rust"),
            ("telemetry.sdk.name", "nereid"),
            ("telemetry.sdk.version", env!("CARGO_PKG_VERSION")),
        ];
        for (name, value) in &options.resource {
            resource.retain(|(known, _)| known != name);
            resource.push((name, value));
        }
        let resource = resource.into_iter().map(|(name, value)| KeyValue::text(name, value)).collect();
        let rules = Rules {
            most_waiting: options.max_queue_size.max(1),
            // More than may wait never come together.
            batch: options.max_export_batch_size.clamp(1, options.max_queue_size.max(1)),
            delay: options.schedule_delay,
            retry,
        };
        Ok(Self(Arc::new(Batches::new(rules, client, resource))))
    }
}

impl TraceStore for Collector {
    fn open(&self, settings: &TraceSettings) -> Arc<dyn TraceStream> {
        if settings.level.tensors {
            tracing::warn!(
                "trace level TENSORS means nothing in mode opentelemetry: spans have no place for tensors"
            );
        }
        Arc::new(Stream(Arc::clone(&self.0)))
    }

    fn close(&self) {
        self.0.close();
    }
}

struct Stream(Arc<Batches>);

impl TraceStream for Stream {
    fn begin(&self, parent: Option<TraceParent>, _: bool) -> Arc<dyn TraceSink> {
        Arc::new(SpanRecord::begin(parent, Arc::clone(&self.0)))
    }
}

#[cfg(test)]
mod tests;
