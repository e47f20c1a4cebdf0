//! LoRA adapters of a model: their files in its version's folder.

use std::path::{Path, PathBuf};

use nereid_backend_api::{Error, ModelConfig, Result};
use nereid_model_config::proto::ModelParameter;
use nereid_model_files as model_files;

/// The folder of the files in a version's folder.
const FOLDER: &str = "adapters";

const ENDING: &str = "gguf";

/// The parameter with the names of the adapters, separated by commas. Faces list them.
const PARAMETER: &str = "lora_adapters";

/// An adapter's name and its file.
pub(crate) type AdapterFile = (String, PathBuf);

/// The adapters that a configuration names, or else all in the folder, by name.
///
/// # Errors
/// `InvalidArg` for an adapter without a file.
pub(crate) fn files(version: &Path, config: &ModelConfig) -> Result<Vec<AdapterFile>> {
    let Some(names) = config.parameters.get(PARAMETER).map(|value| value.string_value.as_str()) else {
        return Ok(found(&version.join(FOLDER)));
    };
    let names = names.split(',').map(str::trim).filter(|name| !name.is_empty());
    let file = |name: &str| {
        let file = format!("{FOLDER}/{name}.{ENDING}");
        let path = model_files::inside(version, &file).and_then(|path| {
            model_files::check(&path)?;
            Ok(path)
        });
        let path = path.map_err(|error| {
            Error::invalid_arg(format!("parameter '{PARAMETER}' names '{name}', but {file}: {error}"))
        })?;
        Ok((name.to_owned(), path))
    };
    names.map(file).collect()
}

/// The adapters in a folder.
fn found(folder: &Path) -> Vec<AdapterFile> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let adapter = |path: PathBuf| {
        let name = path.file_stem()?.to_str()?.to_owned();
        let is_adapter = path.extension()? == ENDING && path.is_file() && !name.contains(',');
        is_adapter.then_some((name, path))
    };
    let mut files: Vec<_> = entries.filter_map(|entry| adapter(entry.path())).collect();
    files.sort();
    files
}

/// Adds the names of the adapters to a configuration without them.
pub(crate) fn complete(config: &mut ModelConfig, files: &[AdapterFile]) {
    if !files.is_empty() {
        let names: Vec<_> = files.iter().map(|(name, _)| name.as_str()).collect();
        let names = ModelParameter { string_value: names.join(",") };
        config.parameters.entry(PARAMETER.to_owned()).or_insert(names);
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nereid_testkit::normalised;

    use super::*;

    #[test]
    fn adapters_are_those_of_the_folder_or_of_the_configuration() {
        let version = tempfile::tempdir().unwrap();
        for file in ["b.gguf", "a.gguf", "c.d.gguf", "x,y.gguf", "other.bin", ".gguf"] {
            fs::create_dir_all(version.path().join(FOLDER)).unwrap();
            fs::write(version.path().join(FOLDER).join(file), "").unwrap();
        }
        fs::create_dir(version.path().join("adapters/folder.gguf")).unwrap();
        for (parameter, expected) in [
            (None, Ok(&["a", "b", "c.d"][..])),
            (Some(""), Ok(&[])),
            (Some(" c.d,a"), Ok(&["c.d", "a"])),
            (Some("a,z"), Err("parameter 'lora_adapters' names 'z', but adapters/z.gguf: No such file")),
            (Some("../../a"), Err("adapters/../../a.gguf: the path must stay within the model's folder")),
            (Some("folder"), Err("adapters/folder.gguf: not a regular file but a directory")),
        ] {
            let mut config = normalised("m", "backend: 'llamacpp'");
            if let Some(value) = parameter {
                let value = ModelParameter { string_value: value.to_owned() };
                config.parameters.insert(PARAMETER.to_owned(), value);
            }
            match (files(version.path(), &config), expected) {
                (Ok(found), Ok(expected)) => {
                    let names: Vec<_> = found.iter().map(|(name, _)| name.as_str()).collect();
                    assert_eq!(names, expected);
                    complete(&mut config, &found);
                    let completed = config.parameters.get(PARAMETER).map(|value| value.string_value.as_str());
                    assert_eq!(completed, Some(parameter.unwrap_or("a,b,c.d")));
                }
                (Err(error), Err(expected)) => assert!(error.message().contains(expected), "{error}"),
                (found, _) => panic!("{found:?}"),
            }
        }
        assert_eq!(files(&version.path().join("missing"), &normalised("m", "")).unwrap(), []);
    }
}
