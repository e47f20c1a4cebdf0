//! The cost of the console without viewers and with open pages, and the effect of pages on inference.
//!
//! Rates of runs one after another differ by more than pages could cost. So the effect is measured within one server, in short
//! windows with and without pages in turn, by the processor time that the server uses for a request.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use clap::Args;

use super::client::{Connection, Request, get, header};
use super::load::Load;
use super::programs;
use super::server::Server;
use super::summary::{Pair, Run};
use crate::project::Project;

const MODEL: &str = r#"backend: "identity"
input [ { name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] } ]
output [ { name: "OUTPUT0", data_type: TYPE_FP32, dims: [ -1 ] } ]
"#;

/// The model that requests reach.
const BUSY: &str = "identity";

/// Intervals of a page's polls, in `crates/faces/console/pages/live.js`.
const STATE: Duration = Duration::from_millis(2000);
const HISTORY: Duration = Duration::from_millis(5000);

/// The longest time to load all models.
const LOADED: Duration = Duration::from_secs(120);

/// Connections that send requests.
const CONNECTIONS: u32 = 8;

/// Time between two looks at the clock of a page.
const TICK: Duration = Duration::from_millis(50);

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Number of models
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    models: u32,
    /// Number of open pages
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pages: u32,
    /// Length of each run without requests, in seconds
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Length of each window under load, in seconds
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=600))]
    window: u32,
    /// Pairs of windows under load, without and with pages
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pairs: u32,
    /// Measure this server instead of building one (release profile)
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
}

/// Measures, and prints the results.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    let binary = programs::nereid(project, options.binary.as_deref())?;
    let folder = tempfile::tempdir()?;
    let repository = folder.path().join("models");
    write_models(&repository, options.models)?;
    let Options { pages, seconds, .. } = *options;
    for (name, flag) in
        [("without the console", "--console=false"), ("with it, no page open", "--console=true")]
    {
        let server = started(&binary, &repository, flag)?;
        println!("{name}: {:.2} % of a core", share(&server, seconds)?);
    }
    let server = started(&binary, &repository, "--console=true")?;
    let idle = with_pages(server.address, pages, |_| share(&server, seconds))?;
    println!("with {pages} open pages: {idle:.2} % of a core");
    let load = Load::new(folder.path(), &request())?;
    load.run(server.address, CONNECTIONS, 1)?;
    let pairs = with_pages(server.address, pages, |tabs| {
        // Everything that a page reads at first has been read.
        thread::sleep(HISTORY);
        let window = |is_watched: bool| {
            tabs.hidden.store(!is_watched, Ordering::Relaxed);
            let before = server.cpu()?;
            let results = load.run(server.address, CONNECTIONS, options.window)?;
            anyhow::Ok(Run { results, cpu: server.cpu()?.saturating_sub(before) })
        };
        let pair = |number: u32| {
            // Whatever drifts favours neither.
            let watched_first = if number.is_multiple_of(2) { Some(window(true)?) } else { None };
            let yardstick = window(false)?;
            let nereid = watched_first.map_or_else(|| window(true), Ok)?;
            Ok(Pair { nereid, yardstick })
        };
        (0..options.pairs).map(pair).collect::<Result<Vec<_>>>()
    })?;
    println!("{}", effect(&pairs, pages));
    Ok(())
}

/// The effect of pages, as lines.
fn effect(pairs: &[Pair], pages: u32) -> String {
    type Figure = (&'static str, fn(&Run) -> f64);
    const FIGURES: [Figure; 3] = [
        ("CPU us/request", Run::cpu_us_per_request),
        ("requests/s", |run| run.results.rate),
        ("p99 us", |run| run.results.p99_us as f64),
    ];
    let lines = FIGURES.map(|(name, of)| {
        let spread = |of: &dyn Fn(&Pair) -> f64| Spread::of(pairs.iter().map(of).collect());
        let [alone, watched] = [spread(&|pair| of(&pair.yardstick)), spread(&|pair| of(&pair.nereid))];
        let ratio = spread(&|pair| of(&pair.nereid) / of(&pair.yardstick));
        format!(
            "{name}: {:.2} without pages, {:.2} with {pages}; ratio {:.4}, half of {} pairs from {:.4} to {:.4}",
            alone.median,
            watched.median,
            ratio.median,
            pairs.len(),
            ratio.lower,
            ratio.upper
        )
    });
    lines.join("\n")
}

/// The median of values, and the quartiles.
#[derive(Debug, PartialEq)]
struct Spread {
    lower: f64,
    median: f64,
    upper: f64,
}

impl Spread {
    /// Requires at least one value.
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (values.len() - 1) as f64;
            let (below, above) = (values[place.floor() as usize], values[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        Self { lower: at(0.25), median: at(0.5), upper: at(0.75) }
    }
}

/// A server whose models are loaded.
fn started(binary: &Path, repository: &Path, flag: &str) -> Result<Server> {
    let server = Server::nereid(binary, repository, &[flag.to_owned()])?;
    let deadline = Instant::now() + LOADED;
    while get(server.address, "/v2/health/ready").map_or(true, |answer| answer.status != 200) {
        ensure!(Instant::now() < deadline, "the models are not loaded within {LOADED:?}");
        thread::sleep(TICK);
    }
    Ok(server)
}

/// Percentage of a core that the server uses over a time.
fn share(server: &Server, seconds: u32) -> Result<f64> {
    // The first polls of pages read everything.
    thread::sleep(Duration::from_secs(3));
    let before = server.cpu()?;
    thread::sleep(Duration::from_secs(seconds.into()));
    Ok(100.0 * server.cpu()?.saturating_sub(before).as_secs_f64() / f64::from(seconds))
}

/// The tabs with the pages.
#[derive(Default)]
struct Tabs {
    closed: AtomicBool,
    /// Whether the clocks of the pages stand. Then a window with pages has its share of polls and no more.
    hidden: AtomicBool,
}

/// Runs a measurement while pages are open.
fn with_pages<T>(address: SocketAddr, pages: u32, measure: impl FnOnce(&Tabs) -> Result<T>) -> Result<T> {
    let tabs = Tabs::default();
    thread::scope(|scope| {
        // Nobody opens all pages at once.
        let after = |number| STATE * number / pages;
        let tabs = &tabs;
        let open: Vec<_> =
            (0..pages).map(|number| scope.spawn(move || page(address, after(number), tabs))).collect();
        let measured = measure(tabs);
        tabs.closed.store(true, Ordering::Relaxed);
        for page in open {
            page.join().map_err(|_| anyhow::anyhow!("a page panicked"))??;
        }
        measured
    })
}

/// Polls like a page that is opened after a time, until it is closed.
fn page(address: SocketAddr, after: Duration, tabs: &Tabs) -> Result<()> {
    let mut connection = Connection::open(address)?;
    let mut poll = |path: &str, headers: &str| {
        let text = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n");
        let answer = connection.exchange(text.as_bytes())?;
        ensure!(matches!(answer.status, 200 | 304), "{path} is refused: {answer:?}");
        Ok(answer)
    };
    let (mut tag, mut at) = (String::new(), 0);
    let (mut state_at, mut history_at) = (after, after);
    let (mut now, mut looked) = (Duration::ZERO, Instant::now());
    while !tabs.closed.load(Ordering::Relaxed) {
        let passed = looked.elapsed();
        looked += passed;
        if !tabs.hidden.load(Ordering::Relaxed) {
            now += passed;
        }
        if now >= state_at {
            state_at = now + STATE;
            poll("/console/api/server", "")?;
            let known = if tag.is_empty() { String::new() } else { format!("If-None-Match: {tag}\r\n") };
            if let Some(found) = header(&poll("/console/api/models", &known)?.head, "etag") {
                tag = found.to_owned();
            }
        }
        if now >= history_at {
            history_at = now + HISTORY;
            let history = poll(&format!("/console/api/history?after={at}&last=300"), "")?;
            let history: serde_json::Value = serde_json::from_slice(&history.body)?;
            at = history["at"].as_u64().unwrap_or_default();
        }
        thread::sleep(TICK);
    }
    Ok(())
}

fn request() -> Request {
    let body = r#"{"inputs":[{"name":"INPUT0","datatype":"FP32","shape":[4],"data":[1,2,3,4]}]}"#;
    Request { path: format!("/v2/models/{BUSY}/infer"), header_length: body.len(), body: body.into() }
}

fn write_models(folder: &Path, count: u32) -> Result<()> {
    let numbered = (1..count).map(|number| format!("model_{number}"));
    for name in numbered.chain([BUSY.to_owned()]) {
        fs::create_dir_all(folder.join(&name).join("1"))?;
        fs::write(folder.join(&name).join("config.pbtxt"), MODEL)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::load::LoadResults;
    use super::*;

    fn run(requests: u64, cpu_ms: u64) -> Run {
        let results = LoadResults { requests, rate: requests as f64 / 2.0, p50_us: 1, p99_us: 3 };
        Run { results, cpu: Duration::from_millis(cpu_ms) }
    }

    #[test]
    fn spread_has_the_quartiles() {
        for (values, [lower, median, upper]) in [
            (vec![3.0], [3.0; 3]),
            (vec![4.0, 2.0], [2.5, 3.0, 3.5]),
            (vec![5.0, 1.0, 4.0, 2.0, 3.0], [2.0, 3.0, 4.0]),
        ] {
            assert_eq!(Spread::of(values), Spread { lower, median, upper });
        }
    }

    #[test]
    fn effect_is_the_ratio_within_pairs() {
        let pairs =
            [(1000, 100, 102), (2000, 300, 300), (4000, 400, 404)].map(|(requests, alone, watched)| Pair {
                nereid: run(requests, watched),
                yardstick: run(requests, alone),
            });
        let text = effect(&pairs, 10);
        let expected = "CPU us/request: 100.00 without pages, 102.00 with 10; ratio 1.0100, half of 3 pairs from 1.0050 to 1.0150\n";
        assert!(text.starts_with(expected), "{text}");
        assert!(text.contains("requests/s: 1000.00 without pages, 1000.00 with 10; ratio 1.0000"), "{text}");
    }
}
