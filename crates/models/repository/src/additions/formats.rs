//! Recognises the format of a model on this machine by the names of its files.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use nereid_model_config::hint_at_other_format;

use crate::gguf::{GgufPart, is_gguf_model};
use crate::model_folder::CONFIG;
use crate::texts::{text_files, text_root};
use crate::transformers::{has_transformers_model, is_of_transformers_model};
use crate::version_number;

/// The names of the files in which an ONNX file keeps weights, relative to its folder.
pub type ExternalData<'a> = &'a dyn Fn(&Path) -> Result<Vec<String>, String>;

/// A model on this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalModel {
    /// The name that follows from the file's or the folder's.
    pub name: String,
    /// Source files and folders, each with its path in the model's folder.
    pub files: Vec<(PathBuf, String)>,
}

/// The endings of models in one file, and the name of the file in a version's folder.
const FILES: [(&str, &str); 14] = [
    ("onnx", "model.onnx"),
    ("gguf", "model.gguf"),
    ("xml", "model.xml"),
    ("pt", "model.pt"),
    ("torchscript", "model.pt"),
    ("pt2", "model.pt2"),
    ("plan", "model.plan"),
    ("engine", "model.plan"),
    ("graphdef", "model.graphdef"),
    ("pb", "model.graphdef"),
    ("netdef", "model.netdef"),
    ("ubj", "xgboost.ubj"),
    ("tl", "checkpoint.tl"),
    ("py", "model.py"),
];

/// Forests in files with generic endings: the endings, the beginning, and the name of the file in a version's folder.
const FORESTS: [(&[&str], &[u8], &str); 4] = [
    (&["json", "bst"], b"{\"learner\"", "xgboost.json"),
    (&["bst"], b"{L", "xgboost.ubj"),
    (&["bst", "model"], b"binf", "xgboost.model"),
    (&["txt", "bst"], b"tree\n", "lightgbm.txt"),
];

/// The file that a SavedModel has.
const SAVED_MODEL: &str = "saved_model.pb";

/// Where sentence-transformers and others keep the graph of a model whose other files are above.
const GRAPHS: [&str; 2] = ["onnx/model.onnx", "openvino/openvino_model.xml"];

/// Generic names: formats, and defaults of exporters.
const GENERIC: [&str; 13] = [
    "model",
    "saved_model",
    "savedmodel",
    "openvino_model",
    "onnx",
    "openvino",
    "torchscript",
    "export",
    "frozen_graph",
    "frozen_model",
    "checkpoint",
    "lightgbm",
    "xgboost",
];

impl LocalModel {
    /// Recognises the model in a file or a folder.
    ///
    /// # Errors
    /// No backend reads the source. The message lists the known formats.
    pub fn find(source: &Path, external_data: ExternalData<'_>) -> Result<Self, String> {
        let metadata =
            fs::metadata(source).map_err(|error| format!("cannot read '{}': {error}", source.display()))?;
        if metadata.is_dir() {
            return Self::of_folder(source, external_data);
        }
        if source.file_name().is_some_and(|name| name == SAVED_MODEL) {
            return Ok(Self::of_saved_model(source.parent().unwrap_or(Path::new(""))));
        }
        match target(source) {
            Some(target) => Self::of_file(source, target, external_data),
            None => Err(unknown(source)),
        }
    }

    fn of_file(source: &Path, target: &str, external_data: ExternalData<'_>) -> Result<Self, String> {
        let mut files = vec![(source.to_owned(), format!("1/{target}"))];
        match target {
            "model.onnx" => {
                for data in external_data(source)? {
                    files.push((source.with_file_name(&data), format!("1/{data}")));
                }
            }
            "model.xml" => {
                let weights = source.with_extension("bin");
                if !weights.is_file() {
                    return Err(format!(
                        "'{}' needs its weights beside it: '{}'",
                        source.display(),
                        weights.display()
                    ));
                }
                files.push((weights, "1/model.bin".to_owned()));
            }
            "model.gguf" => return Self::of_gguf(source),
            "model.netdef" => {
                let name = source.file_name().unwrap_or_default().to_string_lossy();
                let weights = source.with_file_name(format!("init_{name}"));
                if weights.is_file() {
                    files.push((weights, "1/init_model.netdef".to_owned()));
                }
            }
            _ => {}
        }
        if ["model.onnx", "model.xml"].contains(&target) {
            files.extend(files_of_texts(source));
        }
        let stem = source.file_stem().unwrap_or_default().to_string_lossy();
        Ok(Self { name: name(&stem, source), files })
    }

    /// A model in a GGUF file, or in parts, of which the file is one.
    fn of_gguf(source: &Path) -> Result<Self, String> {
        let stem = source.file_stem().unwrap_or_default().to_string_lossy();
        let Some(part) = GgufPart::of(&stem) else {
            let files = vec![(source.to_owned(), "1/model.gguf".to_owned())];
            return Ok(Self { name: name(&stem, source), files });
        };
        let ending = source.extension().unwrap_or_default().to_string_lossy();
        let mut files = Vec::new();
        for number in 1..=part.count {
            let path = source.with_file_name(format!("{}.{ending}", part.sibling(number)));
            if !path.is_file() {
                return Err(format!(
                    "'{}' is one of {} parts; '{}' is missing",
                    source.display(),
                    part.count,
                    path.display()
                ));
            }
            files.push((path, GgufPart { number, ..part }.target()));
        }
        Ok(Self { name: name(part.whole, source), files })
    }

    fn of_saved_model(folder: &Path) -> Self {
        Self {
            name: name(&folder_stem(folder), folder),
            files: vec![(folder.to_owned(), "1/model.savedmodel".to_owned())],
        }
    }

    fn of_folder(folder: &Path, external_data: ExternalData<'_>) -> Result<Self, String> {
        let entries = fs::read_dir(folder).and_then(Iterator::collect::<Result<Vec<_>, _>>);
        let entries = entries.map_err(|error| format!("cannot read '{}': {error}", folder.display()))?;
        let mut names: Vec<_> =
            entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        let has = |name: &str| names.iter().any(|other| other == name);
        if has(SAVED_MODEL) {
            return Ok(Self::of_saved_model(folder));
        }
        // TensorFlow Serving keeps versions of a SavedModel without the folder that Triton has in each. Theirs may begin with zeros.
        let number =
            |name: &String| name.bytes().all(|byte| byte.is_ascii_digit()).then(|| name.parse().ok())?;
        let last = names
            .iter()
            .filter_map(|name| Some((number(name)?, name)))
            .max_by_key(|(number, _): &(u64, _)| *number);
        if let Some((_, version)) = last
            && folder.join(version).join(SAVED_MODEL).is_file()
        {
            let name = name(&folder_stem(folder), folder);
            return Ok(Self { name, ..Self::of_saved_model(&folder.join(version)) });
        }
        if names.iter().any(|name| version_number(name).is_some()) {
            return Ok(Self::as_it_is(folder, names));
        }
        if has(CONFIG) {
            // The model's file may be in the same folder, without the folder of a version.
            let others: Vec<_> = names.iter().filter(|name| *name != CONFIG).cloned().collect();
            let Ok(mut model) = Self::of_files(folder, &others, external_data) else {
                return Ok(Self::as_it_is(folder, names));
            };
            let has = |path: &PathBuf| model.files.iter().any(|(source, _)| source == path);
            let rest = visible(names).map(|name| (folder.join(&name), name));
            let rest: Vec<_> = rest.filter(|(path, _)| !has(path)).collect();
            model.files.extend(rest);
            return Ok(model);
        }
        Self::of_files(folder, &names, external_data)
    }

    /// The model that these files of a folder are.
    fn of_files(folder: &Path, names: &[String], external_data: ExternalData<'_>) -> Result<Self, String> {
        if names.iter().any(|name| name == "model.py") {
            let name = name(&folder_stem(folder), folder);
            let files = visible(names.to_vec()).map(|name| (folder.join(&name), format!("1/{name}")));
            return Ok(Self { name, files: files.collect() });
        }
        let is_model = |name: &&String| match target(&folder.join(name)) {
            Some("model.gguf") => {
                is_gguf_model(&Path::new(name).file_stem().unwrap_or_default().to_string_lossy())
            }
            target => target.is_some_and(|target| target != "model.py"),
        };
        let models: Vec<_> = names.iter().filter(is_model).collect();
        let mut graphs = GRAPHS.iter().map(|graph| folder.join(graph));
        if models.is_empty()
            && let Some(graph) = graphs.find(|graph| graph.is_file())
        {
            return Self::find(&graph, external_data);
        }
        match models[..] {
            [only] => Self::find(&folder.join(only), external_data),
            [] if has_transformers_model(names.iter().map(String::as_str)) => {
                let files = names.iter().filter(|name| is_of_transformers_model(name));
                let files = files.map(|name| (folder.join(name), format!("1/{name}")));
                Ok(Self { name: name(&folder_stem(folder), folder), files: files.collect() })
            }
            [] => Err(unknown(folder)),
            _ => {
                let paths: Vec<_> =
                    models.iter().map(|name| folder.join(name).display().to_string()).collect();
                Err(format!(
                    "'{}' has several models; name one of them: {}",
                    folder.display(),
                    paths.join(", ")
                ))
            }
        }
    }

    /// A model with the layout of a repository.
    fn as_it_is(folder: &Path, names: Vec<String>) -> Self {
        let files = visible(names).map(|name| (folder.join(&name), name));
        Self { name: name(&folder_stem(folder), folder), files: files.collect() }
    }
}

/// The tokenizer and the settings of a model of texts, from the graph's folder or the one above, each with its path in the model's folder.
fn files_of_texts(graph: &Path) -> Vec<(PathBuf, String)> {
    // Keep links: the hub's cache has its files elsewhere, under other names.
    let graph = std::path::absolute(graph).unwrap_or_else(|_| graph.to_owned());
    let folder = graph.parent().unwrap_or(Path::new("/"));
    let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let root = if text_root(&name).is_empty() { folder.parent().unwrap_or(folder) } else { folder };
    let own = if root == folder { "" } else { name.as_str() };
    let in_folder = |folder: &str| {
        let entries = fs::read_dir(root.join(folder)).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names
            .map(|name| if folder.is_empty() { name } else { format!("{folder}/{name}") })
            .collect::<Vec<_>>()
    };
    let mut all = in_folder("");
    let folders: Vec<_> = all.iter().filter(|name| root.join(name).is_dir()).cloned().collect();
    all.extend(
        folders.iter().filter(|name| *name == own || name.contains('_')).flat_map(|name| in_folder(name)),
    );
    all.retain(|path| root.join(path).is_file());
    all.sort();
    let files = text_files(own, all.iter().map(String::as_str));
    files.into_iter().map(|(to, from)| (root.join(from), format!("1/{to}"))).collect()
}

/// Leaves out hidden files and Python's compiled modules.
fn visible(names: Vec<String>) -> impl Iterator<Item = String> {
    names.into_iter().filter(|name| !name.starts_with('.') && name != "__pycache__")
}

/// The name of a model's file in a version's folder, if a backend reads it.
fn target(source: &Path) -> Option<&'static str> {
    let ending = ending(source)?;
    let by_name = FILES.iter().find(|(known, _)| *known == ending).map(|(_, target)| *target);
    by_name.or_else(|| {
        let forests: Vec<_> = FORESTS.iter().filter(|(known, ..)| known.contains(&ending.as_str())).collect();
        let longest = forests.iter().map(|(_, beginning, _)| beginning.len()).max()?;
        let mut head = Vec::new();
        nereid_model_files::open(source).ok()?.take(longest as u64).read_to_end(&mut head).ok()?;
        forests.iter().find(|(_, beginning, _)| head.starts_with(beginning)).map(|(.., target)| *target)
    })
}

/// The ending of a file's name, in lower case.
fn ending(path: &Path) -> Option<String> {
    path.extension().map(|ending| ending.to_string_lossy().to_lowercase())
}

/// The name of a folder, without the ending of a SavedModel.
fn folder_stem(folder: &Path) -> String {
    let name = absolute(folder).file_name().unwrap_or_default().to_string_lossy().into_owned();
    name.strip_suffix(".savedmodel").map(str::to_owned).unwrap_or(name)
}

/// A path with all its folders, so that `.` has a name, too.
fn absolute(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

/// Names a model after its file's or folder's stem, or else after the first folder above without a generic name.
fn name(stem: &str, source: &Path) -> String {
    let is_generic = |name: &str| {
        GENERIC.contains(&name.to_lowercase().as_str())
            || version_number(name).is_some()
            || name.starts_with('.')
    };
    if !is_generic(stem) {
        return stem.to_owned();
    }
    // Keep links: the folders of their targets may have meaningless names.
    let folder = std::path::absolute(source).unwrap_or_else(|_| source.to_owned());
    let above = folder.ancestors().skip(1).filter_map(|folder| folder.file_name()?.to_str());
    above
        .map(|name| name.strip_suffix(".savedmodel").unwrap_or(name))
        .find(|name| !is_generic(name))
        .unwrap_or(stem)
        .to_owned()
}

/// The message for an unknown format.
fn unknown(source: &Path) -> String {
    let names = match fs::read_dir(source) {
        Ok(entries) => {
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
        }
        Err(_) => vec![source.file_name().unwrap_or_default().to_string_lossy().into_owned()],
    };
    let hint = hint_at_other_format(names.iter().map(String::as_str));
    let hint = hint.strip_prefix("; the folder has ").map_or_else(
        || {
            "; known are .onnx, .gguf, .pt, .pt2, .xml with .bin, .plan, .pb, .graphdef, .netdef, .ubj, .tl and .py, \
             forests of XGBoost (.json, .bst, .model) and LightGBM (.txt, .bst), and folders with saved_model.pb, model.py, model.safetensors or a \
             version"
                .to_owned()
        },
        |hint| format!(": it has {hint}"),
    );
    format!("'{}' is not a model that a backend reads{hint}", source.display())
}
