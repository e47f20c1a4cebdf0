//! The options about models: where they come from, which are loaded, and when.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::gpu::gpu_bytes;
use super::values::{boolean, int, whole};
use clap::{ArgAction, Args, ValueEnum};
use nereid_assembly::{CacheOptions, MemoryRecords, PollConfig, ResidencyOptions};
use nereid_core::ModelControl;

/// The value of `--model-memory-directory` that keeps nothing.
const NO_RECORDS: &str = "none";

/// Options of repositories and of the models to load.
#[derive(Debug, Args)]
#[command(next_help_heading = "Models")]
pub(crate) struct ModelOptions {
    /// Model repository: a folder with a subfolder for each model, or an address: a bucket (s3://, gs://, as://), a hub
    /// (hf://), a registry (oci://) or an archive (https://). May be given several times. Default: the folder models in the
    /// current folder, if there is one.
    #[arg(long, visible_alias = "model-store", value_name = "PATH", action = ArgAction::Append)]
    model_repository: Vec<PathBuf>,

    /// Folder for files downloaded from clouds, so that a restart fetches only changed files. Servers may share it.
    /// Default: a temporary folder that keeps files while a model uses them.
    #[arg(long, value_name = "PATH")]
    repository_cache_directory: Option<PathBuf>,

    /// Maximum bytes of files in --repository-cache-directory; the least recently used files are deleted, except those of
    /// loaded models. Default: no limit.
    #[arg(long, value_name = "BYTES", value_parser = whole::<u64>())]
    repository_cache_byte_size: Option<u64>,

    /// Serve models of the same name in different repositories side by side, instead of refusing them. Clients reach
    /// only those whose name is unique.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean(), action = ArgAction::Set)]
    model_namespacing: bool,

    /// How models are loaded and unloaded while the server runs.
    #[arg(long, value_name = "MODE", value_enum, default_value_t, ignore_case = true)]
    model_control_mode: ModelControlMode,

    /// Model to load at start, with --model-control-mode=explicit or on-demand; * for all. May be given several times.
    #[arg(long, value_name = "NAME", action = ArgAction::Append)]
    load_model: Vec<String>,

    /// Seconds between two polls of the repositories, with --model-control-mode=poll or on-demand. A change is loaded once
    /// two polls agree on it. 0 for no poll.
    #[arg(long, value_name = "SECONDS", default_value_t = 15, value_parser = int::<u64>())]
    repository_poll_secs: u64,

    /// With --model-control-mode=poll or on-demand, also poll the repositories as soon as the file system reports a change. A change
    /// is still loaded only once two polls agree on it.
    #[arg(long, value_name = "BOOL", default_value = "false", value_parser = boolean(), action = ArgAction::Set)]
    repository_watch: bool,

    /// Number of models loaded in parallel; 0 loads them one after the other.
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = int::<usize>())]
    model_load_thread_count: usize,

    /// Number of retries of a failed load.
    #[arg(long, value_name = "COUNT", default_value_t = 0, value_parser = int::<usize>())]
    model_load_retry_count: usize,

    /// Seconds that a request waits at most while its model is loaded on demand; 0 refuses it at once, and loads the model
    /// for the next one.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = whole::<u32>())]
    on_demand_wait_secs: u32,

    /// Seconds until a model that could not be loaded on demand is loaded for a request again. Each further failure doubles
    /// them, up to eight times.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = whole::<u32>())]
    on_demand_retry_secs: u32,

    /// Bytes that models may take in memory. The least valuable ones leave for others, and are loaded again by their next
    /// request. Default: no limit.
    #[arg(long, value_name = "BYTES", value_parser = whole::<u64>())]
    model_memory_budget: Option<u64>,

    /// Bytes of a GPU's memory that models may take, like --model-memory-budget. May be given several times; the last value
    /// for a GPU counts. Default: no limit.
    #[arg(long, value_name = "GPU:BYTES", value_parser = gpu_bytes, action = ArgAction::Append)]
    model_gpu_memory_budget: Vec<(i32, u64)>,

    /// Folder for records of the memory that models took and of the time to load them, which a restarted server expects of
    /// unchanged models. Servers may share it; none keeps nothing. Default: under a budget, model-memory in the user's cache
    /// (~/.cache/nereid).
    #[arg(long, value_name = "PATH")]
    model_memory_directory: Option<PathBuf>,

    /// Models that may leave in a minute to make room for others under --model-memory-budget; further loads have to wait.
    #[arg(long, value_name = "COUNT", default_value_t = 60, value_parser = whole::<u32>())]
    model_max_evictions_per_minute: u32,

    /// Seconds without requests after which a model leaves the memory until its next request; 0 for never.
    #[arg(long, value_name = "SECONDS", default_value_t = 0, value_parser = whole::<u32>())]
    model_idle_timeout: u32,
}

/// How models are loaded and unloaded while the server runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum ModelControlMode {
    /// Only at start, all of them
    #[default]
    None,
    /// Clients, by requests
    Explicit,
    /// The server, which polls the repositories for changes
    Poll,
    /// Requests, which wait while their model is loaded
    OnDemand,
}

impl ModelOptions {
    pub(super) fn repositories(&self) -> Vec<PathBuf> {
        self.model_repository.clone()
    }

    /// Serves one repository, if none is named.
    pub(super) fn set_repository(&mut self, path: &str) {
        if self.model_repository.is_empty() {
            self.model_repository.push(path.into());
        }
    }

    /// The cache of downloaded files.
    pub(super) fn cache(&self) -> CacheOptions {
        let (directory, byte_size) =
            (self.repository_cache_directory.clone(), self.repository_cache_byte_size);
        CacheOptions { directory, byte_size, is_temporary: false }
    }

    pub(super) fn namespacing(&self) -> bool {
        self.model_namespacing
    }

    /// The models to load at start; `None` for all.
    pub(super) fn at_start(&self) -> Option<Vec<String>> {
        let all = !self.names_models() || self.load_model == ["*"];
        (!all).then(|| self.load_model.clone())
    }

    /// How to poll the repositories; `None` in other modes.
    pub(super) fn poll(&self) -> Option<PollConfig> {
        let polls = self.follows_repositories() && self.repository_poll_secs > 0;
        polls.then(|| PollConfig {
            interval: Duration::from_secs(self.repository_poll_secs),
            watch: self.repository_watch,
        })
    }

    pub(super) fn control(&self) -> ModelControl {
        match self.model_control_mode {
            ModelControlMode::None => ModelControl::None,
            ModelControlMode::Explicit => ModelControl::Explicit,
            ModelControlMode::Poll => ModelControl::Poll,
            ModelControlMode::OnDemand => ModelControl::OnDemand,
        }
    }

    /// Which models are in memory.
    pub(super) fn residency(&self) -> ResidencyOptions {
        ResidencyOptions {
            all_on_demand: self.model_control_mode == ModelControlMode::OnDemand,
            wait: Duration::from_secs(self.on_demand_wait_secs.into()),
            retry_pause: Duration::from_secs(self.on_demand_retry_secs.into()),
            memory_budget: self.model_memory_budget,
            gpu_memory_budgets: self.model_gpu_memory_budget.iter().copied().collect(),
            evictions_a_minute: usize::try_from(self.model_max_evictions_per_minute).unwrap_or(usize::MAX),
            idle_timeout: (self.model_idle_timeout > 0)
                .then(|| Duration::from_secs(self.model_idle_timeout.into())),
            records: None,
        }
    }

    /// Whether models may take a part of some memory only.
    fn has_budget(&self) -> bool {
        self.model_memory_budget.is_some() || !self.model_gpu_memory_budget.is_empty()
    }

    /// Where the memory of models is recorded.
    pub(super) fn memory_records(&self) -> MemoryRecords {
        match &self.model_memory_directory {
            Some(none) if none == Path::new(NO_RECORDS) => MemoryRecords::Off,
            Some(folder) => MemoryRecords::Folder(folder.clone()),
            None if self.has_budget() => MemoryRecords::UserCache,
            None => MemoryRecords::Off,
        }
    }

    /// Whether only the named models are loaded at start.
    fn names_models(&self) -> bool {
        matches!(self.model_control_mode, ModelControlMode::Explicit | ModelControlMode::OnDemand)
    }

    /// Whether the server polls the repositories.
    fn follows_repositories(&self) -> bool {
        matches!(self.model_control_mode, ModelControlMode::Poll | ModelControlMode::OnDemand)
    }

    pub(super) fn load_threads(&self) -> usize {
        self.model_load_thread_count.max(1)
    }

    pub(super) fn load_retries(&self) -> usize {
        self.model_load_retry_count
    }

    /// A conflict between options.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        if self.repository_cache_byte_size.is_some() && self.repository_cache_directory.is_none() {
            Some(
                "--repository-cache-byte-size needs --repository-cache-directory; a temporary cache keeps nothing",
            )
        } else if self.repository_watch && !self.follows_repositories() {
            Some(
                "--repository-watch needs --model-control-mode=poll or on-demand; other modes do not poll the repositories",
            )
        } else if self.repository_watch && self.repository_poll_secs == 0 {
            Some("--repository-watch polls at changes, which --repository-poll-secs=0 rules out")
        } else if self.load_model.is_empty() {
            None
        } else if !self.names_models() {
            Some("--load-model needs --model-control-mode=explicit or on-demand; other modes load all models")
        } else if self.load_model.len() > 1 && self.load_model.iter().any(|name| name == "*") {
            Some("--load-model=* loads all models, so other --load-model options are not allowed")
        } else {
            None
        }
    }
}
