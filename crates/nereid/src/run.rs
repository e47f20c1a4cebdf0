//! A server's life: bind, load, serve, and on a signal drain and unload.

use std::env;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nereid_core::backend_api::{Error, Result};
use nereid_core::{Interceptors, Server, ServerOptions, TraceSettings};
use nereid_cuda::{PoolUsage, Pools};
use nereid_metrics::{Exposition, PinnedMemory};
use nereid_protocol::LogControl;
use nereid_repository::Repositories;
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::backends::Installed;
use crate::grpc::Grpc;
use crate::http::Http;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::{backends, gpus, poll, table, traces};

/// Runs until a signal ends it.
///
/// # Errors
/// Why it could not start, or that requests were still in progress when the time to exit was over.
pub(crate) fn run(options: &Options, log: Arc<LogControl>) -> Result<(), String> {
    if let Some(advice) = options.configurations.advice() {
        tracing::warn!("{advice}");
    }
    for advice in options.trace.advice() {
        tracing::warn!("{advice}");
    }
    let trace = options.trace.settings()?;
    let runtime = Builder::new_multi_thread()
        .worker_threads(options.http.threads())
        .thread_name("nereid-io")
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the I/O threads: {error}"))?;
    // Taken before the models are loaded, so that a port in use is known at once.
    let gpus = gpus::find(&options.configurations.driver)?;
    let regions = options.regions(gpus.cuda.clone());
    let http = Http::bind(&options.http, Arc::clone(&regions), Arc::clone(&log))?;
    let grpc = Grpc::bind(&options.grpc, regions, log)?;
    let metrics = Metrics::bind(options)?;
    // From here on a signal ends the server, even while models are still being loaded.
    let mut stop = stop_signal(&runtime)?;

    let pools = Arc::new(gpus.pools(&options.pools.sizes()));
    let backends = Installed::new(&options.configurations, &gpus, Arc::clone(&pools))
        .map_err(|error| error.to_string())?;
    let mut reading = options.configurations.read_options();
    reading.gpus = backends::gpus(&gpus.numbers, &backends.registry);
    let source = Repositories::new(options.model_repository.clone(), reading);
    let source = source.with_namespacing(options.model_namespacing);
    let told = options.metrics.face(!gpus.numbers.is_empty());
    let server_options = server_options(options, trace, gpus.numbers)?;
    let server = Server::new(server_options, backends.registry.clone(), Arc::new(source));
    let exposition = Exposition::new(told, nereid_triton_host::metric_registry());
    let exposition = Arc::new(exposition.with_pinned_memory(move || pinned_memory(&pools)));
    let told = Arc::clone(&exposition);
    backends.libraries.attach(&server, move |server| told.text(server));
    let loaded = load(&server, options.models_at_start());
    let stopped = runtime.block_on(async {
        tokio::select! {
            _ = &mut stop => None,
            loaded = loaded => Some(loaded),
        }
    });
    let Some(loaded) = stopped else {
        // Nothing was served yet, and a load that hangs is not waited for.
        return Ok(());
    };
    let failures = loaded.map_err(|_| "the models were not loaded to the end".to_owned())?;
    let failures = failures.map_err(|error| error.to_string())?;
    show_models(&server);
    if options.exit_on_error && !failures.is_empty() {
        server.unload_all();
        return Err("not every model could be loaded; --exit-on-error=false serves the others".into());
    }
    if let Some(pause) = options.poll_pause() {
        let watched = options.repository_watch.then_some(options.model_repository.as_slice());
        poll::start(&runtime, &server, pause, watched);
    }

    let shutdown = CancellationToken::new();
    let grpc = grpc.map(|grpc| grpc.serve(&runtime, &server, &shutdown)).transpose()?;
    let metrics =
        metrics.map(|metrics| metrics.serve(&runtime, &server, exposition, &shutdown)).transpose()?;
    let http = http.map(|http| http.serve(&runtime, &server, &shutdown)).transpose()?;
    let faces = grpc.into_iter().chain(metrics).chain(http).collect();
    runtime.block_on(stop).map_err(|error| format!("cannot wait for a signal: {error}"))?;
    let drained = drain(&runtime, &server, faces, &shutdown, options.exit_timeout());
    // Also where requests are still in progress: what was traced of others is kept.
    server.trace().close();
    drained
}

fn server_options(options: &Options, trace: TraceSettings, gpus: Vec<i32>) -> Result<ServerOptions, String> {
    Ok(ServerOptions {
        name: options.id.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        strict_readiness: options.strict_readiness,
        load_threads: options.model_load_thread_count.get(),
        load_retries: options.model_load_retry_count,
        model_control: options.model_control_mode.into(),
        rate_limit: options.rate_limit(),
        max_inflight_requests: options.max_inflight_requests,
        max_unread: options.max_unread_response_bytes,
        hold_batches: hold("TRITONSERVER_DELAY_SCHEDULER"),
        hold_backlog: hold("TRITONSERVER_BACKLOG_DELAY_SCHEDULER"),
        latencies: options.metrics.latencies(),
        trace_store: traces::store(&trace)?,
        trace,
        gpus,
        host_policies: options.host_policies()?,
        metrics: nereid_triton_host::metric_registry(),
        interceptors: Interceptors::default(),
    })
}

fn pinned_memory(pools: &Pools) -> PinnedMemory {
    let usage = pools.pinned_usage();
    usage.map_or_else(PinnedMemory::default, |PoolUsage { used, total }| PinnedMemory { total, used })
}

/// The reference's hooks for tests that need full queues: batchers begin when they have seen so many requests.
fn hold(variable: &str) -> usize {
    env::var(variable).ok().and_then(|count| count.parse().ok()).unwrap_or(0)
}

/// Completes when the process is told to stop.
fn stop_signal(runtime: &Runtime) -> Result<JoinHandle<()>, String> {
    let _context = runtime.enter();
    let listen = |kind| signal(kind).map_err(|error| format!("cannot listen for signals: {error}"));
    let (mut terminate, mut interrupt) = (listen(SignalKind::terminate())?, listen(SignalKind::interrupt())?);
    Ok(runtime.spawn(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!("received {name}: no further connections are accepted");
    }))
}

/// Loads on a thread of its own, and tells which models failed.
fn load(server: &Arc<Server>, only: Option<Vec<String>>) -> oneshot::Receiver<Result<Vec<(String, Error)>>> {
    let (done, loaded) = oneshot::channel();
    let server = Arc::clone(server);
    thread::spawn(move || {
        // Nobody listens any more once a signal came first.
        let _ = done.send(server.start(only));
    });
    loaded
}

fn show_models(server: &Server) {
    let rows: Vec<_> = server
        .models()
        .index()
        .map(|model| {
            let version = model.version.map_or_else(|| "-".to_owned(), |version| version.to_string());
            let state = match model.state.reason() {
                None => model.state.name().to_owned(),
                Some(reason) => format!("{}: {reason}", model.state.name()),
            };
            [model.id.to_string(), version, state.replace('\n', " ")]
        })
        .collect();
    tracing::info!("{}", table::draw(["Model", "Version", "Status"], &rows));
}

fn drain(
    runtime: &Runtime,
    server: &Arc<Server>,
    faces: Vec<JoinHandle<()>>,
    shutdown: &CancellationToken,
    limit: Duration,
) -> Result<(), String> {
    server.begin_shutdown();
    shutdown.cancel();
    let unloading = Arc::clone(server);
    let drained = runtime.block_on(async {
        let drain = async {
            for face in faces {
                face.await?;
            }
            spawn_blocking(move || unloading.unload_all()).await
        };
        timeout(limit, drain).await
    });
    match drained {
        Ok(Ok(())) => {
            tracing::info!("all requests are answered and all models unloaded");
            Ok(())
        }
        Ok(Err(error)) => Err(format!("could not shut down in order: {error}")),
        Err(_) => Err(format!("requests were still in progress after {} seconds", limit.as_secs())),
    }
}
