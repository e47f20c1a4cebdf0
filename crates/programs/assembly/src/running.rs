//! A server's life cycle: bind, serve, load; finally drain and unload.
//!
//! The faces listen before any model is loaded: the server is live from then on, and ready when all initial models have
//! been loaded or have failed.

use std::sync::Arc;
use std::thread::{self, available_parallelism};
use std::time::Duration;

use nereid_access::{AuditCounts, AuditLog, Guard, PrincipalUsage};
use nereid_console::ClientChanges;
use nereid_core::backend_api::{Error, Result};
use nereid_core::{GpuMemory, Server, ServerOptions, Work};
use nereid_cuda::{Cuda, PoolUsage, Pools};
use nereid_ensemble::EnsembleFactory;
use nereid_load_report::LoadReports;
use nereid_metrics::{
    AuditEvents, Exposition, MetricsOptions, PinnedMemory, PrincipalMetrics, RemoteRepository, VersionMemory,
};
use nereid_net::io_runtime::{self, IoRuntime};
use nereid_net::listener::{Connections, LocalAddress};
use nereid_object_stores::{CloudOptions, RepositoryStatus};
use nereid_protocol::{Action, Audit as _, AuditEvent, AuditOutcome};
use nereid_releases::{ReleaseDecision, Releases};
use nereid_repository::Repositories;
use nereid_residency::{ResidencyManager, ResidencyOptions};
use nereid_scaling::Scaling;
use nereid_shared_memory::Regions;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::advice::RepositoryAdvisor;
use crate::agents::AllAgents;
use crate::config::{AccessRules, Config, Process};
use crate::engine_check::EngineCheck;
use crate::error::{StartError, StopError};
use crate::faces::{BoundFace, FaceContext, ServedFace};
use crate::hub_engines::engines;
use crate::platform::Platform;
use crate::repositories::{OpenRepositories, Registration};
use crate::token_keys::Issuers;
use crate::{caches, poll, traces};

/// Polling interval for requests in progress during shutdown. Requests are counted as cheaply as possible, so the end
/// of the last one is not signalled.
const WORK_CHECK: Duration = Duration::from_millis(10);
/// Interval of the log messages that name the models a stopping server waits for.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);

/// The names of the models that failed to load at start, and why; an error if the repositories cannot be read.
pub type LoadOutcome = Result<Vec<(String, Error)>>;

/// A server that runs. It ends when it is stopped or dropped; only [`stop`](Self::stop) answers what is in progress.
pub struct RunningServer {
    server: Arc<Server>,
    repositories: OpenRepositories,
    exposition: Arc<Exposition>,
    cuda: Option<Arc<Cuda>>,
    audit: Option<Arc<AuditLog>>,
    faces: Vec<ServedFace>,
    loaded: watch::Receiver<Option<LoadOutcome>>,
    /// Cancelled with `shutdown`, if not before.
    closing: CancellationToken,
    shutdown: DropGuard,
    runtime: OwnRuntime,
}

/// Opens the access policy, if there is one, and logs the rights of clients.
fn guard(rules: AccessRules) -> std::result::Result<Option<Arc<Guard>>, StartError> {
    match rules {
        AccessRules::Policy(file) => {
            let guard = Guard::open(file, Arc::new(Issuers)).map_err(StartError::Access)?;
            tracing::info!("clients need the rights of {guard}");
            return Ok(Some(guard));
        }
        AccessRules::Wary => tracing::info!(
            "clients of other machines may run, load and unload every model, but load no files of their own and use no \
             shared memory; --access limits who may do what"
        ),
        AccessRules::Trusting => tracing::warn!(
            "--trust-network: every client that reaches a port may do everything, and files that it loads run as this server"
        ),
    }
    Ok(None)
}

/// Builds a server, starts its faces, and begins to load its models.
///
/// # Errors
/// A part of the configuration is unusable.
pub fn start(config: Config, process: Process) -> std::result::Result<RunningServer, StartError> {
    let runtime = OwnRuntime::new(process.runtime)?;
    let wary = matches!(config.access, AccessRules::Wary);
    let guard = guard(config.access)?;
    if let Some(guard) = &guard {
        runtime.handle.spawn(guard.follow());
    }
    let audit = config.audit_log.map(AuditLog::open).transpose().map_err(StartError::Audit)?;
    // Bound before any slow step, so that a port in use is reported at once.
    let bound: Vec<_> =
        config.faces.into_iter().map(BoundFace::new).collect::<std::result::Result<_, _>>()?;
    let trace_store = match config.server.trace_store {
        Some(store) => Some(store),
        None => traces::store(&config.server.trace, config.collector).map_err(StartError::Traces)?,
    };
    let platform = Platform::find(&config.platform, config.reading.complete)?;
    let clouds = CloudOptions { engines: engines(&config.platform.backends), ..config.clouds };
    let reading = platform.reading(config.reading);
    let repositories = OpenRepositories::new(&config.repositories, clouds, reading.clone());
    let mut repositories = repositories.map_err(StartError::Repository)?;
    let agents = AllAgents::new(
        config.agents.directory.clone(),
        Arc::clone(repositories.clouds()),
        process.backend_metrics.clone(),
    );
    repositories.source = repositories
        .source
        .with_namespacing(config.namespacing)
        .with_agents(Arc::new(agents), config.agents.defaults.clone());
    let advisor = RepositoryAdvisor {
        folders: repositories.folders.clone(),
        reading,
        backends: platform.backends.registry.clone(),
        engines: EngineCheck::new(&config.platform.backends, &platform.backends),
        agents: config.agents,
        gpus: platform.gpus.numbers.clone(),
    };
    repositories.source.remove_left_over_files();
    nereid_sandbox::remove_left_over_folders();
    let mut interceptors = config.server.interceptors;
    let caching = config.response_cache.map(caches::open).transpose().map_err(StartError::Cache)?;
    if let Some(caching) = &caching {
        // Behind those of programs, so that they see requests that are answered from the cache, too.
        interceptors.add_factory(Arc::new(caching.clone()));
    }
    let scaling = Scaling::new();
    interceptors.add_factory(Arc::clone(&scaling) as _);
    let changes = Arc::new(ClientChanges::new(audit.clone().map(|audit| audit as _)));
    let releases = Releases::default();
    // After the cache: answers from there say nothing about a version.
    interceptors.add_factory(Arc::new(releases.clone()));
    let decisions = releases.clone();
    let mut executors = config.server.executors;
    executors.register(Arc::new(EnsembleFactory));
    let limited = config.residency.gpu_memory_budgets.keys();
    for gpu in limited.filter(|gpu| !platform.gpus.numbers.contains(gpu)) {
        tracing::warn!(
            "the memory budget of GPU {gpu} is for declared sizes only: the machine has no such GPU"
        );
    }
    let records = config.residency.records.clone().or_else(|| config.memory_records.folder());
    let residency = ResidencyManager::new(
        ResidencyOptions { records, ..config.residency },
        platform.gpus.memory_reader(),
    );
    let has_gpus = !platform.gpus.numbers.is_empty();
    let server = ServerOptions {
        trace_store,
        interceptors,
        executors,
        releases: config.server.releases.or_else(|| Some(Arc::new(releases))),
        residency: config.server.residency.or_else(|| Some(Arc::clone(&residency) as _)),
        gpus: platform.gpus.numbers.clone(),
        gpu_limits: platform.gpus.limits(&config.platform.gpus.load_limits),
        metrics: process.backend_metrics.clone(),
        ..config.server
    };
    let server =
        Server::new(server, platform.backends.registry.clone(), Arc::new(repositories.source.clone()));
    residency.attach(&server);
    scaling.attach(&server);
    decisions.on_decision(announced(&server, &changes));

    let metrics = MetricsOptions { gpu: config.metrics.gpu && has_gpus, ..config.metrics };
    let pools = Arc::clone(&platform.pools);
    // Under a policy, clients must not learn the names of models from the load.
    let names_models = guard.is_none();
    let load_reports =
        config.load_reports.map(|reporting| LoadReports::new(reporting, names_models, Arc::clone(&server)));
    let exposition = Exposition::new(metrics, process.backend_metrics);
    let mut exposition = exposition.with_pinned_memory(move || pinned_memory(&pools));
    if let Some(caching) = caching {
        exposition = exposition.with_response_cache(move || caches::metrics(&caching));
    }
    if let Some(guard) = guard.clone() {
        let of_guard = Arc::clone(&guard);
        exposition = exposition.with_principals(move || principals(&of_guard));
        exposition = exposition.with_access_policy(move || guard.is_valid());
    }
    if let Some(audit) = audit.clone() {
        exposition = exposition.with_audit(move || audit_events(&audit));
    }
    let remote = repositories.clone();
    let exposition = exposition.with_repositories(move || remote_repositories(&remote));
    let exposition = Arc::new(exposition.with_memory(move || memory(&residency)));
    // Weak: the metrics of repositories know these, and repositories know which backends use GPUs.
    let text = Arc::downgrade(&exposition);
    let text = move |server: &Server| text.upgrade().map_or_else(String::new, |text| text.text(server));
    platform.backends.libraries.attach(&server, text);

    let cuda = platform.gpus.cuda.clone();
    let python = config.platform.backends.settings_of("python");
    let regions = match config.client_shared_memory {
        true => Regions::new(process.memory_faults, cuda.clone())
            .with_reserved(python.get("shm-region-prefix-name").unwrap_or_default()),
        false => Regions::closed(),
    };
    let shutdown = CancellationToken::new();
    let closing = shutdown.child_token();
    let ends = shutdown.clone().drop_guard();
    let context = FaceContext {
        server: Arc::clone(&server),
        regions: Arc::new(regions),
        log: process.log,
        source: repositories.source.clone(),
        exposition: Arc::clone(&exposition),
        connections: Connections::default(),
        answers: Arc::default(),
        load_reports,
        guard,
        changes,
        advisor: Arc::new(advisor),
        wary,
        closing: closing.clone(),
        shutdown,
    };
    let serve = |face: BoundFace| face.serve(&runtime.handle, context.clone());
    let faces = bound.into_iter().map(serve).collect::<std::result::Result<_, _>>()?;
    let loaded = load(&server, repositories.source.clone(), config.models_at_start);
    if let Some(poll) = config.poll {
        let watched = poll.watch.then(|| repositories.folders.clone());
        let polling = poll::run(Arc::clone(&server), loaded.clone(), poll.interval, watched);
        runtime.handle.spawn(context.closing.run_until_cancelled_owned(polling));
    }
    Ok(RunningServer {
        server,
        repositories,
        exposition,
        cuda,
        audit,
        faces,
        loaded,
        closing,
        shutdown: ends,
        runtime,
    })
}

impl RunningServer {
    /// The server.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// The addresses of the faces, by the names of their protocols, with the ports that the system chose.
    pub fn addresses(&self) -> impl Iterator<Item = (&'static str, LocalAddress)> {
        self.faces.iter().map(|face| (face.protocol, face.address.clone()))
    }

    /// The model repositories.
    pub fn repositories(&self) -> &Repositories {
        &self.repositories.source
    }

    /// The repositories in clouds.
    pub fn remote_repositories(&self) -> Vec<RemoteRepository> {
        remote_repositories(&self.repositories)
    }

    /// Adds and removes repositories.
    pub fn registration(&self) -> Registration {
        Registration::new(&self.repositories)
    }

    /// The text of the metrics.
    pub fn exposition(&self) -> &Arc<Exposition> {
        &self.exposition
    }

    /// The driver of the GPUs, if any.
    pub fn cuda(&self) -> Option<&Arc<Cuda>> {
        self.cuda.as_ref()
    }

    /// The audit log, if there is one.
    pub fn audit_log(&self) -> Option<&Arc<AuditLog>> {
        self.audit.as_ref()
    }

    /// The runtime that the faces run on.
    pub fn runtime(&self) -> &Handle {
        &self.runtime.handle
    }

    /// Waits until the initial models have been loaded or have failed.
    pub async fn loaded(&self) -> LoadOutcome {
        outcome(self.loaded.clone()).await
    }

    /// Stops in order: refuses new requests of clients, waits for requests in progress and for open sequences, closes
    /// the connections, and unloads all models.
    ///
    /// # Errors
    /// Stopping took longer than `deadline`. The rest ends with the process.
    pub async fn stop(self, deadline: Duration) -> std::result::Result<(), StopError> {
        let Self { server, repositories, audit, faces, closing, shutdown, runtime, .. } = self;
        let handle = runtime.handle.clone();
        let stopping = handle.spawn(async move {
            let end = Instant::now().checked_add(deadline);
            server.begin_shutdown();
            closing.cancel();
            let drained = drain(&server, faces, shutdown, InTime { deadline, end }).await;
            // Even with requests in progress: traces of completed ones are kept.
            let closed = spawn_blocking(move || {
                server.trace().close();
                if let Some(audit) = audit {
                    audit.close();
                }
                repositories.remove_files();
            });
            let closed = closed.await;
            drained.and(closed.map_err(|panic| StopError::Task(panic.to_string())))
        });
        let stopped = stopping.await;
        drop(runtime);
        stopped.map_err(|panic| StopError::Task(panic.to_string()))?
    }
}

/// The limit of the time that stopping takes.
struct InTime {
    deadline: Duration,
    /// `None` if it is too far away for the clock.
    end: Option<Instant>,
}

impl InTime {
    /// The outcome of a step; an error if the time is over before.
    async fn step<T>(
        &self,
        step: impl Future<Output = std::result::Result<T, JoinError>>,
        late: impl FnOnce(Duration) -> StopError,
    ) -> std::result::Result<T, StopError> {
        let outcome = match self.end {
            Some(end) => timeout_at(end, step).await.map_err(|_| late(self.deadline))?,
            None => step.await,
        };
        outcome.map_err(|panic| StopError::Task(panic.to_string()))
    }
}

/// Logs how many inferences of each model have not ended.
fn report_in_flight(server: &Server) {
    for model in server.models().ready() {
        let count = model.statistics().in_flight();
        if count > 0 {
            tracing::info!(
                "Model '{}' (version {}) has {count} in-flight inferences",
                model.id(),
                model.version()
            );
        }
    }
}

/// Waits for requests and sequences in progress, then ends connections and models.
async fn drain(
    server: &Arc<Server>,
    faces: Vec<ServedFace>,
    shutdown: DropGuard,
    in_time: InTime,
) -> std::result::Result<(), StopError> {
    tracing::info!("Waiting for in-flight requests to complete");
    let worked = async {
        let mut next_report = Instant::now();
        while server.work() != Work::Nothing {
            if Instant::now() >= next_report {
                report_in_flight(server);
                next_report += REPORT_INTERVAL;
            }
            sleep(WORK_CHECK).await;
        }
        Ok(())
    };
    let late = |deadline| match server.work() {
        Work::Sequences => StopError::Sequences(deadline),
        Work::Requests | Work::Nothing => StopError::Deadline(deadline),
    };
    in_time.step(worked, late).await?;
    drop(shutdown);
    for face in faces {
        in_time.step(face.task, StopError::Deadline).await?;
    }
    let unloading = Arc::clone(server);
    in_time.step(spawn_blocking(move || unloading.unload_all()), StopError::Models).await
}

/// Waits for the outcome of the initial loads.
pub(crate) async fn outcome(mut loaded: watch::Receiver<Option<LoadOutcome>>) -> LoadOutcome {
    let interrupted = || Err(Error::internal("loading the models was interrupted"));
    match loaded.wait_for(Option::is_some).await {
        Ok(outcome) => outcome.clone().unwrap_or_else(interrupted),
        Err(_) => interrupted(),
    }
}

/// Loads on a separate thread, since a load may never end.
fn load(
    server: &Arc<Server>,
    source: Repositories,
    only: Option<Vec<String>>,
) -> watch::Receiver<Option<LoadOutcome>> {
    let (done, loaded) = watch::channel(None);
    let server = Arc::clone(server);
    thread::spawn(move || {
        let began = std::time::Instant::now();
        let outcome = server.start(only);
        if outcome.is_ok() {
            source.oddities(began).iter().for_each(|oddity| tracing::warn!("{oddity}"));
        }
        done.send_replace(Some(outcome));
    });
    loaded
}

fn remote_repositories(repositories: &OpenRepositories) -> Vec<RemoteRepository> {
    let of_status = |status: RepositoryStatus| RemoteRepository {
        location: status.location,
        is_reachable: status.is_reachable,
        fetched: status.fetched,
        fetching: status.fetching,
    };
    repositories.status().into_iter().map(of_status).collect()
}

fn memory(residency: &ResidencyManager) -> Vec<VersionMemory> {
    let mut all = Vec::new();
    for (id, version, memory) in residency.resident() {
        let measured = memory.measured.map(|it| [("server", it.server), ("processes", it.processes)]);
        for (kind, bytes) in measured.into_iter().flatten().chain([("budget", memory.budget)]) {
            all.push(VersionMemory { id: id.clone(), version, kind, gpu: None, bytes });
        }
        for GpuMemory { gpu, measured, budget } in memory.gpus {
            let kinds = [("gpu", measured), ("gpu_budget", Some(budget))];
            for (kind, bytes) in kinds.into_iter().filter_map(|(kind, bytes)| Some((kind, bytes?))) {
                all.push(VersionMemory { id: id.clone(), version, kind, gpu: Some(gpu), bytes });
            }
        }
    }
    all
}

fn principals(guard: &Guard) -> Vec<PrincipalMetrics> {
    let of_principal = |(name, PrincipalUsage { admitted, refused, bytes, compute, tokens })| {
        PrincipalMetrics { name, admitted, refused, bytes, compute, tokens }
    };
    guard.usage().into_iter().map(of_principal).collect()
}

/// Announces decisions about releases, and audits automatic ones.
fn announced(
    server: &Arc<Server>,
    changes: &Arc<ClientChanges>,
) -> impl Fn(ReleaseDecision<'_>) + Send + Sync + 'static {
    let (server, changes) = (Arc::downgrade(server), Arc::clone(changes));
    move |decision| {
        if let Some(server) = server.upgrade() {
            server.announce_change();
        }
        if decision.is_automatic {
            let ReleaseDecision { id, version, verdict, reason, .. } = decision;
            changes.record(&AuditEvent {
                caller: None,
                action: Action::ChangeRelease,
                subject: Some(&id.name),
                request: None,
                reason: Some(&format!("version {version} was {}: {reason}", verdict.name())),
                outcome: AuditOutcome::Done,
            });
        }
    }
}

fn audit_events(audit: &AuditLog) -> AuditEvents {
    let AuditCounts { written, lost, omitted } = audit.counts();
    AuditEvents { written, lost, omitted }
}

fn pinned_memory(pools: &Pools) -> PinnedMemory {
    let usage = pools.pinned_usage();
    usage.map_or_else(PinnedMemory::default, |PoolUsage { used, total }| PinnedMemory { total, used })
}

/// The caller's runtime, or one that ends with the server.
struct OwnRuntime {
    handle: Handle,
    own: Option<IoRuntime>,
}

impl OwnRuntime {
    fn new(given: Option<Handle>) -> std::result::Result<Self, StartError> {
        if let Some(handle) = given {
            return Ok(Self { handle, own: None });
        }
        let threads = available_parallelism().map_or(1, usize::from);
        let runtime = io_runtime::start(threads).map_err(StartError::Runtime)?;
        Ok(Self { handle: runtime.handle().clone(), own: Some(runtime) })
    }
}

impl Drop for OwnRuntime {
    fn drop(&mut self) {
        // Does not block, so it may run on the runtime's own threads.
        if let Some(runtime) = self.own.take() {
            runtime.shutdown_background();
        }
    }
}
