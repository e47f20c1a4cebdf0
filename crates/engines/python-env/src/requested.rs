//! Resolves the value of `EXECUTION_ENV_PATH`.

use std::path::{Path, PathBuf};

use nereid_model_files::{self as model_files, FileError};

use crate::Error;

/// Stands for the model's folder at the beginning of a value.
const MODEL_FOLDER: &str = "$$TRITON_MODEL_DIRECTORY";

/// An existing environment.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NamedEnvironment {
    Folder(PathBuf),
    Archive(PathBuf),
}

/// Resolves a value. Paths in the model's folder must stay in it, except through links, which are their owner's
/// responsibility; other paths belong to the operator and are relative to the server's working directory.
pub(crate) fn resolve(value: &str, model: &Path) -> Result<NamedEnvironment, Error> {
    let refuse = |cause: FileError| Error::Path {
        path: value.replacen(MODEL_FOLDER, &model.display().to_string(), 1),
        cause,
    };
    let path = match value.strip_prefix(MODEL_FOLDER) {
        Some(rest) if rest.is_empty() || rest.starts_with('/') => {
            let rest = rest.trim_matches('/');
            if rest.is_empty() {
                model.to_owned()
            } else {
                model_files::inside(model, rest).map_err(refuse)?
            }
        }
        _ => PathBuf::from(value),
    };
    // Scripts and programs are run from this path, so a relative one would depend on their working directory.
    let path = path.canonicalize().map_err(|cause| refuse(cause.into()))?;
    if path.is_dir() {
        return Ok(NamedEnvironment::Folder(path));
    }
    model_files::check(&path).map_err(refuse)?;
    Ok(NamedEnvironment::Archive(path))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn value_resolves_to_folder_or_archive() {
        let place = tempfile::tempdir().unwrap();
        let root = place.path().canonicalize().unwrap();
        let model = root.join("model");
        fs::create_dir_all(model.join("env/deep")).unwrap();
        fs::write(model.join("env.tar.gz"), "").unwrap();
        fs::write(root.join("shared.tar.gz"), "").unwrap();
        std::os::unix::fs::symlink(root.join("shared.tar.gz"), model.join("link")).unwrap();
        let absolute = model.join("env").display().to_string();
        for (value, expected) in [
            ("$$TRITON_MODEL_DIRECTORY/env", NamedEnvironment::Folder(model.join("env"))),
            ("$$TRITON_MODEL_DIRECTORY//env/deep/", NamedEnvironment::Folder(model.join("env/deep"))),
            ("$$TRITON_MODEL_DIRECTORY", NamedEnvironment::Folder(model.clone())),
            ("$$TRITON_MODEL_DIRECTORY/env.tar.gz", NamedEnvironment::Archive(model.join("env.tar.gz"))),
            ("$$TRITON_MODEL_DIRECTORY/link", NamedEnvironment::Archive(root.join("shared.tar.gz"))),
            (&absolute, NamedEnvironment::Folder(model.join("env"))),
        ] {
            assert_eq!(resolve(value, &model).unwrap(), expected, "{value}");
        }
    }

    #[test]
    fn escaping_and_missing_paths_are_refused() {
        let place = tempfile::tempdir().unwrap();
        let model = place.path().join("model");
        fs::create_dir_all(model.join("env")).unwrap();
        fs::create_dir(place.path().join("other")).unwrap();
        for (value, part) in [
            ("$$TRITON_MODEL_DIRECTORY/../other", "must stay within the model's folder"),
            ("$$TRITON_MODEL_DIRECTORY/env/../../other", "must stay within the model's folder"),
            ("$$TRITON_MODEL_DIRECTORY/none", "No such file"),
            ("$$TRITON_MODEL_DIRECTORYenv", "No such file"),
            ("/tmp/$$TRITON_MODEL_DIRECTORY/env", "No such file"),
            ("/no/such/place", "No such file"),
            ("/dev/null", "a character device"),
        ] {
            let error = resolve(value, &model).unwrap_err().to_string();
            assert!(error.starts_with("EXECUTION_ENV_PATH '") && error.contains(part), "{value}: {error}");
        }
    }
}
