//! Python environments in the target folder, created once for each set of requirements.
//!
//! The packages and programs in them are defined by the callers.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::project::{Project, show};

/// The oldest Python that the tests and tools run on.
const OLDEST_PYTHON: (u32, u32) = (3, 11);

/// Written last, so that an interrupted environment is recreated.
const STAMP: &str = "nereid-stamp.txt";

/// A virtual environment that contains exactly its requirements.
pub struct Venv {
    folder: PathBuf,
}

impl Venv {
    /// Makes the environment `name`, or returns the existing one if it has the same requirements.
    ///
    /// `requirements` is the text of a pip requirements file that refers to no other file.
    pub fn with(project: &Project, name: &str, requirements: &str) -> Result<Self> {
        let python = env::var_os("PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from);
        let version = version_of(&python)?;
        require_version(&version)?;

        let venv = Self { folder: project.scratch(name) };
        let stamp = format!("python {version}\n{requirements}");
        if venv.matches_stamp(&stamp) {
            return Ok(venv);
        }
        println!("making the Python environment {}", venv.folder.display());
        show(project.command(&python).args(["-m", "venv", "--clear"]).arg(&venv.folder)).context(
            "cannot make a Python environment; Debian keeps the module in a package of its own: apt-get install \
             python3-venv",
        )?;
        let file = venv.folder.join("requirements.txt");
        fs::write(&file, requirements)?;
        show(
            project
                .command(venv.program("python"))
                .args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "-r"])
                .arg(&file),
        )?;
        fs::write(venv.folder.join(STAMP), stamp)?;
        Ok(venv)
    }

    /// The path of a program that the environment holds.
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    /// A command that runs the environment's interpreter in the root with these arguments.
    pub fn command(&self, project: &Project, arguments: &[&str]) -> Command {
        let mut command = project.command(self.program("python"));
        // Each process of the end-to-end tests would compile all of them.
        command.args(arguments).env_remove("PYTHONDONTWRITEBYTECODE");
        command
    }

    /// Also starts the interpreter: it breaks when the Python that created it is removed.
    fn matches_stamp(&self, stamp: &str) -> bool {
        fs::read_to_string(self.folder.join(STAMP)).is_ok_and(|found| found == stamp)
            && version_of(&self.program("python")).is_ok()
    }
}

/// The interpreter's version, as in "3.11.7".
fn version_of(python: &Path) -> Result<String> {
    let output = Command::new(python)
        .args(["-c", "import platform; print(platform.python_version())"])
        .output()
        .with_context(|| {
            format!("cannot start `{}`; install Python or name one in the variable PYTHON", python.display())
        })?;
    if !output.status.success() {
        bail!("`{}` does not work: {}", python.display(), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn require_version(version: &str) -> Result<()> {
    let mut parts = version.split('.').map(str::parse::<u32>);
    let (Some(Ok(major)), Some(Ok(minor))) = (parts.next(), parts.next()) else {
        bail!("cannot read the Python version {version:?}");
    };
    if (major, minor) < OLDEST_PYTHON {
        let (major, minor) = OLDEST_PYTHON;
        bail!(
            "Python {version} is too old, {major}.{minor} or newer is needed; name another in the variable PYTHON"
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        require_version("3.11.0").unwrap();
        require_version("3.11.7").unwrap();
        require_version("3.14.0rc1").unwrap();
        require_version("4.0.0").unwrap();
    }

    #[test]
    fn old_python_is_refused_with_a_remedy() {
        let error = require_version("3.8.19").unwrap_err().to_string();
        assert!(error.contains("3.8.19 is too old") && error.contains("variable PYTHON"), "{error}");
    }

    #[test]
    fn malformed_python_version_is_refused() {
        for version in ["", "3", "three.nine", "3."] {
            assert!(require_version(version).is_err(), "{version:?}");
        }
    }

    #[test]
    fn a_missing_python_is_named() {
        let error = version_of(Path::new("no-such-python")).unwrap_err().to_string();
        assert!(error.contains("no-such-python") && error.contains("PYTHON"), "{error}");
    }

    #[test]
    fn an_environment_without_its_stamp_is_not_trusted() {
        let folder = tempfile::tempdir().unwrap();
        let venv = Venv { folder: folder.path().to_owned() };
        assert!(!venv.matches_stamp("python 3.11.7\n"));
    }
}
