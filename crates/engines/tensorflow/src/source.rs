//! Reads a model's folder: a GraphDef or a SavedModel, its signature, and the operations to run first.
//!
//! A SavedModel names its inputs and outputs, and maps each name to a tensor of the graph. In a GraphDef, tensors have
//! the names of operations, with or without `:0`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{Error, ModelConfig, ModelContext, Result};
use nereid_graph_executor::{Dims, Port, Signature};
use nereid_model_config::default_model_filename;
use nereid_model_files::{self as model_files, PROTOBUF_LIMIT};
use prost::Message;

use crate::api::Output;
use crate::engine::Places;
use crate::library::TensorFlow;
use crate::messages::{MetaGraphDef, SavedModel, SignatureDef, TensorInfo};
use crate::options::Options;
use crate::session::{Facts, Session};
use crate::types;

const GRAPH_PLATFORM: &str = "tensorflow_graphdef";
const DEFAULT_TAG: &str = "serve";
const DEFAULT_SIGNATURE: &str = "serving_default";
/// Signatures that initialise a model and are not for requests.
const INITIALISERS: [&str; 2] = ["__saved_model_init_op", "_saved_model_init_op"];
/// The file within a SavedModel's folder.
const SAVED_MODEL: &str = "saved_model.pb";
/// How deep the folders of a SavedModel may be nested.
const DEPTH: usize = 4;

/// Operations without a result that a request could want.
const WITHOUT_RESULT: [&str; 4] = ["Assert", "Const", "NoOp", "Placeholder"];

/// A model's files, from which sessions are made.
pub(crate) struct Source {
    library: Arc<TensorFlow>,
    options: Options,
    form: Form,
    init_ops: Vec<String>,
}

enum Form {
    Graph { path: PathBuf, contents: Vec<u8> },
    SavedModel { folder: PathBuf, tags: Vec<String> },
}

/// A session, and the tensors of the graph by the model's names for them.
pub(crate) struct OpenedModel {
    pub(crate) session: Session,
    signature: Option<SignatureDef>,
}

/// The inputs or the outputs of a signature.
type Entries = BTreeMap<String, TensorInfo>;

/// The model's name for a tensor, with its type and dimensions.
struct NamedTensor {
    name: String,
    facts: Facts,
}

impl Source {
    /// Reads the parts of the version's folder that the library does not.
    ///
    /// # Errors
    /// A file is missing or malformed.
    pub(crate) fn of(library: &Arc<TensorFlow>, context: &ModelContext, options: Options) -> Result<Self> {
        let config = &context.config;
        let version = context.version_directory();
        let is_graph = config.platform == GRAPH_PLATFORM;
        let default = if is_graph { "model.graphdef" } else { "model.savedmodel" };
        let filename = default_model_filename(config).unwrap_or(default);
        let path = model_files::inside(&version, filename)
            .map_err(|error| Error::cannot_read(&version.join(filename), &error))?;
        let read = |path: &Path| {
            model_files::read(path, PROTOBUF_LIMIT).map_err(|error| Error::cannot_read(path, &error))
        };
        let form = if is_graph {
            Form::Graph { contents: read(&path)?, path }
        } else {
            check_folder(&path, DEPTH)?;
            let tags = match &options.tag {
                Some(tag) => vec![tag.clone()],
                None => tags(&read(&path.join(SAVED_MODEL))?),
            };
            Form::SavedModel { folder: path, tags }
        };
        let init_ops = match &options.init_ops {
            Some(file) => init_ops(&version, file)?,
            None => Vec::new(),
        };
        Ok(Self { library: Arc::clone(library), options, form, init_ops })
    }

    /// Opens a new session and runs the initialising operations.
    ///
    /// # Errors
    /// The library's message about the files, or a missing signature.
    pub(crate) fn open(&self) -> Result<OpenedModel> {
        let (library, config) = (&self.library, &self.options.session);
        let (path, made) = match &self.form {
            Form::Graph { path, contents } => {
                (path, Session::of_graph(library, config, contents).map(|session| (session, None)))
            }
            Form::SavedModel { folder, tags } => {
                let made = Session::of_saved_model(library, config, folder, tags);
                (folder, made.map(|(session, description)| (session, Some(description))))
            }
        };
        let (session, description) = made
            .map_err(|why| Error::invalid_arg(format!("TensorFlow cannot load {}: {why}", path.display())))?;
        let signature = description.map(|description| self.signature(description)).transpose()?;
        let targets = self.init_ops.iter().map(|name| {
            let unknown =
                || Error::invalid_arg(format!("TF_INIT_OPS_FILE: the graph has no operation '{name}'"));
            session.operation(name).ok_or_else(unknown)
        });
        let targets = targets.collect::<Result<Vec<_>>>()?;
        if !targets.is_empty() {
            let ran = session.run(&[], &[], &targets);
            ran.map_err(|why| Error::invalid_arg(format!("TF_INIT_OPS_FILE: {why}")))?;
        }
        Ok(OpenedModel { session, signature })
    }

    fn signature(&self, mut description: MetaGraphDef) -> Result<SignatureDef> {
        let signatures = &mut description.signatures;
        if let Some(wanted) = &self.options.signature {
            let names: Vec<_> = signatures.keys().map(|name| format!("'{name}'")).collect();
            return signatures.remove(wanted).ok_or_else(|| {
                let names = names.join(", ");
                Error::invalid_arg(format!(
                    "TF_SIGNATURE_DEF: the model has no signature '{wanted}', but {names}"
                ))
            });
        }
        if let Some(found) = signatures.remove(DEFAULT_SIGNATURE) {
            return Ok(found);
        }
        let other = signatures.iter().find(|(name, _)| !INITIALISERS.contains(&name.as_str()));
        other.map(|(_, signature)| signature.clone()).ok_or_else(|| {
            Error::invalid_arg("the model has no signature, which names its inputs and outputs")
        })
    }
}

impl OpenedModel {
    /// The model's signature. For a GraphDef, `config` selects the tensors, where it lists any.
    ///
    /// # Errors
    /// A tensor is missing in the graph, or its type is unknown to the protocol.
    pub(crate) fn signature(&self, config: &ModelConfig) -> Result<Signature> {
        let (inputs, outputs) = self.named(config)?;
        let ports = |role: &str, named: Vec<NamedTensor>| {
            named.into_iter().map(|named| port(role, named)).collect::<Result<Vec<_>>>()
        };
        Ok(Signature { inputs: ports("input", inputs)?, outputs: ports("output", outputs)? })
    }

    /// Locates inputs and outputs of these names in the session's graph.
    ///
    /// # Errors
    /// A name is missing in the graph.
    pub(crate) fn places(&self, inputs: &[&str], outputs: &[&str]) -> Result<Places> {
        let place = |entries: Option<&Entries>, name: &str| {
            let tensor = match entries {
                Some(entries) => entries.get(name).map(|info| info.name.as_str()),
                None => Some(name),
            };
            let found = tensor.and_then(|tensor| self.session.output(tensor));
            found.ok_or_else(|| Error::invalid_arg(format!("the graph has no tensor '{name}'")))
        };
        let of_inputs = self.signature.as_ref().map(|signature| &signature.inputs);
        let of_outputs = self.signature.as_ref().map(|signature| &signature.outputs);
        let inputs = inputs.iter().map(|name| place(of_inputs, name));
        let outputs = outputs.iter().map(|name| place(of_outputs, name));
        Ok(Places { inputs: inputs.collect::<Result<_>>()?, outputs: outputs.collect::<Result<_>>()? })
    }

    fn named(&self, config: &ModelConfig) -> Result<(Vec<NamedTensor>, Vec<NamedTensor>)> {
        if let Some(signature) = &self.signature {
            let of_entries = |entries: &Entries| {
                entries.iter().map(|(name, info)| self.of_info(name, info)).collect::<Result<Vec<_>>>()
            };
            return Ok((of_entries(&signature.inputs)?, of_entries(&signature.outputs)?));
        }
        let configured = |names: Vec<&String>| -> Result<Vec<NamedTensor>> {
            names
                .into_iter()
                .map(|name| {
                    let output = self.session.output(name);
                    let unknown = || Error::invalid_arg(format!("the graph has no tensor '{name}'"));
                    self.of_output(name.clone(), output.ok_or_else(unknown)?)
                })
                .collect()
        };
        let mut inputs = configured(config.input.iter().map(|input| &input.name).collect())?;
        let mut outputs = configured(config.output.iter().map(|output| &output.name).collect())?;
        if inputs.is_empty() || outputs.is_empty() {
            let (all_inputs, all_outputs) = self.found()?;
            inputs = if inputs.is_empty() { all_inputs } else { inputs };
            outputs = if outputs.is_empty() { all_outputs } else { outputs };
        }
        Ok((inputs, outputs))
    }

    /// The inputs and outputs of a GraphDef: its placeholders, and outputs that no operation reads.
    fn found(&self) -> Result<(Vec<NamedTensor>, Vec<NamedTensor>)> {
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for operation in self.session.operations() {
            let is_input = operation.kind == "Placeholder";
            if !is_input && (!operation.is_end || WITHOUT_RESULT.contains(&operation.kind.as_str())) {
                continue;
            }
            let list = if is_input { &mut inputs } else { &mut outputs };
            for output in operation.outputs {
                let name = if output.index == 0 {
                    operation.name.clone()
                } else {
                    format!("{}:{}", operation.name, output.index)
                };
                list.push(self.of_output(name, output)?);
            }
        }
        Ok((inputs, outputs))
    }

    fn of_output(&self, name: String, output: Output) -> Result<NamedTensor> {
        let facts =
            self.session.facts(output).map_err(|why| Error::invalid_arg(format!("'{name}': {why}")))?;
        Ok(NamedTensor { name, facts })
    }

    fn of_info(&self, name: &str, info: &TensorInfo) -> Result<NamedTensor> {
        self.session.output(&info.name).ok_or_else(|| {
            Error::invalid_arg(format!(
                "'{name}' of the signature is '{}', which is not in the graph",
                info.name
            ))
        })?;
        let shape = info.shape.as_ref().filter(|shape| !shape.unknown_rank);
        let dims = shape.map(|shape| shape.dim.iter().map(|dim| dim.size).collect());
        Ok(NamedTensor { name: name.to_owned(), facts: (info.dtype, dims) })
    }
}

fn port(role: &str, named: NamedTensor) -> Result<Port> {
    let NamedTensor { name, facts: (number, dims) } = named;
    let data_type = types::of_number(number).ok_or_else(|| {
        Error::unsupported(format!(
            "{role} '{name}' of the model has an element type that the protocol lacks"
        ))
    })?;
    let dims = dims.map(|dims| dims.into_iter().map(|dim| (dim >= 0).then_some(dim)).collect::<Dims>());
    Ok(Port { name, data_type, dims })
}

/// The tags of the graph to serve: `serve`, or the tags of the first graph if none has that tag.
fn tags(saved_model: &[u8]) -> Vec<String> {
    let default = || vec![DEFAULT_TAG.to_owned()];
    // The library reports what is wrong with a damaged file.
    let Ok(SavedModel { meta_graphs }) = SavedModel::decode(saved_model) else { return default() };
    let mut sets = meta_graphs.into_iter().filter_map(|graph| Some(graph.meta_info?.tags));
    let sets: Vec<_> = sets.by_ref().collect();
    if sets.contains(&default()) {
        return default();
    }
    let with_tag = sets.iter().find(|tags| tags.iter().any(|tag| tag == DEFAULT_TAG));
    with_tag.or(sets.first()).cloned().unwrap_or_else(default)
}

/// Checks that a folder contains only regular files and folders, because the library opens every entry.
fn check_folder(folder: &Path, depth: usize) -> Result<()> {
    let entries = folder.read_dir().map_err(|error| Error::cannot_read(folder, &error.into()))?;
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() && depth > 0 {
            check_folder(&path, depth - 1)?;
        } else {
            model_files::check(&path).map_err(|error| Error::cannot_read(&path, &error))?;
        }
    }
    Ok(())
}

/// The operations that a file lists: `{"init_ops": ["name"]}`.
fn init_ops(version: &Path, file: &str) -> Result<Vec<String>> {
    let path = version.join(file);
    let text = model_files::inside(version, file).and_then(|path| model_files::read_text(&path));
    let text = text.map_err(|error| Error::cannot_read(&path, &error))?;
    let wrong = || {
        Error::invalid_arg(format!("{}: expected an object with a list of names, 'init_ops'", path.display()))
    };
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|_| wrong())?;
    let list = value.get("init_ops").and_then(serde_json::Value::as_array).ok_or_else(wrong)?;
    list.iter().map(|name| name.as_str().map(str::to_owned).ok_or_else(wrong)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::MetaInfoDef;

    #[test]
    fn the_graph_to_serve_is_found_by_its_tags() {
        for (sets, expected) in [
            (&[&["serve"][..]][..], &["serve"][..]),
            (&[&["train"], &["serve"]], &["serve"]),
            (&[&["serve", "gpu"], &["serve"]], &["serve"]),
            (&[&["train"], &["serve", "tpu"]], &["serve", "tpu"]),
            (&[&["own"], &["other"]], &["own"]),
            (&[], &["serve"]),
        ] {
            let graph = |tags: &&[&str]| MetaGraphDef {
                meta_info: Some(MetaInfoDef { tags: tags.iter().map(|&tag| tag.to_owned()).collect() }),
                ..MetaGraphDef::default()
            };
            let model = SavedModel { meta_graphs: sets.iter().map(graph).collect() };
            assert_eq!(tags(&model.encode_to_vec()), expected, "{sets:?}");
        }
        assert_eq!(tags(b"\xff"), ["serve"]);
    }
}
