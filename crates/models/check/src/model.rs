//! Checks one model's folder: its versions, its model files, and the other files named by its configuration.

use std::path::{Path, PathBuf};

use nereid_core::Backends;
use nereid_core::model_config::{
    ENSEMBLE_PLATFORM, FolderEntry, ModelConfig, backend_name, data_files, default_model_filename,
    hint_at_other_format, model_file_names, nearest_name, served_versions, to_text,
};
use nereid_model_files::{self as model_files, FileError, Kind};
use nereid_repository::{entries, own_agents, version_number};

use super::Context;
use super::config::{self, CheckedConfig};
use super::report::Finding;
use super::texts;

/// Subfolders of a model that are not versions: further configurations, and files for warm-up and initial states.
const FOLDERS: [&str; 3] = ["configs", "warmup", "initial_state"];

/// The result of checking a model's folder.
pub(crate) struct CheckedFolder {
    pub name: String,
    /// The folder itself.
    pub path: PathBuf,
    /// The versions that would be served, ascending.
    pub versions: Vec<i64>,
    /// The configuration; `None` if it is unusable.
    pub config: Option<CheckedConfig>,
}

impl CheckedFolder {
    /// The model's backend, if known.
    pub(crate) fn backend(&self) -> Option<String> {
        let config = &self.config.as_ref().filter(|config| config.is_read)?.config;
        match backend_name(config) {
            None if config.platform == ENSEMBLE_PLATFORM => Some(ENSEMBLE_PLATFORM.to_owned()),
            name => name.map(str::to_owned),
        }
    }
}

impl CheckedFolder {
    /// Whether the model is an ensemble.
    pub(crate) fn is_ensemble(&self) -> bool {
        self.config.as_ref().is_some_and(|config| config.config.platform == ENSEMBLE_PLATFORM)
    }
}

/// Checks the folder of the model `name`.
pub(crate) fn check(
    folder: &Path,
    name: &str,
    context: &Context<'_>,
    findings: &mut Vec<Finding>,
) -> CheckedFolder {
    let found = match entries(folder) {
        Ok(found) => found,
        Err(error) => {
            findings.push(Finding::error(folder, error.message()));
            return CheckedFolder {
                name: name.to_owned(),
                path: folder.to_owned(),
                versions: Vec::new(),
                config: None,
            };
        }
    };
    let mut versions: Vec<i64> = found
        .iter()
        .filter(|entry| entry.is_folder)
        .filter_map(|entry| version_number(&entry.name))
        .collect();
    versions.sort_unstable();
    let config = config::check(folder, name, &versions, context, findings);
    if versions.is_empty() {
        let message = "no version to serve; put the model's files into a folder named 1";
        findings.push(Finding::error(folder, message));
    }
    let readable = config.as_ref().filter(|config| config.is_read);
    let served = readable.map_or_else(Vec::new, |config| serve(config, &versions, findings));
    if let Some(config) = readable {
        let versions = versions.iter().map(|&version| (version, served.contains(&version)));
        if !brings_files(&config.config) {
            check_model_files(folder, config, versions, context, findings);
        }
        check_named_files(folder, config, &found, findings);
        texts::check(folder, &config.config, &served, findings);
    }
    check_strays(folder, readable.map(|config| &config.config), &found, context, findings);
    CheckedFolder { name: name.to_owned(), path: folder.to_owned(), versions: served, config }
}

/// Whether the model names an agent that may replace the files that are present.
fn brings_files(config: &ModelConfig) -> bool {
    let own = own_agents(config).unwrap_or_default();
    own.iter().any(|agent| !["checksum", "dragonfly"].contains(&agent.name.as_str()))
}

/// The versions that the policy chooses.
fn serve(config: &CheckedConfig, versions: &[i64], findings: &mut Vec<Finding>) -> Vec<i64> {
    let choice = served_versions(config.config.version_policy.as_ref(), versions);
    if choice.served.is_empty() && !versions.is_empty() {
        let there: Vec<_> = versions.iter().map(ToString::to_string).collect();
        let message = format!("selects none of the versions; available: {}", there.join(", "));
        findings.push(config.error("version_policy", message));
    } else {
        for version in choice.missing {
            let message = format!("version {version} has no folder; the others are served");
            findings.push(config.warning("version_policy.specific.versions", message));
        }
    }
    choice.served
}

/// Checks that each version contains the model file that its backend requires, and that the engine would take it.
/// Versions that are not served may lack it.
fn check_model_files(
    folder: &Path,
    checked: &CheckedConfig,
    versions: impl Iterator<Item = (i64, bool)>,
    context: &Context<'_>,
    findings: &mut Vec<Finding>,
) {
    let config = &checked.config;
    for (number, is_served) in versions {
        let version = folder.join(number.to_string());
        let finding = |message: String| match is_served {
            true => Finding::error(&version, message),
            false => Finding::warning(&version, format!("{message}; it is not served")),
        };
        let held = match entries(&version) {
            Ok(held) => held,
            Err(error) => {
                findings.push(finding(error.message().to_owned()));
                continue;
            }
        };
        let check_contents = |findings: &mut Vec<Finding>| {
            let number = u64::try_from(number).ok().filter(|_| is_served);
            let model = number.map(|number| checked.context(folder, number, context));
            if let Some(Err(error)) = model.map(|model| context.engines.check_file(&model)) {
                findings.push(finding(error.message().to_owned()));
            }
        };
        let Some(filename) = default_model_filename(config) else {
            // The backend knows which files may be there.
            check_contents(findings);
            continue;
        };
        let Ok(path) = model_files::inside(&version, filename) else { continue };
        match model_files::check(&path) {
            // The backend checks the contents of a folder.
            Ok(()) | Err(FileError::NotRegular(Kind::Directory)) => {
                check_contents(findings);
                continue;
            }
            Err(error) if !error.is_missing() => {
                findings.push(finding(format!("cannot read '{filename}': {error}")));
                continue;
            }
            Err(_) => {}
        }
        if held.is_empty() {
            findings.push(finding(format!("is empty: it needs '{filename}'")));
            continue;
        }
        let names: Vec<_> = held.iter().map(|entry| entry.name.as_str()).collect();
        let nearest = nearest_name(filename, names.iter().copied()).or_else(|| same_ending(filename, &names));
        let other = match nearest {
            Some(_) => String::new(),
            None => hint_at_other_format(names.iter().copied()),
        };
        findings.push(finding(format!("has no '{filename}'{other}")).meaning(nearest));
    }
}

/// The name with the same extension, if exactly one has it.
fn same_ending<'a>(filename: &str, names: &[&'a str]) -> Option<&'a str> {
    let ending = Path::new(filename).extension()?;
    let mut same = names.iter().copied().filter(|name| Path::new(name).extension() == Some(ending));
    same.next().filter(|_| same.next().is_none())
}

/// Checks that the files exist that the configuration names.
fn check_named_files(
    folder: &Path,
    config: &CheckedConfig,
    found: &[FolderEntry],
    findings: &mut Vec<Finding>,
) {
    for (index, output) in config.config.output.iter().enumerate() {
        let filename = &output.label_filename;
        if filename.is_empty() {
            continue;
        }
        // A slash at its beginning is the folder's.
        let Ok(path) = model_files::inside(folder, filename.trim_start_matches('/')) else { continue };
        if let Err(error) = model_files::read_text(&path) {
            let message = format!("cannot read the labels in '{filename}': {error}");
            let nearest = nearest_name(filename, found.iter().map(|entry| entry.name.as_str()));
            let nearest = nearest.filter(|nearest| nearest != filename);
            findings.push(config.error(&format!("output[{index}].label_filename"), message).meaning(nearest));
        }
    }
    for file in data_files(&config.config).into_iter().filter(|file| file.used) {
        // A name that leads out of the folder was reported with the configuration's other mistakes.
        let Ok(path) = model_files::inside(folder, file.path()) else { continue };
        if let Err(error) = model_files::check(&path) {
            let (around, filename) = (path.parent().unwrap_or(folder), path.file_name().unwrap_or_default());
            let held = entries(around).unwrap_or_default();
            let nearest =
                nearest_name(&filename.to_string_lossy(), held.iter().map(|entry| entry.name.as_str()));
            let message = match &error {
                _ if error.is_missing() => format!("file '{}' does not exist", path.display()),
                _ => format!("cannot read '{}': {error}", path.display()),
            };
            findings.push(config.error(&file.field, message).meaning(nearest));
        }
    }
}

/// Reports entries that the server ignores although they probably have a purpose.
fn check_strays(
    folder: &Path,
    config: Option<&ModelConfig>,
    found: &[FolderEntry],
    context: &Context<'_>,
    findings: &mut Vec<Finding>,
) {
    let of_python: &[&str] =
        if may_be_python(config, context.backends) { &["requirements.txt"] } else { &[] };
    let named = config.map(to_text).unwrap_or_default();
    let filename = config.and_then(default_model_filename);
    for FolderEntry { name, is_folder } in found {
        let path: PathBuf = folder.join(name);
        let is_version = *is_folder && version_number(name).is_some();
        if name.starts_with('.') || is_version || texts::is_of_texts(name, *is_folder) {
            continue;
        }
        if let Some(version) = likely_version(name) {
            let message = if *is_folder {
                "not a version folder: names must be whole numbers without a sign or leading zeros"
            } else {
                "not a version: a version is a folder"
            };
            let meant = is_folder.then(|| version.to_string());
            findings.push(Finding::warning(path, message).meaning(meant.as_deref()));
        } else if *is_folder {
            if !FOLDERS.contains(&name.as_str())
                && let Some(nearest) = nearest_name(name, FOLDERS.into_iter())
            {
                findings.push(Finding::warning(path, "unused folder").meaning(Some(nearest)));
            }
        } else if Some(name.as_str()) == filename || model_file_names().any(|file| file == name) {
            findings.push(Finding::warning(path, "a model file must be in a version folder"));
        } else if !is_welcome(name)
            && !of_python.contains(&name.as_str())
            && !named.contains(&format!("{name}\""))
        {
            let nearest = nearest_name(name, ["config.pbtxt"].into_iter().chain(of_python.iter().copied()));
            findings.push(Finding::warning(path, "unused file").meaning(nearest));
        }
    }
}

/// The version that an invalid name probably means, such as `01`, `v2` or `1.0`.
fn likely_version(name: &str) -> Option<u64> {
    let name = name.to_ascii_lowercase();
    let number = ["version", "v"].iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(&name);
    let number = number.trim_start_matches(['_', '-', '+', ' ']);
    let digits = number.len() - number.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
    number[..digits].parse().ok()
}

/// Whether a model may be one in Python, which has a `requirements.txt`: also if its backend is not built in, which may be
/// written in Python, or unknown.
fn may_be_python(config: Option<&ModelConfig>, backends: &Backends) -> bool {
    let is_built_in = |backend| backend != "python" && backends.completes_config(backend).is_some();
    config.and_then(backend_name).is_none_or(|backend| !is_built_in(backend))
}

/// Whether a file outside the versions is for human readers, or for a backend that looks for it itself.
pub(crate) fn is_welcome(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    name == "config.pbtxt"
        || lower.starts_with("readme")
        || lower.starts_with("licen")
        || lower.ends_with(".md")
        || lower.starts_with("libtriton_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probable_version_names_are_recognised() {
        for (name, version) in [
            ("01", Some(1)),
            ("v2", Some(2)),
            ("V_3", Some(3)),
            ("version4", Some(4)),
            ("-1", Some(1)),
            ("1.0", Some(1)),
            ("7.bak", Some(7)),
            ("weights", None),
            ("vocab", None),
            ("", None),
            ("99999999999999999999999", None),
        ] {
            assert_eq!(likely_version(name), version, "{name}");
        }
    }

    #[test]
    fn only_file_of_the_same_extension_is_suggested() {
        assert_eq!(same_ending("model.onnx", &["notes.txt", "net.onnx"]), Some("net.onnx"));
        assert_eq!(same_ending("model.onnx", &["a.onnx", "b.onnx"]), None);
        assert_eq!(same_ending("model", &["a", "b.onnx"]), None);
    }
}
