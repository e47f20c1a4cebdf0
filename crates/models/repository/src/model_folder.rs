//! Reads one model's folder: its configuration, its versions, its labels.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use nereid_core::backend_api::{Error, ErrorCode, Result};
use nereid_core::{Completion, Labels, ModelId, ModelSpec};
use nereid_model_config::{
    DataFileKind, ENSEMBLE_PLATFORM, FolderEntry, ModelConfig, ModelGpus, Stage, ValidationError,
    ValidationErrors, data_files,
};
use nereid_model_files::{self as model_files, DATA_LIMIT, FileError, Kind, TEXT_LIMIT};

/// The contents of data files, by kind and name.
type DataFiles = BTreeMap<(DataFileKind, String), Bytes>;

/// The configuration's file name.
pub(crate) const CONFIG: &str = "config.pbtxt";

/// The folder of further configurations, of which [`ReadOptions::config_name`] chooses one.
pub(crate) const CONFIGS: &str = "configs";

/// Options for reading model folders.
#[derive(Clone, Debug)]
pub struct ReadOptions {
    /// Whether a configuration may be completed from the model's files. It may then lack inputs and outputs, or be
    /// missing altogether.
    pub complete: bool,
    /// Name of the configuration to use: `configs/<name>.pbtxt` if the model has it, otherwise `config.pbtxt`.
    pub config_name: Option<String>,
    /// Which GPUs models may use.
    pub gpus: Gpus,
}

/// The machine's GPUs, and which backends use them by default.
#[derive(Clone)]
pub struct Gpus {
    numbers: Vec<i32>,
    are_default: Arc<OfBackend>,
}

type OfBackend = dyn Fn(&str) -> bool + Send + Sync;

impl Gpus {
    /// The GPUs of these numbers. `are_default` returns whether the backend of that name uses GPUs by default. It is called only
    /// on machines with GPUs.
    pub fn new(numbers: Vec<i32>, are_default: impl Fn(&str) -> bool + Send + Sync + 'static) -> Self {
        Self { numbers, are_default: Arc::new(are_default) }
    }

    /// The GPUs for a model with this configuration.
    pub fn of(&self, config: &ModelConfig) -> ModelGpus {
        if self.numbers.is_empty() {
            return ModelGpus::default();
        }
        let are_default = nereid_model_config::backend_name(config).is_some_and(&*self.are_default);
        ModelGpus { numbers: self.numbers.clone(), are_default }
    }
}

impl Default for Gpus {
    /// No GPUs.
    fn default() -> Self {
        Self::new(Vec::new(), |_| false)
    }
}

impl fmt::Debug for Gpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gpus").finish_non_exhaustive()
    }
}

impl Default for ReadOptions {
    /// Completes, and takes `config.pbtxt`.
    fn default() -> Self {
        Self { complete: true, config_name: None, gpus: Gpus::default() }
    }
}

/// Reads the folder of the model `name`.
///
/// # Errors
/// `NotFound` for a missing model: an empty folder, or no configuration where one is required. Other errors describe
/// what is wrong with the configuration; the message names the file.
pub fn read_model(folder: &Path, name: &str, options: &ReadOptions) -> Result<ModelSpec> {
    read_moved_model(folder, folder, name, options)
}

/// Reads the model `name`, whose files are in `folder` while its configuration is still in another one.
///
/// # Errors
/// As [`read_model`].
pub(crate) fn read_moved_model(
    folder: &Path,
    config_folder: &Path,
    name: &str,
    options: &ReadOptions,
) -> Result<ModelSpec> {
    let path = config_path(config_folder, options)?;
    let given = !options.complete || exists(&path)?;
    let config = if given { parse_config(&path, options)? } else { ModelConfig::default() };
    let origin = if given { Origin::File(&path) } else { Origin::Nowhere };
    finish(folder, config_folder, name, config, origin, options)
}

/// Reads the folder of the model `name` with a JSON configuration that replaces its own.
///
/// # Errors
/// As [`read_model`].
pub(crate) fn read_model_as(
    folder: &Path,
    name: &str,
    config: &str,
    options: &ReadOptions,
) -> Result<ModelSpec> {
    let config = nereid_model_config::from_json(config)
        .map_err(|error| Error::invalid_arg(format!("{}: {error}", Origin::Request.describe(folder))))?;
    finish(folder, folder, name, config, Origin::Request, options)
}

/// The unmodified configuration that [`read_model`] or [`read_model_as`] would use; an empty one if the model has none.
///
/// # Errors
/// The configuration cannot be read.
pub(crate) fn original_config(
    folder: &Path,
    config: Option<&str>,
    options: &ReadOptions,
) -> Result<ModelConfig> {
    match config {
        Some(config) => {
            nereid_model_config::from_json(config).map_err(|error| Error::invalid_arg(error.to_string()))
        }
        None if has_config(folder, options)? => parse_config(&config_path(folder, options)?, options),
        None => Ok(ModelConfig::default()),
    }
}

/// Whether a folder has the configuration selected by the options.
///
/// # Errors
/// The folder cannot be read.
pub(crate) fn has_config(folder: &Path, options: &ReadOptions) -> Result<bool> {
    exists(&config_path(folder, options)?)
}

/// Source of a configuration.
#[derive(Clone, Copy)]
enum Origin<'a> {
    /// A file of the model's folder.
    File(&'a Path),
    /// A load request.
    Request,
    /// No configuration; it is completed from the model's files.
    Nowhere,
}

impl Origin<'_> {
    fn describe(self, folder: &Path) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::Request => "Invalid config override".into(),
            Self::Nowhere => folder.display().to_string(),
        }
    }

    /// Describes the errors, with line and column where known.
    fn explain(self, folder: &Path, errors: &ValidationErrors) -> String {
        let text = match self {
            Self::File(path) => model_files::read(path, TEXT_LIMIT).ok(),
            Self::Request | Self::Nowhere => None,
        };
        let places = text.map(|text| nereid_model_config::read_text(&String::from_utf8_lossy(&text)).places);
        let explained = errors.errors().iter().map(|error| {
            let place = places.as_ref().and_then(|places| places.find(error.field()));
            let place = place.map_or_else(String::new, |place| format!(":{place}"));
            format!("{}{place}: {error}", self.describe(folder))
        });
        explained.collect::<Vec<_>>().join("; ")
    }
}

/// A model by its configuration.
fn finish(
    folder: &Path,
    config_folder: &Path,
    name: &str,
    mut config: ModelConfig,
    origin: Origin<'_>,
    options: &ReadOptions,
) -> Result<ModelSpec> {
    let versions = versions(folder)?;
    // A model registered under another name is still configured under its folder's name.
    let is_of_folder = config_folder.file_name().is_some_and(|folder| folder == config.name.as_str());
    if config.name.is_empty() || is_of_folder {
        name.clone_into(&mut config.name);
    }
    let (config, fault) = finish_config(folder, name, config, &versions, origin, options)?;
    let (labels, missing_labels) = or_fault(read_labels(folder, &config));
    let (files, missing_files) = or_fault(read_data_files(folder, &config));
    let choice = nereid_model_config::served_versions(config.version_policy.as_ref(), &versions);
    for version in choice.missing {
        tracing::error!("the configuration of '{name}' requests version {version}, which has no folder");
    }
    let versions: Vec<u64> =
        choice.served.into_iter().filter_map(|version| version.try_into().ok()).collect();
    let special_files = check_model_files(folder, &config, &versions).err();
    let completion = match (options.complete, origin) {
        (false, _) => Completion::Off,
        (true, Origin::Nowhere) => Completion::Needed,
        (true, Origin::File(_) | Origin::Request) => Completion::Allowed,
    };
    Ok(ModelSpec {
        completion,
        labels,
        warm_up_files: named(&files, DataFileKind::WarmUp),
        state_files: named(&files, DataFileKind::InitialState),
        fault: fault.or(missing_labels).or(missing_files).or(special_files),
        ..ModelSpec::new(ModelId::plain(name), folder, config, versions)
    })
}

/// Splits a result into what was read, or its default, and the error.
fn or_fault<T: Default>(read: Result<T>) -> (T, Option<Error>) {
    read.map_or_else(|error| (T::default(), Some(error)), |read| (read, None))
}

/// The configuration with its backend and defaults filled in, validated.
///
/// Violations that concern only versions and, if the backend may complete the configuration, tensors do not reject it:
/// they become a fault that its versions fail with. The reference finds them only when it loads a version, and its
/// answers differ between the two cases.
fn finish_config(
    folder: &Path,
    name: &str,
    mut config: ModelConfig,
    versions: &[i64],
    origin: Origin<'_>,
    options: &ReadOptions,
) -> Result<(ModelConfig, Option<Error>)> {
    let misnamed = (config.name != name).then(|| {
        let (file, given) = (origin.describe(folder), &config.name);
        Error::invalid_arg(format!("'{file}' configures model '{given}', but the folder is '{name}'"))
    });
    // An unreadable folder gets no backend here; if it is served, the backend reports the error.
    let entries_of =
        |version: &i64| (*version, entries(&folder.join(version.to_string())).unwrap_or_default());
    nereid_model_config::complete_backend(&mut config, versions.iter().map(|version| entries_of(version).1));
    let gpus = options.gpus.of(&config);
    nereid_model_config::normalise_for(&mut config, &gpus);
    let stage = if options.complete { Stage::BeforeCompletion } else { Stage::Final };
    let Err(errors) = nereid_model_config::validate(&config, stage) else {
        return misnamed.map_or(Ok((config, None)), Err);
    };
    let nothing_tells = config.backend.is_empty() && config.platform.is_empty();
    let hint = if nothing_tells {
        let other_files = entries(folder).unwrap_or_default();
        nereid_model_config::hint_at_backend(versions.iter().map(entries_of), &other_files)
    } else {
        String::new()
    };
    let explained = format!("{}{hint}", origin.explain(folder, &errors));
    if let Some(misnamed) = misnamed {
        return Err(Error::invalid_arg(format!("{misnamed}; {explained}")));
    }
    let fault = Error::invalid_arg(explained);
    // An ensemble's input and output names belong to its graph, which is validated earlier.
    let is_ensemble = config.platform == ENSEMBLE_PLATFORM;
    let is_of_graph = |error: &ValidationError| is_ensemble && error.field().ends_with(".name");
    let is_found_later = |error: &ValidationError| {
        error.concerns_versions() || options.complete && error.concerns_tensors() && !is_of_graph(error)
    };
    if errors.errors().iter().all(is_found_later) {
        return Ok((config, Some(fault)));
    }
    Err(fault)
}

/// Path of the configuration to use; the file may not exist.
///
/// # Errors
/// The folder cannot be read.
pub fn config_path(folder: &Path, options: &ReadOptions) -> Result<PathBuf> {
    if let Some(name) = &options.config_name {
        let path = folder.join(CONFIGS).join(format!("{name}.pbtxt"));
        if exists(&path)? {
            return Ok(path);
        }
    }
    Ok(folder.join(CONFIG))
}

/// Whether a folder's configuration is an ensemble's; `false` if it cannot be read.
pub(crate) fn is_ensemble(folder: &Path, options: &ReadOptions) -> bool {
    let config = config_path(folder, options).and_then(|path| parse_config(&path, options));
    config.is_ok_and(|config| config.platform == ENSEMBLE_PLATFORM)
}

/// Whether a folder looks like a model's: it has a configuration, or a folder of a version.
pub(crate) fn is_of_model(folder: &Path, options: &ReadOptions) -> bool {
    has_config(folder, options).unwrap_or(false)
        || versions(folder).is_ok_and(|versions| !versions.is_empty())
}

fn exists(path: &Path) -> Result<bool> {
    path.try_exists().map_err(|error| unreadable(path, &error))
}

fn parse_config(path: &Path, options: &ReadOptions) -> Result<ModelConfig> {
    let bytes = model_files::read(path, TEXT_LIMIT).map_err(|error| {
        let missing = !options.complete && error.is_missing();
        let hint = if missing {
            "; the file is optional only if configurations are completed automatically"
        } else {
            ""
        };
        let code = if error.is_missing() { ErrorCode::NotFound } else { ErrorCode::InvalidArg };
        Error::new(code, format!("cannot read '{}': {error}{hint}", path.display()))
    })?;
    // Comments in other encodings are accepted; a name in another encoding matches no file.
    let text = String::from_utf8_lossy(&bytes);
    nereid_model_config::parse_text(&text).map_err(|_| {
        // A lenient second pass continues after the first problem, to report all of them.
        let problems = nereid_model_config::read_text(&text).problems;
        let explained = problems.iter().map(|problem| {
            let error = problem.error();
            format!("{}:{}: {}", path.display(), error.place(), error.message())
        });
        Error::invalid_arg(explained.collect::<Vec<_>>().join("; "))
    })
}

fn read_labels(folder: &Path, config: &ModelConfig) -> Result<BTreeMap<String, Labels>> {
    let labelled = config.output.iter().filter(|output| !output.label_filename.is_empty());
    labelled
        .map(|output| {
            // A slash at its beginning is the folder's, as in the reference.
            let name = output.label_filename.trim_start_matches('/');
            let text = model_files::inside(folder, name).and_then(|path| model_files::read_text(&path));
            let text = text.map_err(|error| {
                Error::not_found(format!(
                    "cannot read the labels of output '{}' in '{}': {error}",
                    output.name,
                    folder.join(name).display()
                ))
            })?;
            Ok((output.name.clone(), text.split_terminator('\n').map(str::to_owned).collect()))
        })
        .collect()
}

/// The files of a kind, by their names in the configuration.
fn named(files: &DataFiles, kind: DataFileKind) -> BTreeMap<String, Bytes> {
    let named = files.iter().filter(|((of, _), _)| *of == kind);
    named.map(|((_, name), contents)| (name.clone(), contents.clone())).collect()
}

/// Reads the data files of warm-ups and states.
fn read_data_files(folder: &Path, config: &ModelConfig) -> Result<DataFiles> {
    let mut contents = DataFiles::new();
    for file in data_files(config).into_iter().filter(|file| file.used) {
        let relative = file.path();
        let bytes =
            model_files::inside(folder, &relative).and_then(|path| model_files::read(&path, DATA_LIMIT));
        let bytes = bytes.map_err(|error| {
            let path = folder.join(&relative);
            Error::not_found(format!("cannot use '{}' (from {}): {error}", path.display(), file.field))
        })?;
        contents.insert((file.kind, file.name), Bytes::from(bytes));
    }
    Ok(contents)
}

/// A model's file may be missing, or a folder, which its backend may know; a FIFO or a device would hold up the backend
/// that opens it.
fn check_model_files(folder: &Path, config: &ModelConfig, versions: &[u64]) -> Result<()> {
    let Some(name) = nereid_model_config::default_model_filename(config) else { return Ok(()) };
    for version in versions {
        let path = folder.join(version.to_string()).join(name);
        match model_files::check(&path) {
            Err(error @ FileError::NotRegular(kind)) if kind != Kind::Directory => {
                return Err(Error::invalid_arg(format!("cannot read '{}': {error}", path.display())));
            }
            _ => {}
        }
    }
    Ok(())
}

/// The folders whose name is a version: a whole number without a leading zero (0 itself is one). Ascending.
fn versions(folder: &Path) -> Result<Vec<i64>> {
    let folders = entries(folder)?.into_iter().filter(|entry| entry.is_folder);
    let mut versions: Vec<_> = folders.filter_map(|entry| version_number(&entry.name)).collect();
    versions.sort_unstable();
    Ok(versions)
}

/// Lists a folder. Names that are not UTF-8 are skipped.
///
/// # Errors
/// The folder cannot be read.
pub fn entries(folder: &Path) -> Result<Vec<FolderEntry>> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(folder).map_err(|error| unreadable(folder, &error))? {
        let entry = entry.map_err(|error| unreadable(folder, &error))?;
        if let Ok(name) = entry.file_name().into_string() {
            // Follows links: model files are often linked from elsewhere.
            entries.push(FolderEntry { name, is_folder: entry.path().is_dir() });
        }
    }
    Ok(entries)
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    let code = match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => ErrorCode::NotFound,
        _ => ErrorCode::Unavailable,
    };
    Error::new(code, format!("cannot read '{}': {error}", path.display()))
}

/// The version whose folder has this name: a whole number without a leading zero. 0 itself is one.
pub fn version_number(name: &str) -> Option<i64> {
    let canonical = name == "0" || !name.starts_with('0');
    let digits = name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|_| canonical && digits)
}

#[cfg(test)]
mod tests;
