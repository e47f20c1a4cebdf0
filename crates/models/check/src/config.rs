//! Checks one model's configuration as far as possible without loading the model, and reports the location of each
//! problem.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_core::backend_api::{ModelContext, NoPeers};
use nereid_core::model_config::{
    ModelConfig, Place, Places, Stage, backend_name, complete_backend, hint_at_backend, nearest_name,
    normalise_for, read_text, validate,
};
use nereid_core::not_offered;
use nereid_model_files::{self as model_files, TEXT_LIMIT};
use nereid_repository::{config_path, entries};

use super::report::Finding;
use super::{Context, parameters};

/// The backend whose models need not declare tensors.
const PYTHON: &str = "python";

/// A model's configuration, and where its fields stand.
pub(crate) struct CheckedConfig {
    /// The configuration file, or the model's folder if there is none.
    path: PathBuf,
    places: Places,
    /// The configuration, with the defaults filled in.
    pub config: ModelConfig,
    /// Whether its text was read to the end.
    pub is_read: bool,
    /// Whether the configuration is complete without a backend.
    pub is_whole: bool,
}

impl CheckedConfig {
    /// The context in which a version in this folder would be loaded.
    pub(crate) fn context(&self, folder: &Path, version: u64, context: &Context<'_>) -> ModelContext {
        ModelContext {
            name: self.config.name.clone(),
            version,
            directory: folder.to_owned(),
            config: self.config.clone(),
            complete: context.reading.complete,
            peers: Arc::new(NoPeers),
        }
    }

    /// An error of the field at this path.
    pub(crate) fn error(&self, field: &str, message: impl Into<String>) -> Finding {
        Finding::error(&self.path, message).field(field, self.places.find(field))
    }

    /// A warning about the field at this path.
    pub(crate) fn warning(&self, field: &str, message: impl Into<String>) -> Finding {
        Finding::warning(&self.path, message).field(field, self.places.find(field))
    }
}

/// Reads and checks the configuration of the model `name`; adds all problems to `findings`. `None` if the configuration
/// is unusable for further checks.
pub(crate) fn check(
    folder: &Path,
    name: &str,
    versions: &[i64],
    context: &Context<'_>,
    findings: &mut Vec<Finding>,
) -> Option<CheckedConfig> {
    let path = match config_path(folder, &context.reading) {
        Ok(path) => path,
        Err(error) => {
            findings.push(Finding::error(folder, error.message()));
            return None;
        }
    };
    let exists = path.exists();
    let text = match read(&path, findings) {
        Some(text) => text,
        None if exists || !context.reading.complete => {
            if !exists {
                findings.push(missing(folder, &path));
            }
            return None;
        }
        // What follows from the model's files may do.
        None => String::new(),
    };
    let reading = read_text(&text);
    for problem in &reading.problems {
        let error = problem.error();
        findings.push(
            Finding::error(&path, error.message())
                .field(problem.field(), Some(error.place()))
                .knowing(error.nearest()),
        );
    }
    let mut checked = CheckedConfig {
        path: if exists { path } else { folder.to_owned() },
        is_read: reading.complete,
        is_whole: false,
        places: reading.places.clone(),
        config: reading.config.clone(),
    };
    check_name(&mut checked, name, folder, findings);
    if !checked.is_read {
        // Whatever is missing may stand behind the error of syntax.
        return Some(checked);
    }
    let entries_of =
        |version: &i64| (*version, entries(&folder.join(version.to_string())).unwrap_or_default());
    complete_backend(&mut checked.config, versions.iter().map(|version| entries_of(version).1));
    let gpus = context.reading.gpus.of(&checked.config);
    normalise_for(&mut checked.config, &gpus);
    let backend = backend_name(&checked.config);
    let completes = backend.and_then(|backend| context.backends.completes_config(backend));
    if !exists
        && completes == Some(false)
        && let Some(backend) = backend
    {
        let message = format!(
            "has no config.pbtxt, and backend '{backend}' does not complete one: write a config.pbtxt that lists all inputs \
             and outputs"
        );
        findings.push(Finding::error(folder, message));
    }
    if !context.reading.complete && completes == Some(true) && backend != Some(PYTHON) {
        warn_of_missing_tensors(&checked, findings);
    }
    // An unregistered backend may complete any part; if it is not installed either, that is reported below.
    let is_completed = context.reading.complete && completes.unwrap_or(true);
    let stage = if is_completed { Stage::BeforeCompletion } else { Stage::Final };
    if let Err(errors) = validate(&checked.config, stage) {
        for error in errors.errors().iter().filter(|error| !reading.explains(error.field())) {
            let mut finding = checked.error(error.field(), error.reason()).knowing(error.nearest());
            let config = &checked.config;
            if error.field() == "backend" && config.backend.is_empty() && config.platform.is_empty() {
                let other_files = entries(folder).unwrap_or_default();
                finding.message += &hint_at_backend(versions.iter().map(entries_of), &other_files);
            }
            findings.push(finding);
        }
    }
    parameters::check(&checked, |field| reading.explains(field), findings);
    checked.is_whole = reading.problems.is_empty() && validate(&checked.config, Stage::Final).is_ok();
    check_offered(&checked, name, (folder, versions), context, findings);
    Some(checked)
}

/// The file's text; without it, why not, unless it does not exist.
fn read(path: &Path, findings: &mut Vec<Finding>) -> Option<String> {
    let bytes = match model_files::read(path, TEXT_LIMIT) {
        Ok(bytes) => bytes,
        Err(error) => {
            if !error.is_missing() {
                findings.push(Finding::error(path, format!("cannot be read: {error}")));
            }
            return None;
        }
    };
    match String::from_utf8(bytes) {
        Ok(text) => Some(text),
        Err(error) => {
            let good = error.utf8_error().valid_up_to();
            let bytes = error.into_bytes();
            let before = String::from_utf8_lossy(&bytes[..good]);
            let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
            let place = Place {
                line: before.matches('\n').count() + 1,
                column: before[line_start..].chars().count() + 1,
            };
            let message = "is not UTF-8 here; a name in another encoding is not found";
            findings.push(Finding::warning(path, message).field("", Some(place)));
            Some(String::from_utf8_lossy(&bytes).into_owned())
        }
    }
}

fn missing(folder: &Path, path: &Path) -> Finding {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Finding::error(
        folder,
        format!("has no {name}, which is optional only if configurations are completed automatically"),
    )
}

/// Warns of a configuration without inputs or outputs that nothing completes. Some graphs have no inputs, so it is not an error.
fn warn_of_missing_tensors(checked: &CheckedConfig, findings: &mut Vec<Finding>) {
    let config = &checked.config;
    for (field, is_missing) in [("input", config.input.is_empty()), ("output", config.output.is_empty())] {
        if is_missing {
            let message = format!(
                "is missing, and configurations are not completed: the model loads only if its file has no {field}s"
            );
            findings.push(checked.warning(field, message));
        }
    }
}

/// A configuration belongs to the folder it is in.
fn check_name(checked: &mut CheckedConfig, name: &str, folder: &Path, findings: &mut Vec<Finding>) {
    if !checked.config.name.is_empty() && checked.config.name != name {
        let given = &checked.config.name;
        let other = folder.with_file_name(given);
        let whose =
            if other.is_dir() { "which is another model of this repository" } else { "not as its folder" };
        let message = format!(
            "the configuration is for a model named '{given}', {whose}; omit the name, or set it to '{name}'"
        );
        findings.push(checked.error("name", message).knowing(Some(name)));
    }
    name.clone_into(&mut checked.config.name);
}

/// Reports features that this server does not support.
fn check_offered(
    checked: &CheckedConfig,
    name: &str,
    (folder, versions): (&Path, &[i64]),
    context: &Context<'_>,
    findings: &mut Vec<Finding>,
) {
    let config = &checked.config;
    let version = versions.last().and_then(|&version| u64::try_from(version).ok()).unwrap_or(1);
    let model = checked.context(folder, version, context);
    if let Some(backend) = backend_name(config) {
        // The backend may follow from the platform.
        let field = match checked.places.find("backend") {
            None if checked.places.find("platform").is_some() => "platform",
            _ => "backend",
        };
        if let Err(error) = context.backends.check(&model) {
            // The name of a backend that must be installed first is right.
            let is_known = context.backends.names().any(|name| name == backend);
            let nearest = nearest_name(backend, context.backends.names()).filter(|_| !is_known);
            findings.push(checked.error(field, error.message()).meaning(nearest));
        } else if let Err(error) = context.engines.check_engine(&model) {
            findings.push(checked.error(field, error.message()));
        }
        // Without a file, the missing file was reported.
        if checked.path != folder
            && let Err(error) = context.engines.check_config(&model)
        {
            findings.push(Finding::error(&checked.path, error.message()));
        }
    }
    for (field, error) in not_offered(name, config, &context.gpus) {
        findings.push(checked.error(&field, error.message()));
    }
}
