//! Turns a model's configuration into options of ONNX Runtime's sessions.
//!
//! Names and meaning are the same as in Triton's backend, except for the default number of threads: see
//! [`SessionOptions::of`].

use std::num::NonZeroUsize;
use std::ops::{Deref, DerefMut};
use std::path::Path;

use nereid_backend_api::{Error, InstanceKind, ModelConfig, Result};
use nereid_dylib::InUse;
use nereid_model_config::proto::model_instance_group::Kind;
use ort::ep;
use ort::session::builder::{GraphOptimizationLevel, SessionBuilder};
use ort::session::{RunOptions, Session};

use crate::accelerators::Accelerators;
use crate::library::{OnnxRuntime, log_level};
use crate::{Source, one_line};

/// Prefix of parameters that are entries of a session's configuration.
const SESSION_ENTRY: &str = "session.";
/// The one parameter that is an entry of a run's configuration.
const ARENA_SHRINKAGE: &str = "memory.enable_memory_arena_shrinkage";

/// The options of a model's sessions.
#[derive(Debug)]
pub(crate) struct SessionOptions {
    level: Level,
    parallel: bool,
    threads: Threads,
    arena: Option<bool>,
    memory_pattern: Option<bool>,
    entries: Vec<(String, String)>,
    arena_shrinkage: Option<String>,
    operator_libraries: Vec<String>,
    accelerators: Accelerators,
}

/// A session, and a token that it is alive.
#[derive(Debug)]
pub(crate) struct OwnSession {
    session: Session,
    /// Dropped after the session.
    _alive: InUse,
}

impl Deref for OwnSession {
    type Target = Session;

    fn deref(&self) -> &Session {
        &self.session
    }
}

impl DerefMut for OwnSession {
    fn deref_mut(&mut self) -> &mut Session {
        &mut self.session
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Basic,
    Extended,
    All,
    None,
}

/// The threads that a session runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Threads {
    /// The global pool of all sessions.
    Shared,
    /// Threads of the session's own: within operators and, if operators run in parallel, across them.
    Own { intra: usize, inter: usize },
}

impl SessionOptions {
    /// Reads a configuration. By default the model's instances share the processors: each session has an equal share of them
    /// as threads within operators, at least one.
    ///
    /// # Errors
    /// `InvalidArg` for an invalid parameter, by name; `Unsupported` for an accelerator that the
    /// library lacks.
    pub(crate) fn of(config: &ModelConfig, runtime: &OnnxRuntime, processors: NonZeroUsize) -> Result<Self> {
        let parameter = |key: &str| config.parameters.get(key).map(|value| value.string_value.as_str());
        let count = |key: &str| {
            let Some(value) = parameter(key) else { return Ok(0) };
            number(value).ok_or_else(|| wrong(key, value, "a non-negative integer"))
        };
        let flag = |key: &str| {
            parameter(key)
                .map(|value| boolean(value).ok_or_else(|| wrong(key, value, "1 or 0, true or false")))
                .transpose()
        };
        let parallel = match count("execution_mode")? {
            0 => false,
            1 => true,
            other => {
                return Err(wrong("execution_mode", &other.to_string(), "0 (sequential) or 1 (parallel)"));
            }
        };
        let share = (processors.get() / instances(config)).max(1);
        let or_share = |count: usize| if count == 0 { share } else { count };
        let (intra, inter) = (count("intra_op_thread_count")?, count("inter_op_thread_count")?);
        let threads = if runtime.has_global_pool() {
            Threads::Shared
        } else {
            Threads::Own { intra: or_share(intra), inter: or_share(inter) }
        };
        let entries = config.parameters.iter().filter(|(key, _)| key.starts_with(SESSION_ENTRY));
        let mut entries: Vec<_> =
            entries.map(|(key, value)| (key.clone(), value.string_value.clone())).collect();
        entries.sort();
        let graph = config.optimization.as_ref().and_then(|optimization| optimization.graph.as_ref());
        Ok(Self {
            level: match graph.map_or(0, |graph| graph.level) {
                -1 => Level::Basic,
                1 => Level::Extended,
                2 => Level::None,
                _ => Level::All,
            },
            parallel,
            threads,
            arena: flag("enable_mem_arena")?,
            memory_pattern: flag("enable_mem_pattern")?,
            entries,
            arena_shrinkage: parameter(ARENA_SHRINKAGE).map(str::to_owned),
            operator_libraries: config
                .model_operations
                .as_ref()
                .map_or_else(Vec::new, |operations| operations.op_library_filename.clone()),
            accelerators: Accelerators::of(config, runtime.providers())?,
        })
    }

    /// Creates a session for the model and an instance of this kind.
    ///
    /// # Errors
    /// The library failed.
    pub(crate) fn session(&self, source: &Source, kind: InstanceKind) -> Result<OwnSession> {
        let alive = InUse::new();
        let path = source.path();
        let with_path = |error: ort::Error<SessionBuilder>| crate::with_path(path, &error);
        let mut builder = SessionBuilder::new().map_err(|error| crate::with_path(path, &error))?;
        builder = builder.with_log_level(log_level()).map_err(with_path)?;
        builder = builder.with_optimization_level(self.level.into()).map_err(with_path)?;
        builder = builder.with_parallel_execution(self.parallel).map_err(with_path)?;
        if let Threads::Own { intra, inter } = self.threads {
            builder = builder.with_intra_threads(intra).map_err(with_path)?;
            if self.parallel {
                builder = builder.with_inter_threads(inter).map_err(with_path)?;
            }
        }
        if let Some(enable) = self.memory_pattern {
            builder = builder.with_memory_pattern(enable).map_err(with_path)?;
        }
        for (key, value) in &self.entries {
            builder = builder.with_config_entry(key, value).map_err(with_path)?;
        }
        for library in &self.operator_libraries {
            // A name without a slash is searched where the system's libraries are.
            if library.contains('/') {
                nereid_model_files::check(Path::new(library)).map_err(|error| {
                    Error::invalid_arg(format!("cannot load the operator library '{library}': {error}"))
                })?;
            }
            builder = builder.with_operator_library(library).map_err(with_path)?;
        }
        let mut providers = self.accelerators.for_kind(kind)?;
        if let Some(enable) = self.arena {
            providers.push(ep::CPU::default().with_arena_allocator(enable).build().error_on_failure());
        }
        builder = builder.with_execution_providers(providers).map_err(with_path)?;
        let session = match source {
            Source::File(path) => builder.commit_from_file(path),
            Source::Memory { onnx, .. } => builder.commit_from_memory(onnx),
        };
        let session = session.map_err(|error| crate::with_path(path, &error))?;
        Ok(OwnSession { session, _alive: alive })
    }

    /// Options for the runs of a session.
    ///
    /// # Errors
    /// The library failed.
    pub(crate) fn run_options(&self) -> Result<RunOptions> {
        let failed = |error: ort::Error| {
            Error::internal(format!("ONNX Runtime takes no options for runs: {}", one_line(error.message())))
        };
        let mut options = RunOptions::new().map_err(failed)?;
        if let Some(arenas) = &self.arena_shrinkage {
            options.set(ARENA_SHRINKAGE, arenas).map_err(failed)?;
        }
        Ok(options)
    }

    /// See [`Accelerators::describe`].
    pub(crate) fn describe_accelerators(&self, config: &ModelConfig) -> String {
        self.accelerators.describe(config)
    }

    /// For the log.
    pub(crate) fn describe_threads(&self) -> String {
        match self.threads {
            Threads::Shared => "the global thread pool".to_owned(),
            Threads::Own { intra: 1, .. } => "1 thread to an instance".to_owned(),
            Threads::Own { intra, .. } => format!("{intra} threads to an instance"),
        }
    }
}

impl From<Level> for GraphOptimizationLevel {
    fn from(level: Level) -> Self {
        match level {
            Level::Basic => Self::Level1,
            Level::Extended => Self::Level2,
            Level::All => Self::All,
            Level::None => Self::Disable,
        }
    }
}

/// The number of instances that share the processors: those that do not run on a GPU.
fn instances(config: &ModelConfig) -> usize {
    let on_processor = config.instance_group.iter().filter(|group| group.kind() != Kind::Gpu);
    let count: usize = on_processor.map(|group| usize::try_from(group.count).unwrap_or(0).max(1)).sum();
    count.max(1)
}

/// A number of threads, within the range of the library's type.
pub(crate) fn number(text: &str) -> Option<usize> {
    text.trim().parse::<i32>().ok().and_then(|number| usize::try_from(number).ok())
}

/// A boolean, in the reference's notation.
fn boolean(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

fn wrong(key: &str, value: &str, right: &str) -> Error {
    Error::invalid_arg(format!("parameter '{key}' is '{value}', but takes {right}"))
}

#[cfg(test)]
mod tests {
    use nereid_model_config::proto::model_optimization_policy::Graph;
    use nereid_model_config::proto::{ModelInstanceGroup, ModelOptimizationPolicy, ModelParameter};

    use super::*;

    fn config(parameters: &[(&str, &str)]) -> ModelConfig {
        let parameter = |value: &str| ModelParameter { string_value: value.to_owned() };
        let parameters = parameters.iter().map(|&(key, value)| (key.to_owned(), parameter(value))).collect();
        ModelConfig { parameters, ..ModelConfig::default() }
    }

    fn options(config: &ModelConfig) -> Result<SessionOptions> {
        let runtime = OnnxRuntime::imagined(&["CPUExecutionProvider"]);
        SessionOptions::of(config, &runtime, NonZeroUsize::new(8).unwrap())
    }

    #[test]
    fn instances_share_the_processors_unless_configured_otherwise() {
        let threads = |counts: &[i32], parameters: &[(&str, &str)]| {
            let mut config = config(parameters);
            let group = |&count| ModelInstanceGroup { count, ..ModelInstanceGroup::default() };
            config.instance_group = counts.iter().map(group).collect();
            options(&config).unwrap().threads
        };
        let own = |intra, inter| Threads::Own { intra, inter };
        assert_eq!(threads(&[], &[]), own(8, 8));
        assert_eq!(threads(&[2], &[]), own(4, 4));
        assert_eq!(threads(&[2, 1], &[]), own(2, 2));
        assert_eq!(threads(&[100], &[]), own(1, 1));
        assert_eq!(threads(&[2], &[("intra_op_thread_count", "8")]), own(8, 4));
        assert_eq!(
            threads(&[2], &[("intra_op_thread_count", "0"), ("inter_op_thread_count", "3")]),
            own(4, 3)
        );
    }

    #[test]
    fn sessions_have_no_threads_of_their_own_beside_a_global_pool() {
        let mut runtime = OnnxRuntime::imagined(&[]);
        runtime.share_threads();
        let options =
            SessionOptions::of(&config(&[("intra_op_thread_count", "3")]), &runtime, NonZeroUsize::MIN);
        assert_eq!(options.unwrap().threads, Threads::Shared);
    }

    #[test]
    fn levels_of_optimization_are_those_of_the_reference() {
        let level = |level| {
            let graph = Some(Graph { level });
            let optimization = Some(ModelOptimizationPolicy { graph, ..ModelOptimizationPolicy::default() });
            options(&ModelConfig { optimization, ..ModelConfig::default() }).unwrap().level
        };
        assert_eq!(
            [-1, 0, 1, 2, 3].map(level),
            [Level::Basic, Level::All, Level::Extended, Level::None, Level::All]
        );
        assert_eq!(options(&ModelConfig::default()).unwrap().level, Level::All);
    }

    #[test]
    fn parameters_with_wrong_values_are_named_with_what_would_be_right() {
        for (key, value, right) in [
            ("execution_mode", "2", "0 (sequential) or 1 (parallel)"),
            ("execution_mode", "parallel", "a non-negative integer"),
            ("intra_op_thread_count", "-1", "a non-negative integer"),
            ("inter_op_thread_count", "99999999999", "a non-negative integer"),
            ("enable_mem_arena", "maybe", "1 or 0, true or false"),
            ("enable_mem_pattern", "", "1 or 0, true or false"),
        ] {
            let error = options(&config(&[(key, value)])).unwrap_err();
            let expected = format!("parameter '{key}' is '{value}', but takes {right}");
            assert!(error.message().starts_with(&expected), "{error}");
        }
    }

    #[test]
    fn entries_of_the_session_go_to_the_session() {
        let given =
            [("session.intra_op.allow_spinning", "0"), ("other", "1"), ("session.disable_prepacking", "1")];
        let expected = [("session.disable_prepacking", "1"), ("session.intra_op.allow_spinning", "0")];
        let expected = expected.map(|(key, value)| (key.to_owned(), value.to_owned()));
        assert_eq!(options(&config(&given)).unwrap().entries, expected);
    }
}
