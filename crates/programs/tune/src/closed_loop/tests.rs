//! Clients of simulated servers, on a paused clock.

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio::time::sleep_until;

use super::*;

fn milliseconds(count: u64) -> Duration {
    Duration::from_millis(count)
}

fn slot(milliseconds: u64) -> Slot {
    let window = Duration::from_millis(milliseconds);
    Slot { warm_up: window, window }
}

/// A client of a server whose instances execute one request after the other.
struct Queued {
    instances: Arc<Semaphore>,
    service: Duration,
    /// Overrides the duration of the first request.
    cold: Option<Duration>,
}

impl Client for Queued {
    async fn send(&mut self) -> Result<(), String> {
        let _instance = self.instances.acquire().await;
        sleep(self.cold.take().unwrap_or(self.service)).await;
        Ok(())
    }
}

fn queued(clients: usize, instances: usize, service: Duration, cold: Option<Duration>) -> Vec<Queued> {
    let instances = Arc::new(Semaphore::new(instances));
    (0..clients).map(|_| Queued { instances: Arc::clone(&instances), service, cold }).collect()
}

/// A client of a server that executes each batch in the same time, and answers the requests of a batch one after the other.
struct Batched {
    service: Duration,
    began: Instant,
    place: Duration,
}

impl Client for Batched {
    async fn send(&mut self) -> Result<(), String> {
        let begun = self.began.elapsed().as_nanos() / self.service.as_nanos();
        sleep_until(self.began + self.service * u32::try_from(begun + 1).unwrap() + self.place).await;
        Ok(())
    }
}

fn unused() -> (u64, Duration) {
    (0, Duration::ZERO)
}

#[tokio::test(start_paused = true)]
async fn a_measurement_waits_for_no_request_that_its_window_does_not_need() {
    for service in [1, 30, 500, 10_000] {
        for (clients, instances) in [(1, 1), (1, 4), (16, 1), (16, 2), (5, 16)] {
            for window in [250, 3000, 40_000] {
                let began = Instant::now();
                let load = queued(clients, instances, milliseconds(service), None);
                let measured = measure(load, slot(window), unused).await.unwrap();
                let case = format!("{service} {clients} {instances} {window} {measured:?}");
                // The warm-up needs two answers per client, and both parts wait for one answer.
                let (rounds, service) = (clients.div_ceil(instances) as u64, milliseconds(service));
                let warm_up = milliseconds(window).min(service * u32::try_from(2 * rounds).unwrap());
                assert!(began.elapsed() <= warm_up + milliseconds(window) + 2 * service, "{case}");
                let busy = clients.min(instances) as f64;
                let (rate, latency) =
                    (busy / service.as_secs_f64(), 1000.0 * clients as f64 / busy * service.as_secs_f64());
                assert!((measured.rate / rate - 1.0).abs() < 0.01, "{case}");
                // Early requests, which found a short queue, must not hide its length.
                assert!(measured.p99 >= latency * 0.99 && measured.p99 <= latency * 1.3, "{case} {latency}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn few_batches_show_the_rate() {
    for between_answers in [0, 1, 3, 10] {
        for window in [20, 100, 250, 999, 1500, 2030, 3500, 4999, 20_000] {
            let began = Instant::now();
            let client = |place: u64| Batched {
                service: milliseconds(1000),
                began,
                place: milliseconds(place * between_answers),
            };
            let measured = measure((0..16).map(client).collect(), slot(window), unused).await.unwrap();
            let case = format!("{between_answers} {window}: {measured:?}");
            assert!((measured.rate - 16.0).abs() < if between_answers == 0 { 0.1 } else { 2.5 }, "{case}");
            assert!((900.0..1200.0).contains(&measured.p99), "{case}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_first_slow_answers_do_not_count() {
    let clients = queued(2, 2, milliseconds(10), Some(milliseconds(5000)));
    let measured = measure(clients, slot(250), unused).await.unwrap();
    assert!((measured.rate - 200.0).abs() < 10.0 && measured.p99 < 11.0, "{measured:?}");
}

/// A client whose requests fail from some time on.
struct Failing(Instant);

impl Client for Failing {
    async fn send(&mut self) -> Result<(), String> {
        sleep(milliseconds(20)).await;
        if Instant::now() < self.0 { Ok(()) } else { Err("out of memory".into()) }
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_request_ends_the_measurement() {
    for fails_after in [0, 100, 900] {
        let began = Instant::now();
        let clients = (0..4).map(|_| Failing(began + milliseconds(fails_after))).collect();
        assert_eq!(measure(clients, slot(1000), unused).await, Err("out of memory".into()));
        assert!(began.elapsed() <= milliseconds(fails_after + 20));
    }
}

#[tokio::test(start_paused = true)]
async fn processor_time_is_of_the_window() {
    let began = Instant::now();
    // Half of a processor.
    let usage = || (7 << 20, began.elapsed() / 2);
    let measured = measure(queued(4, 1, milliseconds(10), None), slot(1000), usage).await.unwrap();
    assert_eq!(measured.memory, 7 << 20);
    assert!((measured.cpu - 5.0).abs() < 0.1, "{measured:?}");
}

#[test]
fn quantiles_are_of_the_latencies() {
    let latencies = |count: u64| -> Vec<_> { (1..=count).rev().map(milliseconds).collect() };
    for (count, median, p99) in [(3, 2.0, 3.0), (100, 50.0, 99.0), (1000, 500.0, 990.0)] {
        // One client that always waits for an answer.
        let elapsed: Duration = latencies(count).iter().sum();
        for (elapsed, seconds) in [(elapsed, elapsed), (elapsed * 2, elapsed * 2), (elapsed / 2, elapsed)] {
            let found = measurement(latencies(count), 1, elapsed, milliseconds(1000), 7);
            assert!((found.rate - count as f64 / seconds.as_secs_f64()).abs() < 1e-6, "{found:?}");
            assert_eq!((found.p99, found.memory), (p99, 7), "{count}");
            assert!((found.median - median).abs() < 1e-9, "{found:?}");
            assert_eq!(found.cpu, 1000.0 / (count as f64));
        }
    }
}
