//! Stamps on the traces of requests.

use std::time::{Duration, Instant};

use nereid_core::backend_api::{Activity, TensorActivity, Trace, TraceSink};
use tokio::sync::mpsc::{Sender, channel};

/// More reports than any trace here has.
const MANY: usize = 100;

use super::*;

/// Sends the names of reports until the trace is dropped.
struct Reports(Sender<String>);

impl TraceSink for Reports {
    fn activity(&self, _: &Arc<Trace>, activity: Activity<'_>, _: Instant) {
        self.0.try_send(activity.name().to_owned()).unwrap();
    }
    fn tensor(&self, _: &Arc<Trace>, _: TensorActivity, _: &Tensor) {}
    fn stamp(&self, _: &Trace, name: &'static str, _: Instant) {
        self.0.try_send(name.to_owned()).unwrap();
    }
    fn derived(self: Arc<Self>) -> Arc<dyn TraceSink> {
        self
    }
}

/// What the faces report of a request to the model `m`.
async fn stamps(site: &Site, path: &str, body: &Value) -> Vec<String> {
    let (sender, mut reports) = channel(MANY);
    let until = Instant::now() + Duration::from_secs(600);
    site.server.trace().capture_next("m", Arc::new(Reports(sender)), until);
    assert_eq!(site.post(path, body).await.status, 200);
    let mut stamps = Vec::new();
    while let Some(name) = reports.recv().await {
        if name.starts_with("HTTP_") || name.starts_with("INFER_") {
            stamps.push(name);
        }
    }
    stamps
}

#[tokio::test]
async fn arrival_and_answers_are_stamped() {
    let site = site(VLLM, words(&["a", "b"])).await;
    let (arrival, answer) = (["HTTP_RECV_START", "HTTP_RECV_END"], "INFER_RESPONSE_COMPLETE");
    let whole = [&arrival[..], &[answer, answer, "HTTP_SEND_START", "HTTP_SEND_END"]].concat();
    let message = json!([{"role": "user", "content": "x"}]);
    for (path, body) in [
        ("/v1/completions", json!({"model": "m", "prompt": "x"})),
        ("/v1/chat/completions", json!({"model": "m", "messages": message})),
        ("/v1/responses", json!({"model": "m", "input": "x"})),
    ] {
        assert_eq!(stamps(&site, path, &body).await, whole, "{path}");
        // The reply to a request that streams begins with the first response.
        let mut streamed = body;
        streamed["stream"] = json!(true);
        let mut seen = stamps(&site, path, &streamed).await;
        assert_eq!(seen.first().map(String::as_str), Some("HTTP_RECV_START"), "{path}");
        assert_eq!(seen.last().map(String::as_str), Some("HTTP_SEND_END"), "{path}");
        seen.sort();
        let mut expected = whole.clone();
        expected.sort_unstable();
        assert_eq!(seen, expected, "{path}");
    }
    // A refused request has no trace, and the next one has.
    let (sender, mut reports) = channel(MANY);
    let until = Instant::now() + Duration::from_secs(600);
    site.server.trace().capture_next("m", Arc::new(Reports(sender)), until);
    assert_eq!(site.post("/v1/completions", &json!({"model": "m"})).await.status, 400);
    assert!(reports.try_recv().is_err());
}
