//! The thread that sends spans to the collector in batches. Requests never wait for it.
//!
//! A batch that the collector cannot take now is sent again after growing pauses, while further spans wait. Spans beyond the
//! queue's limit and abandoned batches are lost, and counted.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Builder;
use std::time::{Duration, Instant};

use bytes::Bytes;
use prost::Message;
use tokio::runtime::Runtime;

use super::backoff::{Backoff, RetryRules};
use super::client::Client;
use super::messages::{
    ExportTraceServiceRequest, InstrumentationScope, KeyValue, Resource, ResourceSpans, ScopeSpans, Span,
};

/// How long shutdown waits for pending spans.
const PATIENCE: Duration = Duration::from_secs(10);

/// How spans are batched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// The most spans that wait. Further ones are dropped.
    pub most_waiting: usize,
    /// The most sent at once.
    pub batch: usize,
    /// A smaller batch is sent when its first span has waited this long.
    pub delay: Duration,
    /// When a batch is sent again.
    pub retry: RetryRules,
}

/// The queue and the thread that sends it.
#[derive(Debug)]
pub(super) struct Batches(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    rules: Rules,
    client: Client,
    /// The attributes of the spans' source.
    resource: Vec<KeyValue>,
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    spans: VecDeque<Span>,
    /// When the first of them was queued.
    since: Option<Instant>,
    /// The number dropped because too many waited.
    lost: u64,
    started: bool,
    closed: bool,
    /// Whether the thread has ended.
    done: bool,
}

impl Batches {
    pub(super) fn new(rules: Rules, client: Client, resource: Vec<KeyValue>) -> Self {
        let (queue, changed) = (Mutex::default(), Condvar::new());
        Self(Arc::new(Shared { rules, client, resource, queue, changed }))
    }

    /// Takes a span, unless too many wait already.
    pub(super) fn push(&self, span: Span) {
        let mut queue = self.0.lock();
        if queue.closed {
            return;
        }
        if queue.spans.len() >= self.0.rules.most_waiting {
            queue.lost += 1;
            return;
        }
        if !queue.started {
            let shared = Arc::clone(&self.0);
            if let Err(error) = Builder::new().name("trace-exporter".into()).spawn(move || shared.run()) {
                tracing::error!("a span is lost: the thread that sends it cannot be started: {error}");
                return;
            }
            queue.started = true;
        }
        queue.since.get_or_insert_with(Instant::now);
        queue.spans.push_back(span);
        // The thread waits for the first span, and then for a full batch.
        let woken = queue.spans.len() == 1 || queue.spans.len() == self.0.rules.batch;
        drop(queue);
        if woken {
            self.0.changed.notify_all();
        }
    }

    /// The spans that wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> Vec<Span> {
        self.0.lock().spans.iter().cloned().collect()
    }

    /// Sends all queued spans and accepts no more.
    pub(super) fn close(&self) {
        let mut queue = self.0.lock();
        queue.closed = true;
        self.0.changed.notify_all();
        let unsent = |queue: &mut Queue| queue.started && !queue.done;
        let waited = self.0.changed.wait_timeout_while(queue, PATIENCE, unsent);
        queue = waited.unwrap_or_else(PoisonError::into_inner).0;
        if unsent(&mut queue) {
            tracing::error!("spans are lost: they were not sent within {} seconds", PATIENCE.as_secs());
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        match tokio::runtime::Builder::new_current_thread().enable_all().build() {
            Ok(runtime) => self.send_all(&runtime),
            Err(error) => tracing::error!("no span is sent: {error}"),
        }
        let mut queue = self.lock();
        (queue.closed, queue.done) = (true, true);
        queue.spans.clear();
        self.changed.notify_all();
    }

    /// Sends batches until the queue is closed and empty.
    fn send_all(&self, runtime: &Runtime) {
        // The spans lost since the collector failed, if it does.
        let mut outage = None;
        while let Some((spans, lost)) = self.next() {
            if lost > 0 {
                tracing::warn!(
                    "{lost} spans are lost: they came faster than they could be sent; \
                     --trace-config=opentelemetry,bsp_max_queue_size= lets more of them wait"
                );
            }
            let count = spans.len() as u64;
            match self.send(runtime, self.encode(spans).into(), &mut outage) {
                Ok(()) => {
                    if let Some(lost) = outage.take() {
                        let url = self.client.url();
                        tracing::info!("spans reach the collector at {url} again; {lost} were lost");
                    }
                }
                Err(why) => {
                    tracing::debug!("{count} spans are lost: {why}");
                    outage = Some(outage.unwrap_or_default() + count);
                }
            }
        }
        if let Some(lost) = outage {
            tracing::warn!("{lost} spans are lost: the collector at {} did not take them", self.client.url());
        }
    }

    /// Sends a batch, again while the collector is unavailable; only once when the queue is closed. Reports the begin of an
    /// `outage`.
    ///
    /// # Errors
    /// The reason why the batch is lost.
    fn send(&self, runtime: &Runtime, message: Bytes, outage: &mut Option<u64>) -> Result<(), String> {
        let mut backoff = Backoff::new(self.rules.retry);
        loop {
            let Err(error) = runtime.block_on(self.client.post(message.clone())) else { return Ok(()) };
            if outage.is_none() {
                *outage = Some(0);
                tracing::error!(
                    "{}; until it does, spans wait, and are lost if they wait for too long; \
                     --trace-config=opentelemetry,url= takes the collector's address for traces over HTTP",
                    error.why
                );
            }
            let pause = backoff.pause(error.retry_after, fastrand::f64()).filter(|_| error.is_temporary);
            let Some(pause) = pause else { return Err(error.why) };
            let is_open = |queue: &mut Queue| !queue.closed;
            let waited = self.changed.wait_timeout_while(self.lock(), pause, is_open);
            if waited.unwrap_or_else(PoisonError::into_inner).0.closed {
                return Err(error.why);
            }
        }
    }

    /// The spans to be sent next, and how many were lost. Waits for them; `None` at the end.
    fn next(&self) -> Option<(Vec<Span>, u64)> {
        let mut queue = self.lock();
        loop {
            let now = Instant::now();
            let due = queue.since.map(|since| since + self.rules.delay);
            let enough = queue.spans.len() >= self.rules.batch || queue.closed;
            if enough || due.is_some_and(|due| due <= now) {
                break;
            }
            queue = match due {
                None => self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let waited = self.changed.wait_timeout(queue, due - now);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        let count = queue.spans.len().min(self.rules.batch);
        if count == 0 {
            return None;
        }
        let spans = queue.spans.drain(..count).collect();
        queue.since = (!queue.spans.is_empty()).then(Instant::now);
        Some((spans, std::mem::take(&mut queue.lost)))
    }

    fn encode(&self, spans: Vec<Span>) -> Vec<u8> {
        let scope = InstrumentationScope {
            // The reference's name for it.
            name: "triton-server".to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        let resource_spans = ResourceSpans {
            resource: Some(Resource { attributes: self.resource.clone() }),
            scope_spans: vec![ScopeSpans { scope: Some(scope), spans }],
        };
        ExportTraceServiceRequest { resource_spans: vec![resource_spans] }.encode_to_vec()
    }
}
