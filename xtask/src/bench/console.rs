//! The cost of the console without viewers and with open pages, and the effect of pages on inference.

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
    /// Length of each run
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Pairs of runs under load, without and with pages
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
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
    let idle = with_pages(server.address, pages, || share(&server, seconds))?;
    println!("with {pages} open pages: {idle:.2} % of a core");
    let load = Load::new(folder.path(), &request())?;
    let rate = |seconds| anyhow::Ok(load.run(server.address, 8, seconds)?.rate);
    rate(1)?;
    for pair in 1..=options.pairs {
        let alone = rate(seconds)?;
        let watched = with_pages(server.address, pages, || rate(seconds))?;
        println!(
            "pair {pair}: {alone:.0} requests/s, {watched:.0} with {pages} open pages: {:.3}",
            watched / alone
        );
    }
    Ok(())
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

/// Runs a measurement while pages are open.
fn with_pages<T>(address: SocketAddr, pages: u32, measure: impl FnOnce() -> Result<T>) -> Result<T> {
    let closed = AtomicBool::new(false);
    thread::scope(|scope| {
        let open: Vec<_> = (0..pages).map(|_| scope.spawn(|| page(address, &closed))).collect();
        let measured = measure();
        closed.store(true, Ordering::Relaxed);
        for page in open {
            page.join().map_err(|_| anyhow::anyhow!("a page panicked"))??;
        }
        measured
    })
}

/// Polls like a page, until it is closed.
fn page(address: SocketAddr, closed: &AtomicBool) -> Result<()> {
    let mut connection = Connection::open(address)?;
    let mut poll = |path: &str, headers: &str| {
        let text = format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n{headers}\r\n");
        let answer = connection.exchange(text.as_bytes())?;
        ensure!(matches!(answer.status, 200 | 304), "{path} is refused: {answer:?}");
        Ok(answer)
    };
    let (mut tag, mut at) = (String::new(), 0);
    let (mut state_at, mut history_at) = (Instant::now(), Instant::now());
    while !closed.load(Ordering::Relaxed) {
        let now = Instant::now();
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
