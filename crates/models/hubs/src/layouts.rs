//! Finds the model in a repository of Hugging Face's hub.
//!
//! Few repositories of the hub have the layout of a model repository. Most have the files of one model in several formats
//! and variants: `model.onnx`, `onnx/model_quantized.onnx`, `openvino/openvino_model.xml`. Of these, the best format that an
//! engine on this machine runs becomes the only version of a model that is named after the repository.

mod formats;
mod gguf;

use std::collections::BTreeMap;
use std::sync::Arc;

use self::formats::{Candidate, Format, candidates, weights};
use crate::address::{HubAddress, HubKind};

/// Whether the backend of this name runs models on this machine. `embedded` is the embedded engine for ONNX models.
pub type Engines = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// The formats and the engines that run them, the best first.
const ENGINES: [(Format, &str); 8] = [
    (Format::Onnx, "onnxruntime"),
    (Format::OpenVino, "openvino"),
    (Format::SavedModel, "tensorflow"),
    (Format::TorchScript, "pytorch"),
    (Format::Plan, "tensorrt"),
    (Format::Gguf, "llamacpp"),
    (Format::Onnx, "embedded"),
    (Format::Safetensors, "transformers"),
];

/// The most addresses in a message.
const SHOWN: usize = 12;

/// The models in a repository of the hub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arranged {
    /// Folders of models, or the files of one model, as in any model repository.
    AsIs,
    /// One model.
    Model {
        /// The model's name.
        name: String,
        /// The chosen file or folder in the repository.
        chosen: String,
        /// The paths of its files in the model's folder, with their paths in the repository.
        files: Vec<(String, String)>,
    },
}

/// Finds the models among the files of a repository.
///
/// # Errors
/// There are several models, of which the message has the addresses, or none that an engine on this machine runs.
pub fn arrange(
    address: &HubAddress,
    files: &[&str],
    engines: &dyn Fn(&str) -> bool,
) -> Result<Arranged, String> {
    let path = address.path.as_str();
    let is_file = files.contains(&path);
    // An address of a folder leaves out the files outside.
    let below: Vec<&str> = match path {
        "" => files.to_vec(),
        _ if is_file => files.to_vec(),
        _ => files.iter().filter(|file| is_below(file, path)).copied().collect(),
    };
    let relative = |file: &str| file.strip_prefix(path).unwrap_or(file).trim_start_matches('/').to_owned();
    if !is_file && below.iter().any(|file| is_of_repository(&relative(file))) {
        return Ok(Arranged::AsIs);
    }
    let mut found = candidates(&below);
    if is_file {
        found.retain(|candidate| candidate.main == path);
    }
    let Some(candidate) = choose(&found, engines).map_err(|several| names_several(address, &several))? else {
        return none_runs(address, &found, &if is_file { vec![path] } else { below });
    };
    let name = name(address, candidate, is_file);
    let mut chosen_files = candidate.files(&below);
    chosen_files.extend(candidate.text_files(files));
    Ok(Arranged::Model { name, chosen: candidate.place().to_owned(), files: chosen_files })
}

fn is_below(file: &str, folder: &str) -> bool {
    file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// Whether a file shows that its repository has the layout of a model repository, or of a model in one.
fn is_of_repository(file: &str) -> bool {
    let is_version = |name: &str| nereid_repository::version_number(name).is_some();
    match file.split('/').collect::<Vec<_>>()[..] {
        ["config.pbtxt"] => true,
        [folder, "config.pbtxt"] => !folder.starts_with('.'),
        [version, name] => is_version(version) && name.starts_with("model."),
        [_, version, name, ..] => is_version(version) && name.starts_with("model."),
        _ => false,
    }
}

/// The best model; `None` if no engine runs any.
///
/// # Errors
/// The models, if there are several and none is the main one.
fn choose<'a>(
    found: &'a [Candidate<'a>],
    engines: &dyn Fn(&str) -> bool,
) -> Result<Option<&'a Candidate<'a>>, Vec<&'a Candidate<'a>>> {
    let mut ambiguous = None;
    for (format, engine) in ENGINES {
        let of_format: Vec<_> = found.iter().filter(|candidate| candidate.format == format).collect();
        if of_format.is_empty() || !engines(engine) {
            continue;
        }
        match main_one(&of_format) {
            Ok(candidate) => return Ok(Some(candidate)),
            Err(several) => {
                ambiguous.get_or_insert(several);
            }
        }
    }
    ambiguous.map_or(Ok(None), Err)
}

/// The best variant of the only model, or of the one whose name is `model`.
fn main_one<'a>(of_format: &[&'a Candidate<'a>]) -> Result<&'a Candidate<'a>, Vec<&'a Candidate<'a>>> {
    let mut models = BTreeMap::<_, Vec<&Candidate<'_>>>::new();
    for candidate in of_format {
        models.entry((&candidate.folder, &candidate.base)).or_default().push(candidate);
    }
    let best = |variants: &Vec<&'a Candidate<'a>>| variants.iter().min_by_key(|one| one.rank()).copied();
    let is_main = |(folder, base): &(&String, &String)| folder.is_empty() && *base == "model";
    let main = models.iter().find(|(identity, _)| models.len() == 1 || is_main(identity));
    match main.and_then(|(_, variants)| best(variants)) {
        Some(candidate) => Ok(candidate),
        None => Err(models.values().filter_map(best).collect()),
    }
}

/// Names a model after the repository, or after the folder in the address. The name of a part of a model, such as an
/// encoder, has the file's name as well.
fn name(address: &HubAddress, candidate: &Candidate<'_>, is_file: bool) -> String {
    let repository = address.repository();
    // Variants of a language model are files of the whole model.
    if is_file && candidate.format != Format::Gguf {
        let is_whole = candidate.base == "model";
        return if is_whole { repository.to_owned() } else { format!("{repository}-{}", candidate.base) };
    }
    let folder = if is_file { "" } else { address.path.rsplit('/').next().unwrap_or_default() };
    if folder.is_empty() || formats::is_of_format(folder) || gguf::is_quantization(folder) {
        repository.to_owned()
    } else {
        folder.to_owned()
    }
}

/// The message for several models.
fn names_several(address: &HubAddress, several: &[&Candidate<'_>]) -> String {
    let mut addresses: Vec<_> = several.iter().map(|one| at(address, one.own_folder())).collect();
    addresses.sort();
    let more = if addresses.len() > SHOWN { ", ..." } else { "" };
    addresses.truncate(SHOWN);
    format!(
        "'{}' has several models; name one of them: {}{more}",
        at(address, &address.path),
        addresses.join(", ")
    )
}

/// An address of the same repository.
fn at(address: &HubAddress, path: &str) -> String {
    let revision = match &address.kind {
        HubKind::HuggingFace { revision } if revision != "main" => format!("@{revision}"),
        HubKind::HuggingFace { .. } | HubKind::Web(_) | HubKind::Registry { .. } => String::new(),
    };
    let slash = if path.is_empty() { "" } else { "/" };
    format!("hf://{}{revision}{slash}{path}", address.name)
}

/// Explains why no model can be run. A repository without any model files is one without models.
fn none_runs(address: &HubAddress, found: &[Candidate<'_>], files: &[&str]) -> Result<Arranged, String> {
    let shown = at(address, &address.path);
    // Safetensors hold weights of all kinds of models.
    let mut graphs = found.iter().filter(|candidate| candidate.format != Format::Safetensors);
    let main = graphs.clone().find(|candidate| candidate.base == "model");
    if let Some(candidate) = main.or(graphs.next()) {
        let engines: Vec<_> = ENGINES
            .iter()
            .filter(|(format, _)| *format == candidate.format)
            .map(|(_, engine)| *engine)
            .collect();
        return Err(format!(
            "'{shown}' has the model '{}', but no engine for it is installed: it needs the backend '{}'",
            candidate.place(),
            engines.join("' or '")
        ));
    }
    let weights = weights(files);
    let Some((_, example)) = weights.first_key_value() else {
        return if files.contains(&address.path.as_str()) {
            Err(format!("'{shown}' is not a model's file: .onnx, .xml with .bin, .pt, .plan or .gguf"))
        } else {
            Ok(Arranged::AsIs)
        };
    };
    let formats: Vec<_> = weights.keys().copied().collect();
    let as_they_are = if found.is_empty() {
        ""
    } else {
        "; language models are served as they are where the Python of models has the packages torch and transformers"
    };
    Err(format!(
        "'{shown}' has no model that this server runs, only weights in the format {} ('{example}'): export them, for instance with \
         `optimum-cli export onnx --model {} FOLDER`{as_they_are}",
        formats.join(" and "),
        address.name
    ))
}

#[cfg(test)]
mod tests;
