//! Finds the shared library of a framework. Reads file names; loads nothing.

use std::env;
use std::env::consts::DLL_SUFFIX;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::python::{Environment, names, version_in};

/// The name of a framework's shared library, and the packages that contain it.
///
/// libtorch, for example, would be `libtorch`, in the folder `torch/lib` of Python packages.
#[derive(Clone, Copy, Debug)]
pub struct Framework {
    /// The library's file name up to the suffix.
    pub library: &'static str,
    /// An environment variable that names the library's file or folder.
    pub variable: Option<&'static str>,
    /// The backend directory's subfolder for it.
    pub backend: &'static str,
    /// The folders of Python packages that contain it, relative to `site-packages`.
    pub python_packages: &'static [&'static str],
    /// The folders of Node.js packages that contain it, relative to `node_modules`.
    pub node_packages: &'static [&'static str],
}

/// Where to search, besides the system's own places.
#[derive(Clone, Debug, Default)]
pub struct SearchPlaces {
    /// The backend's setting `library`: a file, or a folder that contains it.
    pub setting: Option<PathBuf>,
    /// The value of the framework's environment variable: a file or a folder, too.
    pub variable: Option<PathBuf>,
    /// The backend directory.
    pub backends: Option<PathBuf>,
    /// The folders where the active Python finds packages, in its order.
    pub python: Vec<PathBuf>,
    /// The folders where Node.js finds packages installed for all programs.
    pub node: Vec<PathBuf>,
}

/// The place where a library was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The setting `library`.
    Setting,
    /// The framework's environment variable.
    Variable(&'static str),
    /// The backend directory.
    Backends,
    /// The active Python environment, or the user's packages.
    Python,
    /// The Node.js packages installed for all programs.
    Node,
    /// The dynamic loader's own search path.
    System,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Setting => f.write_str("given by the setting 'library'"),
            Self::Variable(name) => write!(f, "given by {name}"),
            Self::Backends => f.write_str("in the backend directory"),
            Self::Python => f.write_str("of the active Python environment"),
            Self::Node => f.write_str("of the Node.js packages"),
            Self::System => f.write_str("of the system"),
        }
    }
}

/// A library to be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LibraryLocation {
    /// The file, or a bare name that the dynamic loader searches.
    pub path: PathBuf,
    /// Where it was found.
    pub place: Place,
}

impl SearchPlaces {
    /// The passed places, and those in this process's environment.
    pub fn of_process(framework: &Framework, setting: Option<PathBuf>, backends: Option<PathBuf>) -> Self {
        let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty());
        let working_directory = env::current_dir().unwrap_or_default();
        Self {
            setting,
            variable: framework.variable.and_then(variable).map(PathBuf::from),
            backends,
            python: Environment { variable: &variable, working_directory }.package_folders(),
            node: node_folders(variable("NODE_PATH").as_deref()),
        }
    }
}

impl Framework {
    /// The first place with the library. The setting and the variable win even if the library is missing there.
    pub fn find(&self, places: &SearchPlaces) -> LibraryLocation {
        let variable =
            self.variable.map(Place::Variable).and_then(|place| Some((places.variable.as_ref()?, place)));
        let setting = places.setting.as_ref().map(|path| (path, Place::Setting));
        if let Some((path, place)) = setting.or(variable) {
            let path = match self.in_folder(path) {
                Some(found) => found,
                // Opening it then fails with the name of the missing file.
                None if path.is_dir() => path.join(self.file_name()),
                None => path.clone(),
            };
            return LibraryLocation { path, place };
        }
        let backend = places.backends.as_ref().map(|folder| folder.join(self.backend));
        if let Some(path) = backend.and_then(|folder| self.in_folder(&folder)) {
            return LibraryLocation { path, place: Place::Backends };
        }
        if let Some(path) =
            places.python.iter().find_map(|folder| self.in_folders(folder, self.python_packages))
        {
            return LibraryLocation { path, place: Place::Python };
        }
        if let Some(path) = places.node.iter().find_map(|folder| self.in_folders(folder, self.node_packages))
        {
            return LibraryLocation { path, place: Place::Node };
        }
        LibraryLocation { path: self.file_name().into(), place: Place::System }
    }

    /// The library's file name without a version.
    fn file_name(&self) -> String {
        format!("{}{DLL_SUFFIX}", self.library)
    }

    /// The library in a folder: the one without a version in its name, or else the newest.
    fn in_folder(&self, folder: &Path) -> Option<PathBuf> {
        let unversioned = self.file_name();
        // Helpers such as `libonnxruntime_providers_shared.so` continue differently.
        let start = format!("{}.", self.library);
        let newest = names(folder)
            .filter(|name| name.starts_with(&start) && name.contains(DLL_SUFFIX))
            .max_by_key(|name| (*name == unversioned, version_in(name)))?;
        Some(folder.join(newest))
    }

    /// The library in folders of packages.
    fn in_folders(&self, packages: &Path, folders: &[&str]) -> Option<PathBuf> {
        folders.iter().find_map(|folder| self.in_folder(&packages.join(folder)))
    }
}

/// The folders of Node.js packages that are not a program's own: those that `NODE_PATH` lists, and npm's usual ones.
fn node_folders(variable: Option<&OsStr>) -> Vec<PathBuf> {
    let usual = ["/usr/local/lib/node_modules", "/usr/lib/node_modules"].map(PathBuf::from);
    variable.into_iter().flat_map(env::split_paths).chain(usual).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use tempfile::TempDir;

    use super::*;

    const ONNX_RUNTIME: Framework = Framework {
        library: "libonnxruntime",
        variable: Some("ORT_DYLIB_PATH"),
        backend: "onnxruntime",
        python_packages: &["onnxruntime/capi"],
        node_packages: &["onnxruntime-node/bin"],
    };

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
    fn places_are_searched_in_order() {
        let root = TempDir::new().unwrap();
        let (backends, python) = (root.path().join("backends"), root.path().join("site-packages"));
        let packages = python.join("onnxruntime/capi");
        let node = root.path().join("node_modules");
        put(&node.join("onnxruntime-node/bin"), &[&library(".1.30.0")]);
        put(&backends.join("onnxruntime"), &[&library(".1.20.0")]);
        put(&packages, &[&library(".1.31.1"), "libonnxruntime_providers_shared.so"]);
        let mut places = SearchPlaces {
            setting: Some("/set/lib.so".into()),
            variable: Some("/var/lib.so".into()),
            backends: Some(backends.clone()),
            python: vec![python],
            node: vec![node.clone()],
        };
        let found = |path: PathBuf, place| LibraryLocation { path, place };
        assert_eq!(ONNX_RUNTIME.find(&places), found("/set/lib.so".into(), Place::Setting));
        places.setting = None;
        assert_eq!(
            ONNX_RUNTIME.find(&places),
            found("/var/lib.so".into(), Place::Variable("ORT_DYLIB_PATH"))
        );
        places.variable = None;
        let path = backends.join("onnxruntime").join(library(".1.20.0"));
        assert_eq!(ONNX_RUNTIME.find(&places), found(path, Place::Backends));
        places.backends = Some(root.path().join("none"));
        assert_eq!(ONNX_RUNTIME.find(&places), found(packages.join(library(".1.31.1")), Place::Python));
        places.python.clear();
        let path = node.join("onnxruntime-node/bin").join(library(".1.30.0"));
        assert_eq!(ONNX_RUNTIME.find(&places), found(path, Place::Node));
        places.node.clear();
        assert_eq!(ONNX_RUNTIME.find(&places), found(library("").into(), Place::System));
    }

    #[test]
    fn node_packages_are_searched_where_node_looks_for_them() {
        let usual = ["/usr/local/lib/node_modules", "/usr/lib/node_modules"].map(PathBuf::from);
        assert_eq!(node_folders(None), usual);
        let found = node_folders(Some(OsStr::new("/a:/b c")));
        assert_eq!(found, [&["/a".into(), "/b c".into()][..], &usual].concat());
    }

    #[test]
    fn folder_in_place_of_the_file_is_searched() {
        let root = TempDir::new().unwrap();
        let helper = "libonnxruntime_providers_cuda.so";
        put(root.path(), &[&library(".1.9.0"), &library(".1.31.1"), helper, "README"]);
        let places = SearchPlaces { setting: Some(root.path().to_owned()), ..SearchPlaces::default() };
        assert_eq!(ONNX_RUNTIME.find(&places).path, root.path().join(library(".1.31.1")));
        put(root.path(), &[&library("")]);
        assert_eq!(ONNX_RUNTIME.find(&places).path, root.path().join(library("")));
    }

    #[test]
    fn folder_without_the_library_leads_to_the_missing_file() {
        let root = TempDir::new().unwrap();
        put(root.path(), &["onnxruntime_pybind11_state.so", "README"]);
        for (folder, expected) in [
            (root.path().to_owned(), root.path().join(library(""))),
            (root.path().join("none"), root.path().join("none")),
        ] {
            let places = SearchPlaces { setting: Some(folder), ..SearchPlaces::default() };
            assert_eq!(ONNX_RUNTIME.find(&places).path, expected);
        }
    }

    #[test]
    fn framework_is_found_by_its_own_names() {
        let root = TempDir::new().unwrap();
        let packages = root.path();
        let framework = |library, python_packages| Framework {
            library,
            variable: None,
            backend: "none",
            python_packages,
            node_packages: &[],
        };
        for (framework, file) in [
            (framework("libtorch", &["torch/lib"]), "torch/lib/libtorch.so"),
            (framework("libopenvino_c", &["openvino/libs"]), "openvino/libs/libopenvino_c.so.2541"),
            (framework("libtensorflow_cc", &["none", "tensorflow"]), "tensorflow/libtensorflow_cc.so.2"),
        ] {
            let file = packages.join(file);
            put(file.parent().unwrap(), &[file.file_name().unwrap().to_str().unwrap(), "libtorch_cpu.so"]);
            let variable = Some("/ignored/without/a/variable".into());
            let places =
                SearchPlaces { variable, python: vec![root.path().to_owned()], ..SearchPlaces::default() };
            assert_eq!(framework.find(&places), LibraryLocation { path: file, place: Place::Python });
        }
    }
}
