//! A closed loop of requests: each of some clients sends the next request when it has the answer to the last one.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::HOST;
use hyper::{Method, Request, StatusCode};
use nereid_terminal::single_line;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use crate::connection::Connection;
use crate::search::Measurement;
use crate::server::usage;

/// The header with the length of a body's JSON, in front of tensors in binary form.
const JSON_LENGTH: &str = "Inference-Header-Content-Length";
/// Requests of each client before those that count: the first ones prepare plans and memory.
const WARM_UP: usize = 2;
/// The limit of the requests before those that count.
const WARM_UP_LIMIT: Duration = Duration::from_secs(120);
/// How long the last requests may take after the end of a measurement.
const LAST: Duration = Duration::from_secs(60);

/// Requests that differ only in the contents of their tensors.
#[derive(Debug)]
pub(crate) struct Requests {
    /// The path of the model's inference.
    pub(crate) path: String,
    /// Bodies, each with the length of its JSON.
    pub(crate) bodies: Vec<(Bytes, usize)>,
}

impl Requests {
    fn request(&self, number: usize) -> Result<Request<Full<Bytes>>, String> {
        let (body, length) = &self.bodies[number % self.bodies.len()];
        let request = Request::builder().method(Method::POST).uri(&self.path).header(HOST, "localhost");
        let request = request.header(JSON_LENGTH, *length).body(Full::new(body.clone()));
        request.map_err(|error| error.to_string())
    }
}

/// Sends requests to a server for a while.
///
/// # Errors
/// A request failed.
pub(crate) async fn load(
    socket: &Path,
    pid: u32,
    requests: &Arc<Requests>,
    clients: usize,
    window: Duration,
) -> Result<Measurement, String> {
    let mut connections = Vec::with_capacity(clients);
    for number in 0..clients {
        connections.push(Client {
            connection: Connection::open(socket).await?,
            number,
            requests: Arc::clone(requests),
        });
    }
    let warm = all(connections, |mut client| async move {
        for _ in 0..WARM_UP {
            client.send().await?;
        }
        Ok(client)
    });
    let warm = timeout_at(Instant::now() + WARM_UP_LIMIT, warm).await;
    let connections = warm.map_err(|_| format!("no answer within {} s", WARM_UP_LIMIT.as_secs()))??;
    let (began, (_, cpu_before)) = (Instant::now(), usage(pid));
    let end = began + window;
    let latencies = all(connections, move |mut client| async move {
        let mut latencies = Vec::new();
        while Instant::now() < end {
            let sent = Instant::now();
            client.send().await?;
            latencies.push(sent.elapsed());
        }
        Ok(latencies)
    });
    let latencies = timeout_at(end + LAST, latencies).await;
    let latencies = latencies.map_err(|_| format!("no answer within {} s", LAST.as_secs()))??;
    let elapsed = began.elapsed();
    let (memory, cpu) = usage(pid);
    let latencies: Vec<Duration> = latencies.into_iter().flatten().collect();
    Ok(measurement(latencies, elapsed, cpu.saturating_sub(cpu_before), memory))
}

fn measurement(mut latencies: Vec<Duration>, elapsed: Duration, cpu: Duration, memory: u64) -> Measurement {
    latencies.sort_unstable();
    let count = latencies.len();
    let milliseconds = |duration: Duration| duration.as_secs_f64() * 1000.0;
    // The smallest latency that is not exceeded by more than the rest.
    let quantile = |share: f64| {
        let at = ((count as f64 * share).ceil() as usize).clamp(1, count.max(1)) - 1;
        latencies.get(at).copied().map_or(0.0, milliseconds)
    };
    Measurement {
        rate: count as f64 / elapsed.as_secs_f64(),
        median: quantile(0.5),
        p99: quantile(0.99),
        cpu: milliseconds(cpu) / (count as f64).max(1.0),
        memory,
    }
}

/// A client, with its connection.
struct Client {
    connection: Connection,
    number: usize,
    requests: Arc<Requests>,
}

impl Client {
    async fn send(&mut self) -> Result<(), String> {
        self.number += 1;
        let (status, body) = self.connection.send(self.requests.request(self.number)?).await?;
        if status == StatusCode::OK {
            return Ok(());
        }
        let document: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
        let reason = document.as_ref().and_then(|document| document["error"].as_str());
        let reason = reason.map_or_else(|| String::from_utf8_lossy(&body).into_owned(), str::to_owned);
        Err(format!("{status}: {}", single_line(&reason)))
    }
}

/// Runs a task for each of some values; the first error ends all.
async fn all<T, F, R>(values: Vec<T>, task: impl Fn(T) -> F) -> Result<Vec<R>, String>
where
    F: Future<Output = Result<R, String>> + Send + 'static,
    R: Send + 'static,
{
    let mut tasks: JoinSet<_> = values.into_iter().map(task).collect();
    let mut results = Vec::new();
    while let Some(ended) = tasks.join_next().await {
        results.push(ended.map_err(|error| error.to_string())??);
    }
    Ok(results)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_of_the_latencies() {
        let latencies = |count: u64| (1..=count).rev().map(Duration::from_millis).collect();
        for (count, median, p99) in
            [(0, 0.0, 0.0), (1, 1.0, 1.0), (2, 1.0, 2.0), (100, 50.0, 99.0), (1000, 500.0, 990.0)]
        {
            let found = measurement(latencies(count), Duration::from_secs(2), Duration::from_secs(1), 7);
            assert_eq!((found.median, found.p99, found.memory), (median, p99, 7), "{count}");
            assert_eq!(found.rate, count as f64 / 2.0);
            assert_eq!(found.cpu, 1000.0 / (count as f64).max(1.0));
        }
    }
}
