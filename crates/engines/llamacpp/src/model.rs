//! A loaded model: checks its file and its configuration, and creates its instances.

use std::io::Read as _;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{
    Error, Instance, InstanceContext, InstanceKind, MetricRegistry, Model, ModelConfig, ModelContext, Result,
};
use nereid_model_config::default_model_filename;
use nereid_model_files as model_files;

use crate::adapters::{self, AdapterFile};
use crate::context::Context;
use crate::contract;
use crate::embedding::{self, EmbeddingInstance, Form};
use crate::engine::Vocabulary as _;
use crate::instance::LanguageInstance;
use crate::library::LlamaCpp;
use crate::metrics::Metrics;
use crate::options::Options;
use crate::scheduler::{Scheduler, Spill};
use crate::speculation::Speculation;
use crate::weights::{Pooling, Task, Weights};

const DEFAULT_FILENAME: &str = "model.gguf";

/// The first bytes of every GGUF file.
const MAGIC: &[u8] = b"GGUF";

/// A model in a GGUF file.
pub(crate) struct GgufModel {
    library: Arc<LlamaCpp>,
    options: Options,
    /// The parts of the file, the first one first.
    parts: Vec<PathBuf>,
    /// `None` for a model that generates text.
    pooling: Option<(Pooling, Form)>,
    /// Whether tensors have a batch dimension.
    is_batched: bool,
    /// The loaded file, and how many of its layers are on a GPU. Instances share it.
    weights: Mutex<(i32, Arc<Weights>)>,
    adapters: Vec<AdapterFile>,
    /// The model that guesses tokens, on the device of the first instance.
    draft: Option<Arc<Weights>>,
    completed: Option<ModelConfig>,
    metrics: Option<MetricRegistry>,
    name: String,
    version: u64,
}

impl GgufModel {
    pub(crate) fn load(library: &Arc<LlamaCpp>, context: &ModelContext) -> Result<Self> {
        let mut config = context.config.clone();
        let options = Options::of(&config)?;
        let name = default_model_filename(&config).unwrap_or(DEFAULT_FILENAME);
        let path = gguf_file(context, name)?;
        let parts = parts(&path)?;
        let gpu_layers = options.gpu_layers(InstanceKind::of_first_instance(&config));
        let adapters = adapters::files(&context.version_directory(), &config)?;
        let weights = weights(library, &parts, &adapters, gpu_layers)?;
        let task = weights.task();
        let pooling = match task {
            Task::Generate => {
                if context.complete {
                    contract::complete(&mut config);
                    adapters::complete(&mut config, &adapters);
                    contract::complete_chat(
                        &mut config,
                        &weights,
                        options.limits(weights.trained_context()).context,
                    );
                }
                contract::check(&config)?;
                None
            }
            Task::Embed(_) | Task::Score => {
                let (pooling, form) = match task {
                    Task::Embed(pooling) => (pooling, Form::Vector(weights.embedding_size())),
                    _ => (Pooling::OfModel, Form::Score),
                };
                if context.complete {
                    embedding::complete(&mut config, form, options.sequences());
                }
                embedding::check(&config, form)?;
                Some((pooling, form))
            }
            Task::Unsupported => {
                return Err(Error::unsupported(format!(
                    "{}: '{}' neither generates text, nor embeds it, nor scores pairs of texts",
                    path.display(),
                    weights.description()
                )));
            }
        };
        let draft = match options.draft_model.as_deref() {
            Some(name) if task == Task::Generate => {
                Some(draft(library, context, name, gpu_layers, &weights)?)
            }
            _ => None,
        };
        Ok(Self {
            library: Arc::clone(library),
            options,
            parts,
            pooling,
            is_batched: config.max_batch_size > 0,
            weights: Mutex::new((gpu_layers, Arc::new(weights))),
            adapters,
            draft,
            completed: context.complete.then_some(config),
            // A model that is only checked has no metrics.
            metrics: context.peers.metrics().ok(),
            name: context.name.clone(),
            version: context.version,
        })
    }

    pub(crate) fn threads(&self) -> usize {
        self.options.threads
    }

    /// The weights for an instance on a device of this kind.
    fn weights_for(&self, kind: InstanceKind) -> Result<Arc<Weights>> {
        let mut loaded = self.weights.lock().unwrap_or_else(PoisonError::into_inner);
        let gpu_layers = self.options.gpu_layers(kind);
        if loaded.0 != gpu_layers {
            *loaded =
                (gpu_layers, Arc::new(weights(&self.library, &self.parts, &self.adapters, gpu_layers)?));
        }
        Ok(Arc::clone(&loaded.1))
    }
}

/// Loads the model that guesses tokens for another one.
///
/// # Errors
/// `InvalidArg` if it cannot be loaded, has another vocabulary, or cannot take guesses back.
fn draft(
    library: &Arc<LlamaCpp>,
    context: &ModelContext,
    name: &str,
    gpu_layers: i32,
    target: &Weights,
) -> Result<Arc<Weights>> {
    let path = gguf_file(context, name)?;
    let draft = weights(library, std::slice::from_ref(&path), &[], gpu_layers)?;
    let refused = |reason: &str| {
        Err(Error::invalid_arg(format!("{} cannot be the draft model: {reason}", path.display())))
    };
    if draft.task() != Task::Generate || draft.has_recurrent_state() {
        return refused("it does not generate text token by token with a cache that can be shortened");
    }
    let common = draft.size().min(target.size());
    let piece = |weights: &Weights, token| {
        let mut piece = Vec::new();
        weights.piece(token, true, &mut piece);
        piece
    };
    let tokens = (0..).take(common);
    if let Some(token) = tokens.into_iter().find(|token| piece(&draft, *token) != piece(target, *token)) {
        return refused(&format!("token {token} differs from the model's"));
    }
    Ok(Arc::new(draft))
}

fn weights(
    library: &Arc<LlamaCpp>,
    parts: &[PathBuf],
    adapters: &[AdapterFile],
    gpu_layers: i32,
) -> Result<Weights> {
    let mut weights = Weights::load(library, parts, gpu_layers).map_err(|reason| {
        let path = parts.first().map(|path| path.display().to_string()).unwrap_or_default();
        Error::invalid_arg(format!("llama.cpp cannot load {path}: {reason}"))
    })?;
    weights
        .load_adapters(adapters)
        .map_err(|reason| Error::invalid_arg(format!("llama.cpp cannot load {reason}")))?;
    Ok(weights)
}

/// The files of a model: its first one, followed by `model-00002-of-00003.gguf` and so on in the same folder if the model was split.
///
/// # Errors
/// `InvalidArg` if a part is missing.
fn parts(first: &Path) -> Result<Vec<PathBuf>> {
    let count = |name: &str| {
        let (number, of) = name.strip_prefix("model-")?.strip_suffix(".gguf")?.split_once("-of-")?;
        let is_number = |digits: &str| digits.len() == 5 && digits.bytes().all(|byte| byte.is_ascii_digit());
        (is_number(number) && is_number(of)).then(|| of.parse::<u32>().ok()).flatten()
    };
    let folder = first.parent().unwrap_or(Path::new("."));
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let counts = entries.filter_map(|entry| count(entry.file_name().to_str()?));
    let count = counts.max().unwrap_or(1);
    let others = (2..=count).map(|number| {
        let path = folder.join(format!("model-{number:05}-of-{count:05}.gguf"));
        match path.is_file() {
            true => Ok(path),
            false => {
                Err(Error::invalid_arg(format!("{} is missing: the model has {count} parts", path.display())))
            }
        }
    });
    iter::once(Ok(first.to_owned())).chain(others).collect()
}

impl Model for GgufModel {
    fn engine(&self) -> Option<String> {
        Some(format!("llama.cpp {}", self.library.version()))
    }

    fn completed_config(&self) -> Option<&ModelConfig> {
        self.completed.as_ref()
    }

    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        let weights = self.weights_for(context.kind)?;
        let trained = weights.trained_context();
        // The library cannot take tokens back from such a state.
        let guesses = if weights.has_recurrent_state() { 0 } else { self.options.speculative_tokens };
        let (limits, engine) = match self.pooling {
            None => {
                let limits = self.options.limits(trained);
                (limits, Context::new(&weights, limits, self.options.threads, guesses))
            }
            Some((pooling, _)) => {
                let limits = self.options.embedding_limits(trained);
                (limits, Context::for_embeddings(&weights, limits, self.options.threads, pooling))
            }
        };
        let cannot = |reason| {
            Error::unavailable(format!(
                "instance '{}': llama.cpp cannot make a context of {} sequences with {} tokens each: {reason}",
                context.name, limits.sequences, limits.context
            ))
        };
        let engine = engine.map_err(cannot)?;
        let longest_text = weights.longest_text(limits.context);
        if let Some((_, form)) = self.pooling {
            return Ok(Box::new(EmbeddingInstance {
                embedder: engine,
                vocabulary: weights,
                form,
                normalizes: self.options.normalizes,
                is_batched: self.is_batched,
                longest_text,
            }));
        }
        let speculation = match &self.draft {
            _ if guesses == 0 => None,
            None => Some(Speculation::by_lookup(guesses)),
            Some(draft) => {
                let context = Context::new(draft, limits, self.options.threads, 0).map_err(cannot)?;
                Some(Speculation::by_model(
                    guesses,
                    Box::new(context),
                    weights.size(),
                    self.options.draft_probability,
                ))
            }
        };
        let scheduler =
            Scheduler::new(engine, Arc::<Weights>::clone(&weights), self.options.time_limit, speculation)
                .with_spill(self.options.spill_bytes.map(Spill::new));
        let metrics = self.metrics.as_ref().and_then(|registry| {
            let model = (self.name.as_str(), self.version);
            let metrics = Metrics::new(registry, model, &context.name, limits.cache, limits.sequences);
            metrics.inspect_err(|error| tracing::warn!("model '{}' has no metrics: {error}", self.name)).ok()
        });
        let adapters = self.adapters.iter().map(|(name, _)| name.clone()).collect();
        Ok(Box::new(LanguageInstance::new(
            scheduler,
            weights,
            longest_text,
            adapters,
            self.options.shares_prefixes,
            metrics,
        )))
    }
}

/// The path of a GGUF file of the model, which has the format's first bytes.
fn gguf_file(context: &ModelContext, filename: &str) -> Result<PathBuf> {
    let version = context.version_directory();
    let read = model_files::model_file(&version, filename, DEFAULT_FILENAME).and_then(|path| {
        let mut start = Vec::new();
        model_files::open(&path)?.take(MAGIC.len() as u64).read_to_end(&mut start)?;
        Ok((path, start))
    });
    let (path, start) = read.map_err(|error| Error::cannot_read(&version.join(filename), &error))?;
    if start != MAGIC {
        return Err(Error::invalid_arg(format!("{} is not a GGUF file", path.display())));
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_split_file_are_found_in_order() {
        for (files, expected) in [
            (&["model.gguf"][..], Ok(&["model.gguf"][..])),
            (&["model.gguf", "model-2-of-3.gguf", "other-00002-of-00003.gguf"], Ok(&["model.gguf"])),
            (
                &["model.gguf", "model-00003-of-00003.gguf", "model-00002-of-00003.gguf"],
                Ok(&["model.gguf", "model-00002-of-00003.gguf", "model-00003-of-00003.gguf"]),
            ),
            (
                &["model.gguf", "model-00003-of-00003.gguf"],
                Err("model-00002-of-00003.gguf is missing: the model has 3 parts"),
            ),
        ] {
            let folder = tempfile::tempdir().unwrap();
            for file in files {
                std::fs::write(folder.path().join(file), "").unwrap();
            }
            match (parts(&folder.path().join("model.gguf")), expected) {
                (Ok(found), Ok(expected)) => {
                    let names: Vec<_> = found.iter().map(|path| path.file_name().unwrap()).collect();
                    assert_eq!(names, expected);
                }
                (Err(error), Err(expected)) => {
                    assert!(error.message().ends_with(expected), "{error}")
                }
                (found, expected) => panic!("{found:?} instead of {expected:?}"),
            }
        }
    }
}
