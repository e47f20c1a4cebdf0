//! A closed loop of requests: each of some clients sends the next request when it has the answer to the last one.

use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::search::{Measurement, Slot};

/// Uncounted answers per client: the first ones prepare plans and memory.
const WARM_UP: usize = 2;
/// Answers per client after which latencies are representative.
const STEADY: usize = 2;

/// A client that waits for the answer to each request.
pub(crate) trait Client: Send + 'static {
    /// Sends a request.
    ///
    /// # Errors
    /// The request failed.
    fn send(&mut self) -> impl Future<Output = Result<(), String>> + Send;
}

/// The answers so far.
#[derive(Default)]
struct Answers {
    count: usize,
    last: Option<Instant>,
    /// Clients whose warm-up is complete.
    warm: usize,
    /// Latencies since the warm-up.
    latencies: Vec<Duration>,
}

/// Runs clients and measures the answers that arrive within the window, or the first one after an empty window. Drops requests that are
/// still in flight then. `usage` returns the memory and the processor time of the server.
///
/// # Errors
/// A request failed.
pub(crate) async fn measure<C: Client>(
    clients: Vec<C>,
    slot: Slot,
    usage: impl Fn() -> (u64, Duration),
) -> Result<Measurement, String> {
    let (sender, mut answers) = watch::channel(Answers::default());
    let (count, began) = (clients.len(), Instant::now());
    let mut tasks: JoinSet<_> = clients.into_iter().map(|client| run(client, sender.clone())).collect();
    let observe = async {
        let is_warm = answers.wait_for(|answers| answers.warm == count);
        // A cold or slow model is warm after its first answer.
        if timeout(slot.warm_up, is_warm).await.is_err() {
            let _ = answers.wait_for(|answers| answers.count > 0).await;
        }
        let mut start = began;
        sender.send_modify(|answers| {
            // Answers of a batch arrive together: counting from the last one makes the rate exact for few batches.
            start = answers.last.unwrap_or(began);
            answers.latencies.clear();
        });
        let ((_, cpu_before), opened) = (usage(), Instant::now());
        sleep(slot.window).await;
        let _ = answers.wait_for(|answers| !answers.latencies.is_empty()).await;
        let (memory, cpu) = usage();
        let share = |elapsed: Duration| elapsed.as_secs_f64() / opened.elapsed().as_secs_f64();
        let answers = answers.borrow();
        let elapsed = answers.last.map_or(Duration::ZERO, |last| last.duration_since(start));
        let cpu = cpu.saturating_sub(cpu_before).mul_f64(share(elapsed).clamp(0.0, 1.0));
        measurement(answers.latencies.clone(), count, elapsed, cpu, memory)
    };
    tokio::select! {
        measured = observe => Ok(measured),
        Some(failed) = tasks.join_next() => Err(failed.unwrap_or_else(|error| error.to_string())),
    }
}

/// Sends requests until one fails. Returns the reason.
async fn run(mut client: impl Client, answers: watch::Sender<Answers>) -> String {
    let mut count = 0;
    loop {
        let sent = Instant::now();
        if let Err(reason) = client.send().await {
            return reason;
        }
        count += 1;
        answers.send_modify(|answers| {
            let now = Instant::now();
            answers.count += 1;
            answers.last = Some(now);
            answers.warm += usize::from(count == WARM_UP);
            answers.latencies.push(now.duration_since(sent));
        });
    }
}

fn measurement(
    mut latencies: Vec<Duration>,
    clients: usize,
    elapsed: Duration,
    cpu: Duration,
    memory: u64,
) -> Measurement {
    latencies.sort_unstable();
    let count = latencies.len();
    let milliseconds = |duration: Duration| duration.as_secs_f64() * 1000.0;
    let rate = count as f64 / elapsed.max(Duration::from_nanos(1)).as_secs_f64();
    // By Little's law, no closed loop is faster than this. The window may have more bursts of answers than times between bursts.
    let mean = latencies.iter().sum::<Duration>().as_secs_f64() / (count as f64).max(1.0);
    let rate = rate.min(clients as f64 / mean);
    // Early requests found shorter queues than later ones.
    let least = if count < STEADY * clients { 1000.0 * clients as f64 / rate } else { 0.0 };
    // The smallest latency that is not exceeded by more than the rest.
    let quantile = |share: f64| {
        let at = ((count as f64 * share).ceil() as usize).clamp(1, count.max(1)) - 1;
        latencies.get(at).copied().map_or(0.0, milliseconds).max(least)
    };
    Measurement {
        rate,
        median: quantile(0.5),
        p99: quantile(0.99),
        cpu: milliseconds(cpu) / (count as f64).max(1.0),
        memory,
    }
}

#[cfg(test)]
mod tests;
