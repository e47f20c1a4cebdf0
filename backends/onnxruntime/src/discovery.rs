//! Where a library of ONNX Runtime may lie. Looks at names of files; loads nothing.

use std::env;
use std::env::consts::DLL_SUFFIX;
use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

/// What every name of the library begins with. Its helpers, such as `libonnxruntime_providers_shared.so`, go on
/// otherwise.
const NAME: &str = "libonnxruntime.";

/// Where to look, besides the system's own places.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// The setting `library`: a file, or a folder with the library in it.
    pub setting: Option<PathBuf>,
    /// `ORT_DYLIB_PATH`, the same.
    pub variable: Option<PathBuf>,
    /// The folder of backends; the library lies in its folder `onnxruntime`.
    pub backends: Option<PathBuf>,
    /// Folders into which Python environments are installed, the active one first.
    pub python: Vec<PathBuf>,
}

/// A place where a library was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The setting `library`.
    Setting,
    /// The variable `ORT_DYLIB_PATH`.
    Variable,
    /// The folder of backends.
    Backends,
    /// The active Python environment.
    Python,
    /// Wherever the system's loader looks.
    System,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Setting => "given by the setting 'library'",
            Self::Variable => "given by ORT_DYLIB_PATH",
            Self::Backends => "in the backend directory",
            Self::Python => "of the active Python environment",
            Self::System => "of the system",
        })
    }
}

/// A library to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its file; a bare name for the system's loader to find.
    pub path: PathBuf,
    /// Why it is this one.
    pub place: Place,
}

impl Places {
    /// The places that the process's environment names, beside those given.
    pub fn of_process(setting: Option<PathBuf>, backends: Option<PathBuf>) -> Self {
        let variable = |name| env::var_os(name).filter(|value| !value.is_empty());
        let path = variable("PATH").unwrap_or_default();
        let active = [variable("VIRTUAL_ENV"), variable("CONDA_PREFIX")];
        Self {
            setting,
            variable: variable("ORT_DYLIB_PATH").map(PathBuf::from),
            backends,
            python: python_prefixes(active, &path),
        }
    }
}

/// The first place that has a library. What is given by setting or variable counts even if nothing is there: whoever
/// gave it means that one.
pub fn find(places: &Places) -> Found {
    let given = [(&places.setting, Place::Setting), (&places.variable, Place::Variable)];
    for (path, place) in given {
        if let Some(path) = path {
            return Found { path: in_folder(path).unwrap_or_else(|| path.clone()), place };
        }
    }
    if let Some(path) = places.backends.as_ref().and_then(|folder| in_folder(&folder.join("onnxruntime"))) {
        return Found { path, place: Place::Backends };
    }
    if let Some(path) = places.python.iter().find_map(|prefix| in_python(prefix)) {
        return Found { path, place: Place::Python };
    }
    Found { path: PathBuf::from(format!("libonnxruntime{DLL_SUFFIX}")), place: Place::System }
}

/// The library in a folder: the one without a version in its name, or else the newest.
fn in_folder(folder: &Path) -> Option<PathBuf> {
    let names = fs::read_dir(folder).ok()?.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let newest = names
        .filter(|name| name.starts_with(NAME) && name.contains(DLL_SUFFIX))
        .max_by_key(|name| (name.len() == NAME.len() + DLL_SUFFIX.len() - 1, version_in(name)))?;
    Some(folder.join(newest))
}

/// The numbers in a name, so that 1.9 comes before 1.31.
fn version_in(name: &str) -> Vec<u64> {
    name.split('.').filter_map(|part| part.parse().ok()).collect()
}

/// The library in the `onnxruntime` package of a Python environment.
fn in_python(prefix: &Path) -> Option<PathBuf> {
    let mut libraries: Vec<_> = fs::read_dir(prefix.join("lib"))
        .ok()?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .filter(|name| name.starts_with("python3"))
        .collect();
    libraries.sort_by_key(|name| version_in(name.trim_start_matches("python")));
    let packages = libraries.iter().rev().flat_map(|name| {
        ["site-packages", "dist-packages"].map(|packages| prefix.join("lib").join(name).join(packages))
    });
    packages.into_iter().find_map(|packages| in_folder(&packages.join("onnxruntime/capi")))
}

/// The active environment says so in a variable, or by being first on the path.
fn python_prefixes(active: [Option<OsString>; 2], path: &OsString) -> Vec<PathBuf> {
    let on_path = env::split_paths(path).find(|folder| folder.join("python3").is_file());
    let on_path = on_path.and_then(|folder| folder.parent().map(Path::to_owned));
    active.into_iter().flatten().map(PathBuf::from).chain(on_path).collect()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    fn library(version: &str) -> String {
        format!("libonnxruntime{DLL_SUFFIX}{version}")
    }

    fn put(folder: &Path, names: &[&str]) {
        fs::create_dir_all(folder).unwrap();
        for name in names {
            fs::write(folder.join(name), "").unwrap();
        }
    }

    #[test]
    fn the_places_are_asked_in_order() {
        let root = TempDir::new().unwrap();
        let (backends, python) = (root.path().join("backends"), root.path().join("venv"));
        let packages = python.join("lib/python3.11/site-packages/onnxruntime/capi");
        put(&backends.join("onnxruntime"), &[&library(".1.20.0")]);
        put(&packages, &[&library(".1.31.1"), "libonnxruntime_providers_shared.so"]);
        let mut places = Places {
            setting: Some("/set/lib.so".into()),
            variable: Some("/var/lib.so".into()),
            backends: Some(backends.clone()),
            python: vec![python],
        };
        let found = |path: PathBuf, place| Found { path, place };
        assert_eq!(find(&places), found("/set/lib.so".into(), Place::Setting));
        places.setting = None;
        assert_eq!(find(&places), found("/var/lib.so".into(), Place::Variable));
        places.variable = None;
        assert_eq!(
            find(&places),
            found(backends.join("onnxruntime").join(library(".1.20.0")), Place::Backends)
        );
        places.backends = Some(root.path().join("none"));
        assert_eq!(find(&places), found(packages.join(library(".1.31.1")), Place::Python));
        places.python.clear();
        assert_eq!(find(&places), found(library("").into(), Place::System));
    }

    #[test]
    fn a_folder_may_be_given_in_place_of_the_file() {
        let root = TempDir::new().unwrap();
        put(
            root.path(),
            &[&library(".1.9.0"), &library(".1.31.1"), "libonnxruntime_providers_cuda.so", "README"],
        );
        let places = Places { setting: Some(root.path().to_owned()), ..Places::default() };
        assert_eq!(find(&places).path, root.path().join(library(".1.31.1")));
        put(root.path(), &[&library("")]);
        assert_eq!(find(&places).path, root.path().join(library("")));
    }

    #[test]
    fn the_newest_python_of_an_environment_comes_first() {
        let root = TempDir::new().unwrap();
        for version in ["python3.9", "python3.11"] {
            let packages = root.path().join("lib").join(version).join("site-packages/onnxruntime/capi");
            put(&packages, &[&library(".1.31.1")]);
        }
        let found = in_python(root.path()).unwrap();
        assert!(found.starts_with(root.path().join("lib/python3.11")), "{}", found.display());
        assert_eq!(in_python(&root.path().join("lib")), None);
    }

    #[test]
    fn an_environment_is_active_by_variable_or_by_path() {
        let root = TempDir::new().unwrap();
        put(&root.path().join("venv/bin"), &["python3"]);
        let path = env::join_paths([Path::new("/none"), &root.path().join("venv/bin")]).unwrap();
        let prefixes = python_prefixes([Some("/active".into()), None], &path);
        assert_eq!(prefixes, [PathBuf::from("/active"), root.path().join("venv")]);
        assert!(python_prefixes([None, None], &OsString::new()).is_empty());
    }
}
