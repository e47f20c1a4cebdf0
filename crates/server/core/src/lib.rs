//! The server without a face: the model table, admission of requests, scheduling, execution and statistics.
//!
//! [`Server::infer`] is the one way in for every protocol. This crate knows of no protocol, no framework, no storage
//! and no C; models come from a source, and backends are registered by the program that assembles the server.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

#[cfg(test)]
extern crate self as nereid_core;

mod admission;
mod backends;
mod caller;
mod classification;
mod completion;
mod compute_sum;
mod events;
mod executor;
mod gpu_limits;
mod host_policies;
mod inflight;
mod instance;
mod interceptors;
mod lifecycle;
mod load_guard;
mod model;
mod peers;
mod readiness;
mod readiness_watch;
mod release;
mod reminder;
mod repository_agent;
mod request_head;
mod scope;
mod server;
mod signature;
mod source;
mod spec;
mod table;
mod versions;
mod warm_up;

pub use backends::Backends;
pub use caller::{Admission, Caller, Principal, Usage};
pub use completion::{complete_config, try_load};
pub use compute_sum::ComputeSum;
pub use events::Changes;
pub use executor::{
    BuildError, Composite, Executable, Executor, ExecutorFactory, Executors, ReadyCheck, Sequences,
    VersionLoad, not_offered,
};
pub use gpu_limits::GpuLimits;
pub use host_policies::HostPolicies;
pub use inflight::{Canceller, ResponseStream};
pub use interceptors::{
    Decision, Interceptor, InterceptorFactory, Interceptors, LoadedVersion, QueueListener, ReleaseFactory,
    Step, WaitingStep,
};
pub use load_guard::{LoadGuard, LoadHooks};
pub use model::{INSTANCES_MAX, INSTANCES_MIN, Model, Work};
pub use nereid_affinity as placement;
pub use nereid_backend_api as backend_api;
pub use nereid_backend_api::{
    FamilySnapshot, HistogramValue, Metric, MetricFamily, MetricKind, MetricLabels, MetricRegistry,
    MetricValue, TraceLevel,
};
pub use nereid_model_config as model_config;
pub use nereid_scheduling::rate_limiter::{RateLimit, ResourceLimit};
pub use nereid_scheduling::shedding::LoadShedding;
pub use nereid_scheduling::timer;
pub use nereid_scheduling::{
    Adaptation, Claim, Enqueued, Item, OpenSequence, Refusal, Scheduler, Ticket, WaitingLevel,
};
pub use nereid_statistics::{
    BatchStatistics, DurationStatistics, FailureReason, InferStatistics, Latencies, LatencyOptions,
    LatencyPhase, LatencySummary, ModelStatistics, ResponseStatistics, Totals,
};
pub use readiness_watch::ReadinessWatch;
pub use release::{AnswerDifference, Release, ReleaseStatus, ReleasedVersion, Verdict};
pub use repository_agent::{
    AgentAction, AgentContext, AgentFolders, AgentModel, ModelLocation, RepositoryAgent,
};
pub use request_head::RequestHead;
pub use scope::{Scope, ScopedName};
pub use server::{ModelControl, Server, ServerOptions};
pub use signature::{InputSignature, OutputSignature, Signature};
pub use source::{
    BlockingSource, FetchStatus, FetchedModel, ModelSource, Overrides, Progress, SourceEntry, SourceFuture,
};
pub use spec::{Completion, Fingerprint, Labels, ModelId, ModelSpec, Origin};
pub use table::{ModelStatus, ModelTable, ServedModels, VersionState};
pub use versions::{
    Choice, GpuMemory, InferTarget, MeasuredMemory, MemoryBasis, ModelMemory, ModelRequest, Residency,
    ResolveFuture, ResolvedModel, VersionChooser, VersionChoosers,
};
