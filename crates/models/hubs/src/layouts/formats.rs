//! Recognises the formats of models by the names of their files.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use nereid_repository::{
    has_transformers_model, is_gguf_model, is_of_transformers_model, is_transformers_model, text_files,
};

use super::gguf;

/// A format that some engine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Onnx,
    OpenVino,
    SavedModel,
    TorchScript,
    Plan,
    Gguf,
    /// A language model in the layout of the hub.
    Safetensors,
}

/// Names of folders for files of one format.
const FORMAT_FOLDERS: [&str; 9] = [
    "onnx",
    "onnx_model",
    "openvino",
    "saved_model",
    "savedmodel",
    "tensorflow",
    "tensorrt",
    "tf",
    "torchscript",
];

/// Suffixes of files' names for optimized variants.
const VARIANTS: [&str; 30] = [
    "O1",
    "O2",
    "O3",
    "O4",
    "arm64",
    "avx2",
    "avx512",
    "bf16",
    "bnb4",
    "cpu",
    "cuda",
    "dynamic",
    "fp16",
    "fp32",
    "gpu",
    "int4",
    "int8",
    "opt",
    "optimized",
    "q4",
    "q4f16",
    "q8",
    "qint8",
    "quant",
    "quantized",
    "quint8",
    "static",
    "uint8",
    "vnni",
    "8bit",
];

/// The parts of a SavedModel.
const SAVED_MODEL: [&str; 5] = ["saved_model.pb", "variables", "assets", "assets.extra", "fingerprint.pb"];

/// A file that an engine can run.
#[derive(Clone, Debug)]
pub(super) struct Candidate<'a> {
    pub format: Format,
    /// The file's path.
    pub main: &'a str,
    /// The folder without names of formats. Different models of a repository have different folders or bases.
    pub folder: String,
    /// The file's name without the variant.
    pub base: String,
    /// How the model was optimized; empty for the plain one.
    variant: String,
    /// The version of a SavedModel in TensorFlow Serving's layout.
    version: i64,
}

impl<'a> Candidate<'a> {
    fn new(format: Format, main: &'a str) -> Self {
        let (folder, name) = split(main);
        let number =
            |part: &str| nereid_repository::version_number(part).filter(|_| format == Format::SavedModel);
        let version = folder.rsplit('/').next().and_then(number).unwrap_or(-1);
        let folder: Vec<_> = folder
            .split('/')
            .filter(|part| !part.is_empty() && !is_of_format(part) && number(part).is_none())
            .filter(|part| format != Format::Gguf || !gguf::is_quantization(part))
            .collect();
        if format == Format::Gguf {
            let (base, variant) = gguf::base_and_variant(stem(name));
            return Self { format, main, folder: folder.join("/"), base, variant, version };
        }
        let is_folder = matches!(format, Format::SavedModel | Format::Safetensors);
        let stem = if is_folder { "model" } else { stem(name) };
        let (base, variant) = split_variant(stem.strip_prefix("openvino_").unwrap_or(stem));
        Self { format, main, folder: folder.join("/"), base, variant, version }
    }

    /// Orders variants, the best first: the plain one, then those closest to it.
    pub(super) fn rank(&self) -> (usize, Reverse<i64>, usize, &'a str) {
        let order =
            if self.format == Format::Gguf { gguf::ORDER } else { &["", "fp32", "fp16", "quantized"] };
        let variant = order.iter().position(|variant| *variant == self.variant).unwrap_or(order.len());
        (variant, Reverse(self.version), self.main.matches('/').count(), self.main)
    }

    /// The file, or the folder of a SavedModel.
    pub(super) fn place(&self) -> &'a str {
        match self.format {
            Format::SavedModel if self.main.contains('/') => split(self.main).0,
            _ => self.main,
        }
    }

    /// The folder that has nothing but this model, or else the file.
    pub(super) fn own_folder(&self) -> &'a str {
        if !self.folder.is_empty() && self.base == "model" { split(self.main).0 } else { self.place() }
    }

    /// The paths of its files in a model's folder, with their paths in the repository.
    pub(super) fn files(&self, all: &[&str]) -> Vec<(String, String)> {
        let (folder, name) = split(self.main);
        let beside = all.iter().filter(|path| split(path).0 == folder).copied();
        let ending = name.rsplit('.').next().unwrap_or_default();
        let main = (format!("1/model.{ending}"), self.main.to_owned());
        match self.format {
            Format::TorchScript | Format::Plan => vec![main],
            Format::Gguf => gguf::files(self.main, beside),
            Format::Safetensors => {
                let files = beside.filter(|path| is_of_transformers_model(split(path).1));
                files.map(|path| (format!("1/{}", split(path).1), path.to_owned())).collect()
            }
            Format::OpenVino => {
                vec![main, ("1/model.bin".to_owned(), format!("{}.bin", self.main.trim_end_matches(".xml")))]
            }
            Format::Onnx => {
                let is_only_one = beside.clone().filter(|path| path.ends_with(".onnx")).count() == 1;
                let data = beside.filter(|path| is_data_of(stem(name), split(path).1, is_only_one));
                let data = data.map(|path| (format!("1/{}", split(path).1), path.to_owned()));
                [main].into_iter().chain(data).collect()
            }
            Format::SavedModel => {
                let relative = |path: &str| match folder {
                    "" => Some(path.to_owned()),
                    _ => Some(path.strip_prefix(folder)?.strip_prefix('/')?.to_owned()),
                };
                let files = all.iter().filter_map(|path| Some((relative(path)?, (*path).to_owned())));
                files
                    .filter(|(path, _)| SAVED_MODEL.contains(&path.split('/').next().unwrap_or_default()))
                    .map(|(path, file)| (format!("1/model.savedmodel/{path}"), file))
                    .collect()
            }
        }
    }
}

impl Candidate<'_> {
    /// The tokenizer and the settings of a model of texts, as [`Self::files`] has its files. They may be outside of the folder in an
    /// address.
    pub(super) fn text_files(&self, all: &[&str]) -> Vec<(String, String)> {
        if !matches!(self.format, Format::Onnx | Format::OpenVino) {
            return Vec::new();
        }
        let files = text_files(split(self.main).0, all.iter().copied());
        files.into_iter().map(|(to, from)| (format!("1/{to}"), from)).collect()
    }
}

/// The files that engines can run.
pub(super) fn candidates<'a>(files: &[&'a str]) -> Vec<Candidate<'a>> {
    let format = |path: &str| {
        let (folder, name) = split(path);
        if is_transformers_model(name) {
            let beside = files.iter().map(|path| split(path)).filter(|(other, _)| *other == folder);
            return has_transformers_model(beside.map(|(_, name)| name)).then_some(Format::Safetensors);
        }
        match name.rsplit_once('.')? {
            (_, "onnx") => Some(Format::Onnx),
            (_, "xml") => {
                let weights = format!("{}.bin", path.trim_end_matches(".xml"));
                files.contains(&weights.as_str()).then_some(Format::OpenVino)
            }
            ("saved_model", "pb") => Some(Format::SavedModel),
            // Files of this ending are TorchScript or a pickle of weights.
            (stem, "pt" | "pt2") => {
                let is_script = stem == "model"
                    || ["torchscript", "traced", "scripted", "jit"].iter().any(|word| stem.contains(word));
                is_script.then_some(Format::TorchScript)
            }
            (_, "plan") => Some(Format::Plan),
            (stem, "gguf") => is_gguf_model(stem).then_some(Format::Gguf),
            _ => None,
        }
    };
    let shown = files.iter().filter(|path| !path.split('/').any(|part| part.starts_with('.')));
    shown.filter_map(|path| Some(Candidate::new(format(path)?, path))).collect()
}

/// The formats of weights without a graph, which no engine runs, each with a file.
pub(super) fn weights<'a>(files: &[&'a str]) -> BTreeMap<&'static str, &'a str> {
    let mut found = BTreeMap::new();
    for path in files {
        let name = split(path).1;
        let format = match name.rsplit_once('.') {
            Some((_, "safetensors")) => "safetensors",
            Some((_, "pt" | "pth" | "ckpt")) => "PyTorch",
            Some((stem, "bin")) if stem.contains("pytorch") => "PyTorch",
            Some((_, "h5" | "keras")) => "Keras",
            Some((_, "msgpack")) => "Flax",
            Some((_, "tflite")) => "TensorFlow Lite",
            _ => continue,
        };
        found.entry(format).or_insert(*path);
    }
    found
}

/// Whether a folder is named after a format.
pub(super) fn is_of_format(folder: &str) -> bool {
    FORMAT_FOLDERS.contains(&folder)
}

/// Whether a file has tensors of the ONNX model with this stem. Exporters write all tensors into one file, or each into
/// its own if the folder has only one model.
fn is_data_of(stem: &str, name: &str, is_only_one: bool) -> bool {
    let is_of_model = |rest: &str| {
        rest.starts_with(".onnx_data") || rest.starts_with(".onnx.data") || rest == ".data" || rest == "_data"
    };
    if name.strip_prefix(stem).is_some_and(is_of_model) {
        return true;
    }
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    let is_document = [
        "bin",
        "gitattributes",
        "h5",
        "jpeg",
        "jpg",
        "json",
        "md",
        "model",
        "msgpack",
        "onnx",
        "png",
        "pt",
        "pth",
        "py",
        "safetensors",
        "txt",
        "xml",
        "yaml",
        "yml",
    ];
    let is_tensor = name.starts_with("onnx__")
        || name.contains("_attr__value")
        || name == "weights.pb"
        || ending == "data"
        || ending == "weight"
        || ending == "bias";
    is_only_one && is_tensor && !is_document.contains(&ending)
}

/// A path's folder and name.
fn split(path: &str) -> (&str, &str) {
    path.rsplit_once('/').unwrap_or(("", path))
}

fn stem(name: &str) -> &str {
    name.rsplit_once('.').map_or(name, |(stem, _)| stem)
}

/// Splits a stem such as `model_qint8_avx512` into its base and its variant.
fn split_variant(stem: &str) -> (String, String) {
    let mut base = stem;
    let is_variant = |(rest, last): &(&str, &str)| !rest.is_empty() && VARIANTS.contains(last);
    while let Some((rest, _)) = base.rsplit_once(['_', '-']).filter(is_variant) {
        base = rest;
    }
    let variant = stem[base.len()..].trim_start_matches(['_', '-']);
    (base.to_owned(), variant.to_owned())
}
