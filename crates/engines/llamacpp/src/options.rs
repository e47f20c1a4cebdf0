//! The parameters of a model's configuration: how many sequences, how long, on how many threads.

use std::thread::available_parallelism;
use std::time::Duration;

use nereid_backend_api::{Error, InstanceKind, ModelConfig, Result};

use crate::engine::Limits;

/// Sequences of an instance by default.
const SEQUENCES: usize = 8;

/// The most sequences that the library supports.
const MAX_SEQUENCES: usize = 256;

/// The longest context that a model gets by default.
const CONTEXT: usize = 4096;

/// Tokens in the cache by default, for each sequence: many requests are shorter than the context.
const CACHE: usize = 1024;

/// Tokens of a batch by default.
const BATCH: usize = 512;

/// The most tokens of a guess, and how many a draft model guesses by default.
const MAX_GUESS: usize = 32;
const DRAFT_GUESS: usize = 4;

/// The least probability of a token that a draft model guesses, by default.
const LIKELY: f32 = 0.7;

/// All layers of a model.
const ALL_LAYERS: i32 = -1;

/// The choices of a model's configuration.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    sequences: usize,
    /// `None` for the model's, up to [`CONTEXT`].
    context: Option<usize>,
    /// `None` for [`CACHE`] for each sequence, and at least one context.
    cache: Option<usize>,
    batch: usize,
    pub(crate) threads: usize,
    /// `None` for all if the instance is on a GPU, otherwise none.
    gpu_layers: Option<i32>,
    pub(crate) time_limit: Option<Duration>,
    /// The most tokens that are guessed for a request; 0 for none.
    pub(crate) speculative_tokens: usize,
    /// The file of the model that guesses them; `None` to look them up in the text.
    pub(crate) draft_model: Option<String>,
    /// The least probability of a token that it guesses.
    pub(crate) draft_probability: f32,
    /// Whether embeddings have the length 1.
    pub(crate) normalizes: bool,
    /// Whether requests of different senders share cached prefixes.
    pub(crate) shares_prefixes: bool,
    /// The most bytes of cached prefixes in files; `None` to keep none there.
    pub(crate) spill_bytes: Option<u64>,
}

impl Options {
    /// Reads a configuration.
    ///
    /// # Errors
    /// `InvalidArg` for an invalid parameter, by name.
    pub(crate) fn of(config: &ModelConfig) -> Result<Self> {
        let number = |key: &str, least: u32, most: u32| {
            let Some(value) = config.parameters.get(key).map(|value| value.string_value.trim()) else {
                return Ok(None);
            };
            let number = value.parse::<u32>().ok().filter(|number| (least..=most).contains(number));
            let number = number.ok_or_else(|| {
                Error::invalid_arg(format!(
                    "parameter '{key}' is '{value}', but must be a number from {least} to {most}"
                ))
            })?;
            Ok(Some(number))
        };
        let size = |key: &str, least: u32, most: usize| {
            Ok(number(key, least, u32::try_from(most).unwrap_or(u32::MAX))?
                .and_then(|number| usize::try_from(number).ok()))
        };
        let spill_bytes = match config.parameters.get("prefix_cache_disk_bytes") {
            None => None,
            Some(value) => Some(value.string_value.trim().parse::<u64>().map_err(|_| {
                Error::invalid_arg(format!(
                    "parameter 'prefix_cache_disk_bytes' is '{}', but must be a number of bytes",
                    value.string_value
                ))
            })?),
        };
        let sequences = size("max_sequences", 1, MAX_SEQUENCES)?.unwrap_or(SEQUENCES);
        let batch = size("batch_tokens", 1, 1 << 16)?.unwrap_or(BATCH);
        if batch < sequences {
            return Err(Error::invalid_arg(format!(
                "parameter 'batch_tokens' is {batch}, but must be at least 'max_sequences' ({sequences}): each sequence has a \
                 token in every batch"
            )));
        }
        let draft_model =
            config.parameters.get("draft_model").map(|value| value.string_value.trim().to_owned());
        let guess = if draft_model.is_some() { DRAFT_GUESS } else { 0 };
        let processors = available_parallelism().map_or(1, usize::from);
        let instances =
            config.instance_group.iter().map(|group| usize::try_from(group.count).unwrap_or(1).max(1));
        let share = (processors / instances.sum::<usize>().max(1)).max(1);
        Ok(Self {
            sequences,
            context: size("context_length", 8, 1 << 24)?,
            cache: size("cache_tokens", 8, 1 << 28)?,
            batch,
            // Threads wait for each other without sleeping: more than there are processors would make each token take seconds.
            threads: size("threads", 1, 1024)?.unwrap_or(1).min(share),
            gpu_layers: number("gpu_layers", 0, 10_000)?.and_then(|number| i32::try_from(number).ok()),
            time_limit: number("time_limit_seconds", 0, u32::MAX)?
                .filter(|seconds| *seconds > 0)
                .map(|seconds| Duration::from_secs(u64::from(seconds))),
            speculative_tokens: size("speculative_tokens", 0, MAX_GUESS)?.unwrap_or(guess),
            draft_model,
            draft_probability: probability(config, "draft_min_probability")?.unwrap_or(LIKELY),
            normalizes: match config.parameters.get("normalize").map(|value| value.string_value.trim()) {
                None | Some("true") => true,
                Some("false") => false,
                Some(other) => {
                    return Err(Error::invalid_arg(format!(
                        "parameter 'normalize' is '{other}', but must be true or false"
                    )));
                }
            },
            shares_prefixes: match config
                .parameters
                .get("prefix_cache")
                .map(|value| value.string_value.trim())
            {
                None | Some("principal") => false,
                Some("shared") => true,
                Some(other) => {
                    return Err(Error::invalid_arg(format!(
                        "parameter 'prefix_cache' is '{other}', but must be principal or shared"
                    )));
                }
            },
            spill_bytes: spill_bytes.filter(|bytes| *bytes > 0),
        })
    }

    /// How many layers of a model go to a GPU.
    pub(crate) fn gpu_layers(&self, kind: InstanceKind) -> i32 {
        self.gpu_layers.unwrap_or(match kind {
            InstanceKind::Gpu(_) | InstanceKind::Model => ALL_LAYERS,
            InstanceKind::Cpu => 0,
        })
    }

    /// The most requests that execute together.
    pub(crate) fn sequences(&self) -> usize {
        self.sequences
    }

    /// As [`limits`](Self::limits), for embeddings: a text has to fit into one batch, and the cache holds one batch.
    pub(crate) fn embedding_limits(&self, trained: usize) -> Limits {
        let limits = self.limits(trained);
        let batch = limits.batch.max(limits.context);
        Limits { cache: batch, batch, ..limits }
    }

    /// The limits of a context for a model that was trained with contexts of this length, or 0 if that is unknown.
    pub(crate) fn limits(&self, trained: usize) -> Limits {
        let model = if trained == 0 { CONTEXT } else { trained.min(CONTEXT) };
        let context = self.context.unwrap_or(model);
        let all = context.saturating_mul(self.sequences);
        let cache = self.cache.unwrap_or(self.sequences * CACHE).clamp(context.max(self.sequences), all);
        Limits { sequences: self.sequences, context, cache, batch: self.batch.min(cache) }
    }
}

/// A parameter from 0 to 1.
fn probability(config: &ModelConfig, key: &str) -> Result<Option<f32>> {
    let Some(value) = config.parameters.get(key).map(|value| value.string_value.trim()) else {
        return Ok(None);
    };
    let number = value.parse::<f32>().ok().filter(|number| (0.0..=1.0).contains(number));
    number.map(Some).ok_or_else(|| {
        Error::invalid_arg(format!("parameter '{key}' is '{value}', but must be a number from 0 to 1"))
    })
}

#[cfg(test)]
mod tests {
    use nereid_testkit::normalised;

    use super::*;

    fn options(parameters: &[(&str, &str)]) -> Result<Options> {
        let parameter = |(key, value): &(&str, &str)| {
            format!("parameters {{ key: '{key}' value {{ string_value: '{value}' }} }}\n")
        };
        let parameters: String = parameters.iter().map(parameter).collect();
        Options::of(&normalised("m", &format!("backend: 'llamacpp'\n{parameters}")))
    }

    #[test]
    fn parameters_set_the_limits() {
        let limits = |sequences, context, cache, batch| Limits { sequences, context, cache, batch };
        for (parameters, trained, expected) in [
            (&[][..], 131_072, limits(8, 4096, 8192, 512)),
            (&[], 2048, limits(8, 2048, 8192, 512)),
            (&[], 512, limits(8, 512, 4096, 512)),
            (&[], 0, limits(8, 4096, 8192, 512)),
            (&[("max_sequences", "1")], 2048, limits(1, 2048, 2048, 512)),
            (&[("max_sequences", "1")], 256, limits(1, 256, 256, 256)),
            (&[("cache_tokens", "8"), ("context_length", "8")], 256, limits(8, 8, 8, 8)),
            (
                &[("cache_tokens", "8"), ("context_length", "8"), ("max_sequences", "20")],
                256,
                limits(20, 8, 20, 20),
            ),
            (&[("cache_tokens", "10000")], 2048, limits(8, 2048, 10_000, 512)),
            (&[("cache_tokens", "100")], 2048, limits(8, 2048, 2048, 512)),
            (&[("cache_tokens", "1000000")], 2048, limits(8, 2048, 16_384, 512)),
            (&[("max_sequences", "16"), ("context_length", "8192")], 2048, limits(16, 8192, 16_384, 512)),
            (&[("max_sequences", "256"), ("batch_tokens", "256")], 2048, limits(256, 2048, 262_144, 256)),
        ] {
            assert_eq!(options(parameters).unwrap().limits(trained), expected);
        }
    }

    #[test]
    fn embeddings_take_one_batch() {
        let limits = |batch, trained| {
            let limits = options(&[("batch_tokens", batch)]).unwrap().embedding_limits(trained);
            (limits.context, limits.cache, limits.batch)
        };
        assert_eq!((limits("512", 2048), limits("1024", 256)), ((2048, 2048, 2048), (256, 1024, 1024)));
    }

    #[test]
    fn threads_and_time_are_limited() {
        let default = options(&[]).unwrap();
        assert_eq!((default.threads, default.time_limit), (1, None));
        let cores = available_parallelism().unwrap().get();
        let set = options(&[("threads", "1024"), ("time_limit_seconds", "90")]).unwrap();
        assert_eq!((set.threads, set.time_limit), (cores, Some(Duration::from_secs(90))));
        let several = |count| {
            let text = format!(
                "backend: 'llamacpp' instance_group {{ kind: KIND_CPU count: {count} }}
                 parameters {{ key: 'threads' value {{ string_value: '1024' }} }}"
            );
            Options::of(&normalised("m", &text)).unwrap().threads
        };
        for count in [1, 2, 3, cores, cores + 1] {
            assert_eq!(several(count), (cores / count).max(1), "{count}");
        }
        assert_eq!(options(&[("time_limit_seconds", "0")]).unwrap().time_limit, None);
    }

    #[test]
    fn tokens_are_guessed_with_a_draft_model_or_by_choice() {
        let draft = ("draft_model", " draft.gguf ");
        for (parameters, tokens, model) in [
            (&[][..], 0, None),
            (&[("speculative_tokens", "8")], 8, None),
            (&[draft], 4, Some("draft.gguf")),
            (&[draft, ("speculative_tokens", "0")], 0, Some("draft.gguf")),
        ] {
            let options = options(parameters).unwrap();
            assert_eq!((options.speculative_tokens, options.draft_model.as_deref()), (tokens, model));
        }
        for (parameters, expected) in [(&[][..], LIKELY), (&[("draft_min_probability", "0.25")], 0.25)] {
            assert_eq!(options(parameters).unwrap().draft_probability, expected);
        }
    }

    #[test]
    fn prefixes_are_kept_in_files_by_choice() {
        for (parameters, expected) in [
            (&[][..], None),
            (&[("prefix_cache_disk_bytes", "0")], None),
            (&[("prefix_cache_disk_bytes", " 10000000000 ")], Some(10_000_000_000)),
        ] {
            assert_eq!(options(parameters).unwrap().spill_bytes, expected);
        }
    }

    #[test]
    fn layers_follow_the_device_unless_set() {
        for (parameters, cpu, gpu) in
            [(&[][..], 0, -1), (&[("gpu_layers", "7")], 7, 7), (&[("gpu_layers", "0")], 0, 0)]
        {
            let options = options(parameters).unwrap();
            assert_eq!(
                (options.gpu_layers(InstanceKind::Cpu), options.gpu_layers(InstanceKind::Gpu(1))),
                (cpu, gpu)
            );
        }
    }

    #[test]
    fn invalid_parameters_are_refused_by_name() {
        for (parameters, expected) in [
            (
                &[("max_sequences", "0")][..],
                "parameter 'max_sequences' is '0', but must be a number from 1 to 256",
            ),
            (&[("max_sequences", "257")], "parameter 'max_sequences' is '257'"),
            (
                &[("context_length", "long")],
                "parameter 'context_length' is 'long', but must be a number from 8 to 16777216",
            ),
            (&[("normalize", "maybe")], "parameter 'normalize' is 'maybe', but must be true or false"),
            (
                &[("prefix_cache_disk_bytes", "-1")],
                "parameter 'prefix_cache_disk_bytes' is '-1', but must be a number of bytes",
            ),
            (&[("prefix_cache_disk_bytes", "1 GiB")], "parameter 'prefix_cache_disk_bytes' is '1 GiB'"),
            (&[("prefix_cache", "")], "parameter 'prefix_cache' is '', but must be principal or shared"),
            (
                &[("speculative_tokens", "33")],
                "parameter 'speculative_tokens' is '33', but must be a number from 0 to 32",
            ),
            (
                &[("draft_min_probability", "1.1")],
                "parameter 'draft_min_probability' is '1.1', but must be a number from 0 to 1",
            ),
            (&[("draft_min_probability", "NaN")], "parameter 'draft_min_probability' is 'NaN'"),
            (&[("threads", "-1")], "parameter 'threads' is '-1'"),
            (&[("gpu_layers", "")], "parameter 'gpu_layers' is ''"),
            (&[("time_limit_seconds", "1.5")], "parameter 'time_limit_seconds' is '1.5'"),
            (
                &[("batch_tokens", "7")],
                "parameter 'batch_tokens' is 7, but must be at least 'max_sequences' (8)",
            ),
        ] {
            let error = options(parameters).unwrap_err();
            assert!(error.message().starts_with(expected), "{error}");
        }
    }
}
