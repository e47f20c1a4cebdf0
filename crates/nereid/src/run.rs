//! A server's life: bind, load, serve, and on a signal drain and unload.

use std::collections::BTreeMap;
use std::env;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use nereid_core::backend_api::{Error, Result};
use nereid_core::{ModelSpec, Server, ServerOptions};
use nereid_http::HttpOptions;
use nereid_repository::LocalRepository;
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::oneshot;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::options::Options;
use crate::{backends, table};

/// Accepted connections that wait for a thread to serve them, as the reference has it.
const BACKLOG: u32 = 1024;

/// Runs until a signal ends it.
///
/// # Errors
/// Why it could not start, or that requests were still in progress when the time to exit was over.
pub(crate) fn run(options: &Options) -> Result<(), String> {
    if let Some(advice) = options.configurations.advice() {
        tracing::warn!("{advice}");
    }
    let runtime = Builder::new_multi_thread()
        .worker_threads(options.http_threads())
        .thread_name("nereid-io")
        .enable_all()
        .build()
        .map_err(|error| format!("cannot start the I/O threads: {error}"))?;
    // Taken before the models are loaded, so that a port in use is known at once.
    let socket = if options.allow_http { Some(bind(options, &runtime)?) } else { None };
    // From here on a signal ends the server, even while models are still being loaded.
    let mut stop = stop_signal(&runtime)?;

    let server = Arc::new(Server::new(server_options(options), backends::all(&options.configurations)));
    let loaded = load(&server, find_models(options)?);
    let stopped = runtime.block_on(async {
        tokio::select! {
            _ = &mut stop => true,
            _ = loaded => false,
        }
    });
    if stopped {
        // Nothing was served yet, and a load that hangs is not waited for.
        return Ok(());
    }
    show_models(&server);
    if options.exit_on_error && !server.models().all_ready() {
        server.unload_all();
        return Err("not every model could be loaded; --exit-on-error=false serves the others".into());
    }

    let shutdown = CancellationToken::new();
    let http = socket.map(|socket| serve_http(socket, &runtime, options, &server, &shutdown)).transpose()?;
    runtime.block_on(stop).map_err(|error| format!("cannot wait for a signal: {error}"))?;
    drain(&runtime, &server, http, &shutdown, options.exit_timeout())
}

fn server_options(options: &Options) -> ServerOptions {
    ServerOptions {
        name: options.id.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        strict_readiness: options.strict_readiness,
        load_threads: options.model_load_thread_count.get(),
        rate_limit: options.rate_limit(),
        max_inflight_requests: options.max_inflight_requests,
        hold_batches: hold_batches(),
    }
}

/// The reference's hook for tests that need a full queue: batchers begin when they have seen so many requests.
fn hold_batches() -> usize {
    env::var("TRITONSERVER_DELAY_SCHEDULER").ok().and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn bind(options: &Options, runtime: &Runtime) -> Result<TcpSocket, String> {
    let _context = runtime.enter();
    let address = SocketAddr::new(options.http_address, options.http_port);
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() };
    let bound = socket.and_then(|socket| {
        socket.set_reuseaddr(true)?;
        socket.bind(address)?;
        Ok(socket)
    });
    bound.map_err(|error| format!("cannot serve HTTP at {address}: {error}"))
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

/// The models of all repositories. One that stands in several is known, and unavailable.
fn find_models(options: &Options) -> Result<Vec<(String, Result<ModelSpec>)>, String> {
    let read = options.configurations.read_options();
    let mut models = BTreeMap::<String, Result<ModelSpec>>::new();
    for path in &options.model_repository {
        let repository = LocalRepository::new(path);
        for (name, model) in repository.models(&read).map_err(|error| error.to_string())? {
            let model = match models.get(&name) {
                None => model,
                Some(_) => {
                    Err(Error::invalid_arg(format!("model '{name}' stands in more than one repository")))
                }
            };
            models.insert(name, model);
        }
    }
    Ok(models.into_iter().collect())
}

/// Loads on a thread of its own, and tells when that is done.
fn load(server: &Arc<Server>, models: Vec<(String, Result<ModelSpec>)>) -> oneshot::Receiver<()> {
    let (done, loaded) = oneshot::channel();
    let server = Arc::clone(server);
    thread::spawn(move || {
        server.load(models);
        // Nobody listens any more once a signal came first.
        let _ = done.send(());
    });
    loaded
}

fn show_models(server: &Server) {
    let rows: Vec<_> = server
        .models()
        .index()
        .map(|model| {
            let version = model.version.map_or_else(|| "-".to_owned(), |version| version.to_string());
            let state = model.failure.map_or_else(|| "READY".into(), |error| format!("UNAVAILABLE: {error}"));
            [model.name, version, state.replace('\n', " ")]
        })
        .collect();
    tracing::info!("{}", table::draw(["Model", "Version", "Status"], &rows));
}

fn serve_http(
    socket: TcpSocket,
    runtime: &Runtime,
    options: &Options,
    server: &Arc<Server>,
    shutdown: &CancellationToken,
) -> Result<JoinHandle<()>, String> {
    let _context = runtime.enter();
    let cannot = |error| format!("cannot serve HTTP at {}: {error}", options.http_address);
    let listener: TcpListener = socket.listen(BACKLOG).map_err(cannot)?;
    tracing::info!("Started HTTPService at {}", listener.local_addr().map_err(cannot)?);
    let http = HttpOptions {
        max_input_size: options.http_max_input_size,
        max_body_size: options.http_max_body_size,
    };
    Ok(runtime.spawn(nereid_http::serve(listener, Arc::clone(server), http, shutdown.clone())))
}

fn drain(
    runtime: &Runtime,
    server: &Arc<Server>,
    http: Option<JoinHandle<()>>,
    shutdown: &CancellationToken,
    limit: Duration,
) -> Result<(), String> {
    server.begin_shutdown();
    shutdown.cancel();
    let unloading = Arc::clone(server);
    let drained = runtime.block_on(async {
        let drain = async {
            if let Some(http) = http {
                http.await?;
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
