//! The options of `nereid init` and `nereid add`, which make and fill repositories.

use std::path::PathBuf;
use std::str::FromStr;

use clap::Args;
use nereid_assembly::PlatformConfig;
use nereid_core::backend_api::DataType;
use nereid_cuda::PoolSizes;
use nereid_repository::ReadOptions;

use super::DEFAULT_REPOSITORY;
use super::backends::ConfigurationOptions;
use super::values::int;

/// Make a model repository with a small example model.
#[derive(Debug, Args)]
pub struct InitOptions {
    /// The folder, which must be empty or not exist.
    #[arg(default_value = DEFAULT_REPOSITORY)]
    pub folder: PathBuf,
}

/// Put a model into a repository: with the layout and the configuration that a server needs, after a check. A model that the
/// repository has already gets a further version.
#[derive(Debug, Args)]
pub struct AddOptions {
    /// The model: a file (.onnx, .pt, .pt2, .xml with its .bin, .plan, .pb, .graphdef, .netdef, .py), a folder (a SavedModel, a
    /// model in Python, or a model with its versions), or an address (hf://, oci://, https://, s3://, gs://, as://).
    pub source: PathBuf,

    /// The repository, a folder. It is made if it does not exist.
    #[arg(long, value_name = "FOLDER", default_value = DEFAULT_REPOSITORY)]
    pub repository: PathBuf,

    /// Name of the model. Default: the name of its file or folder.
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// File of the model's configuration. Default: one that is completed from the model's file.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["input", "output", "max_batch_size"])]
    pub config: Option<PathBuf>,

    /// An input, for formats without declarations of tensors, such as TorchScript: x:FP32:3,224,224. -1 is a dimension of any size.
    /// May be given several times.
    #[arg(long, value_name = "NAME:TYPE:DIMS", requires = "output")]
    pub input: Vec<TensorDeclaration>,

    /// An output, in the same form. May be given several times.
    #[arg(long, value_name = "NAME:TYPE:DIMS", requires = "input")]
    pub output: Vec<TensorDeclaration>,

    /// The largest batch of a model with --input and --output, whose dimensions then leave out the first one; 0 for no batches.
    #[arg(long, value_name = "COUNT", requires = "input", value_parser = int::<i32>())]
    pub max_batch_size: Option<i32>,

    /// Move the model instead of copying it. Its files are not copied within a file system, and leave their place once the model is
    /// added.
    #[arg(long = "move")]
    pub moves: bool,

    /// Make links to the model's files instead of copies of them. They have to stay where they are.
    #[arg(long, conflicts_with = "moves")]
    pub link: bool,

    /// Add the model although the check finds that it would not load here.
    #[arg(long)]
    pub force: bool,

    #[command(flatten)]
    configurations: ConfigurationOptions,
}

impl AddOptions {
    /// How to read model folders.
    pub fn reading(&self) -> ReadOptions {
        self.configurations.read_options()
    }

    /// The platform that the model would run on.
    pub fn platform(&self) -> PlatformConfig {
        self.configurations.platform(PoolSizes { pinned: 0, devices: [].into() })
    }
}

/// An input or output: its name, its type and its dimensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorDeclaration {
    /// The tensor's name.
    pub name: String,
    /// Type of its elements.
    pub data_type: DataType,
    /// The dimensions, at least one; -1 for any size.
    pub dims: Vec<i64>,
}

impl FromStr for TensorDeclaration {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A name may contain colons.
        let mut parts = text.rsplitn(3, ':');
        let (Some(dims), Some(data_type), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
            return Err("must be NAME:TYPE:DIMS, such as x:FP32:3,224,224".to_owned());
        };
        if name.is_empty() {
            return Err("the name before the type is missing".to_owned());
        }
        let upper = data_type.to_uppercase();
        // Of both names, and a configuration's without its prefix: BYTES, TYPE_STRING and STRING are one type.
        let prefixed = format!("TYPE_{}", upper.strip_prefix("TYPE_").unwrap_or(&upper));
        let known = DataType::from_protocol_name(&upper).or_else(|| DataType::from_config_name(&prefixed));
        let data_type = known.ok_or_else(|| {
            let names = DataType::ALL.map(DataType::protocol_name).join(", ");
            format!("unknown type '{data_type}' (available: {names})")
        })?;
        let dim = |text: &str| {
            let dim = text.trim().parse().ok().filter(|dim| *dim == -1 || *dim > 0);
            dim.ok_or_else(|| format!("the dimension '{text}' must be -1 or a whole number over 0"))
        };
        let dims = dims.split(',').map(dim).collect::<Result<_, _>>()?;
        Ok(Self { name: name.to_owned(), data_type, dims })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Command, parse};
    use super::*;

    fn options(arguments: &[&str]) -> Result<Box<AddOptions>, String> {
        let line = ["nereid", "add"].iter().chain(arguments).map(Into::into).collect();
        match parse(line, |_| None).map_err(|error| error.to_string())?.command {
            Some(Command::Add(options)) => Ok(options),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tensors_are_declared_by_name_type_and_dims() {
        for (text, name, data_type, dims) in [
            ("x:FP32:3,224,224", "x", DataType::Fp32, &[3, 224, 224][..]),
            ("input:0:int64:-1", "input:0", DataType::Int64, &[-1]),
            ("a b:TYPE_STRING:1", "a b", DataType::Bytes, &[1]),
            ("x:BYTES: 2, -1", "x", DataType::Bytes, &[2, -1]),
            ("text:STRING:1", "text", DataType::Bytes, &[1]),
            ("x:type_fp16:1", "x", DataType::Fp16, &[1]),
        ] {
            let expected = TensorDeclaration { name: name.into(), data_type, dims: dims.into() };
            assert_eq!(text.parse(), Ok(expected), "{text}");
        }
        for (text, expected) in [
            ("x", "must be NAME:TYPE:DIMS"),
            ("x:FP32", "must be NAME:TYPE:DIMS"),
            (":FP32:1", "the name before the type is missing"),
            ("x:FLOAT:1", "unknown type 'FLOAT' (available: BOOL, "),
            ("x:TYPE_:1", "unknown type 'TYPE_' (available: BOOL, "),
            ("x:FP32:", "the dimension '' must be"),
            ("x:FP32:0", "the dimension '0' must be"),
            ("x:FP32:1,-2", "the dimension '-2' must be"),
            ("x:FP32:1,n", "the dimension 'n' must be"),
        ] {
            let error = text.parse::<TensorDeclaration>().unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn models_are_added_to_the_repository_that_is_served_by_default() {
        let added = options(&["net.onnx"]).unwrap();
        assert_eq!((added.repository, added.source), (DEFAULT_REPOSITORY.into(), "net.onnx".into()));
        let line =
            ["net.pt", "--input=x:FP32:3", "--input=y:INT8:1", "--output=z:FP32:-1", "--max-batch-size=8"];
        let added = options(&line).unwrap();
        assert_eq!((added.input.len(), added.output.len(), added.max_batch_size), (2, 1, Some(8)));
        for (arguments, expected) in [
            (&[][..], "SOURCE"),
            (&["m.pt", "--input=x:FP32:3"], "--output"),
            (&["m.pt", "--output=x:FP32:3"], "--input"),
            (&["m.pt", "--max-batch-size=1"], "--input"),
            (&["m.pt", "--config=c", "--input=x:FP32:3", "--output=x:FP32:3"], "cannot be used with"),
            (&["m.pt", "--input=x", "--output=x:FP32:3"], "NAME:TYPE:DIMS"),
            (&["m.pt", "n.pt"], "n.pt"),
        ] {
            let error = options(arguments).unwrap_err();
            assert!(error.contains(expected), "{arguments:?}: {error}");
        }
    }
}
