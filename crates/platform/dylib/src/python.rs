//! Python environments whose packages may contain a framework's library. Reads file names and small files; runs no Python.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// The variables and the working directory that select the active Python.
pub(crate) struct Environment<'a> {
    /// The value of a variable, if set and not empty.
    pub variable: &'a dyn Fn(&str) -> Option<OsString>,
    pub working_directory: PathBuf,
}

impl Environment<'_> {
    /// The package folders of the active Python in search order: `PYTHONPATH`, then the folders of its prefixes.
    pub(crate) fn package_folders(&self) -> Vec<PathBuf> {
        let path = (self.variable)("PYTHONPATH").unwrap_or_default();
        let named = env::split_paths(&path).filter(|folder| !folder.as_os_str().is_empty());
        let named = named.map(|folder| self.working_directory.join(folder));
        named.chain(self.prefixes().iter().flat_map(|prefix| package_folders(prefix))).collect()
    }

    /// The prefixes of the active environment, most specific first, and last the prefix of `pip install --user`.
    fn prefixes(&self) -> Vec<PathBuf> {
        let active = ["VIRTUAL_ENV", "CONDA_PREFIX"].iter().filter_map(|name| (self.variable)(name));
        let mut prefixes: Vec<_> = active.map(PathBuf::from).collect();
        prefixes.extend(self.on_path());
        // A virtual environment hides the user's packages, and so does the variable.
        let is_virtual = prefixes.first().is_some_and(|prefix| prefix.join("pyvenv.cfg").is_file());
        if !is_virtual && (self.variable)("PYTHONNOUSERSITE").is_none() {
            let home = || Some(PathBuf::from((self.variable)("HOME")?).join(".local"));
            prefixes.extend((self.variable)("PYTHONUSERBASE").map(PathBuf::from).or_else(home));
        }
        prefixes
    }

    /// The prefixes of the first `python3` on the path.
    fn on_path(&self) -> Vec<PathBuf> {
        let path = (self.variable)("PATH").unwrap_or_default();
        for folder in env::split_paths(&path).filter(|folder| folder.join("python3").is_file()) {
            let Some(prefix) = folder.parent() else { continue };
            if folder.ends_with("shims") && prefix.join("versions").is_dir() {
                let versions = self.pyenv_versions(prefix);
                if versions.is_empty() {
                    // pyenv runs the next Python on the path.
                    continue;
                }
                return versions;
            }
            let mut prefixes = vec![prefix.to_owned()];
            if prefix == Path::new("/usr") {
                // Debian's pip installs there.
                prefixes.push("/usr/local".into());
            }
            return prefixes;
        }
        Vec::new()
    }

    /// The Pythons that pyenv's shims run: from `PYENV_VERSION`, else the nearest `.python-version`, else pyenv's own
    /// `version` file.
    fn pyenv_versions(&self, root: &Path) -> Vec<PathBuf> {
        let local = self.working_directory.ancestors().map(|folder| folder.join(".python-version"));
        let file = local.chain([root.join("version")]).find_map(|file| fs::read_to_string(file).ok());
        let variable = (self.variable)("PYENV_VERSION").and_then(|value| value.into_string().ok());
        let chosen = match &variable {
            Some(versions) => versions.split(':').filter(|version| !version.is_empty()).collect(),
            None => file.as_deref().map_or_else(Vec::new, words),
        };
        chosen.into_iter().filter_map(|version| pyenv_prefix(&root.join("versions"), version)).collect()
    }
}

/// The words of a version file; `#` begins a comment.
fn words(file: &str) -> Vec<&str> {
    let lines = file.lines().filter_map(|line| line.split('#').next());
    lines.flat_map(str::split_whitespace).collect()
}

/// The folder of a version: an exact match, or the newest version with this prefix.
fn pyenv_prefix(versions: &Path, version: &str) -> Option<PathBuf> {
    let exact = versions.join(version);
    if exact.is_dir() {
        return Some(exact);
    }
    let start = format!("{version}.");
    let newest =
        names(versions).filter(|name| name.starts_with(&start)).max_by_key(|name| version_in(name))?;
    Some(versions.join(newest))
}

/// The package folders of a Python prefix, newest Python first.
fn package_folders(prefix: &Path) -> Vec<PathBuf> {
    let lib = prefix.join("lib");
    let mut pythons: Vec<_> = names(&lib).filter(|name| name.starts_with("python3")).collect();
    pythons.sort_by_key(|name| version_in(name.trim_start_matches("python")));
    let folders =
        |name: &String| ["site-packages", "dist-packages"].map(|packages| lib.join(name).join(packages));
    pythons.iter().rev().flat_map(folders).collect()
}

/// The names in a folder; empty if it cannot be read.
pub(crate) fn names(folder: &Path) -> impl Iterator<Item = String> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok())
}

/// The numbers in a name, so that 1.9 comes before 1.31.
pub(crate) fn version_in(name: &str) -> Vec<u64> {
    name.split('.').filter_map(|part| part.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    /// A folder with files, which the variables' values are relative to.
    struct Home(TempDir);

    impl Home {
        fn with(files: &[&str]) -> Self {
            let home = Self(TempDir::new().unwrap());
            files.iter().for_each(|file| home.write(file, ""));
            home
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn write(&self, file: &str, contents: &str) {
            fs::create_dir_all(self.path(file).parent().unwrap()).unwrap();
            fs::write(self.path(file), contents).unwrap();
        }

        /// The prefixes in an environment with these variables, whose values are lists of paths in the folder.
        fn prefixes(&self, variables: &[(&str, &str)]) -> Vec<PathBuf> {
            self.of_environment(variables, |environment| environment.prefixes())
        }

        fn of_environment(
            &self,
            variables: &[(&str, &str)],
            what: impl Fn(&Environment<'_>) -> Vec<PathBuf>,
        ) -> Vec<PathBuf> {
            let variable = |name: &str| {
                let (_, value) = variables.iter().find(|(known, _)| *known == name)?;
                if *name == *"PYENV_VERSION" {
                    return Some(value.into());
                }
                Some(env::join_paths(value.split(':').map(|path| self.path(path))).unwrap())
            };
            let working_directory = self.path("work/deep");
            what(&Environment { variable: &variable, working_directory })
        }
    }

    #[test]
    fn environment_is_active_by_variable_or_path() {
        let home = Home::with(&["venv/bin/python3", "venv/pyvenv.cfg", "later/bin/python3"]);
        let path = ("PATH", "none:venv/bin:later/bin");
        let prefixes = home.prefixes(&[("VIRTUAL_ENV", "active"), path]);
        assert_eq!(prefixes, [home.path("active"), home.path("venv")]);
        assert_eq!(home.prefixes(&[path]), [home.path("venv")]);
        assert!(home.prefixes(&[]).is_empty());
    }

    #[test]
    fn user_packages_come_last_unless_hidden() {
        let home = Home::with(&["venv/bin/python3", "venv/pyvenv.cfg", "plain/bin/python3"]);
        let user = ("HOME", "");
        let plain = ("PATH", "plain/bin");
        assert_eq!(home.prefixes(&[user, plain]), [home.path("plain"), home.path(".local")]);
        let base = ("PYTHONUSERBASE", "base");
        assert_eq!(home.prefixes(&[user, plain, base]), [home.path("plain"), home.path("base")]);
        assert_eq!(home.prefixes(&[user, plain, ("PYTHONNOUSERSITE", "1")]), [home.path("plain")]);
        assert_eq!(home.prefixes(&[user, ("PATH", "venv/bin")]), [home.path("venv")]);
    }

    #[test]
    fn pythonpath_folders_come_first() {
        let home = Home::with(&["venv/bin/python3", "venv/pyvenv.cfg", "venv/lib/python3.11/a"]);
        let path = ("PATH", "venv/bin");
        let own = ["site", "dist"].map(|kind| home.path(&format!("venv/lib/python3.11/{kind}-packages")));
        let folders =
            |variables: &[_]| home.of_environment(variables, |environment| environment.package_folders());
        assert_eq!(folders(&[path]), own);
        let named = ["one", "two"].map(|name| home.path(name));
        assert_eq!(folders(&[path, ("PYTHONPATH", "one:two")]), [named, own].concat());
        // Relative to the working directory, as in Python.
        let variable = |name: &str| (name == "PYTHONPATH").then(|| ":libraries:".into());
        let relative = Environment { variable: &variable, working_directory: home.path("work") };
        assert_eq!(relative.package_folders(), [home.path("work/libraries")]);
    }

    #[test]
    fn pyenv_shim_resolves_to_its_selected_version() {
        let home = Home::with(&[
            "pyenv/shims/python3",
            "pyenv/versions/3.9.1/bin/python3",
            "pyenv/versions/3.11.2/bin/python3",
            "pyenv/versions/3.11.10/bin/python3",
            "system/bin/python3",
        ]);
        let path = ("PATH", "pyenv/shims:system/bin");
        let version = |version: &str| home.path(&format!("pyenv/versions/{version}"));
        // Nothing is chosen: the next one on the path.
        assert_eq!(home.prefixes(&[path]), [home.path("system")]);
        home.write("pyenv/version", "# the usual\n3.9.1\n");
        assert_eq!(home.prefixes(&[path]), [version("3.9.1")]);
        home.write("work/.python-version", "3.11.2 3.9.1\n");
        assert_eq!(home.prefixes(&[path]), [version("3.11.2"), version("3.9.1")]);
        assert_eq!(home.prefixes(&[path, ("PYENV_VERSION", "3.11")]), [version("3.11.10")]);
        assert_eq!(home.prefixes(&[path, ("PYENV_VERSION", "system")]), [home.path("system")]);
    }

    #[test]
    fn newest_python_of_an_environment_comes_first() {
        let home = Home::with(&["lib/python3.9/a", "lib/python3.11/a", "lib/other/a"]);
        let folders = package_folders(&home.path(""));
        let expected = ["python3.11/site", "python3.11/dist", "python3.9/site", "python3.9/dist"];
        assert_eq!(folders, expected.map(|folder| home.path(&format!("lib/{folder}-packages"))));
        assert!(package_folders(&home.path("none")).is_empty());
    }
}
