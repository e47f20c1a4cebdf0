//! Lints, formatting and types of the Python code.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use ignore::WalkBuilder;

use crate::project::{Project, show};
use crate::venv::Venv;

/// The tools, and the packages whose types the code uses most.
const PACKAGES: &str = "mypy==2.4.1\nnumpy==2.4.6\npytest==9.0.2\nruff==0.17.6\n";

/// The file of a model in Python.
const MODEL: &str = "model.py";

/// Checks all Python code by the rules in `ruff.toml` and `mypy.ini`.
pub fn run(project: &Project) -> Result<()> {
    let venv = Venv::with(project, "python-checks", PACKAGES)?;
    let ruff = venv.program("ruff");
    show(project.command(&ruff).args(["check", "--quiet", "--no-cache"]))?;
    show(project.command(&ruff).args(["format", "--check", "--quiet", "--no-cache"]))?;
    let mypy = || {
        let mut mypy = project.command(venv.program("mypy"));
        mypy.arg("--cache-dir").arg(project.scratch("mypy"));
        mypy
    };
    show(&mut mypy())?;
    for model in models(&project.root)? {
        show(mypy().arg(model))?;
    }
    Ok(())
}

/// The files of models, which mypy checks in separate runs: they have the same module name.
fn models(root: &Path) -> Result<Vec<PathBuf>> {
    let mut models = Vec::new();
    let walk = WalkBuilder::new(root).require_git(false).parents(false).sort_by_file_path(Path::cmp).build();
    for entry in walk {
        let entry = entry.context("cannot walk the repository")?;
        if entry.file_name() == MODEL {
            models.push(entry.path().strip_prefix(root)?.to_owned());
        }
    }
    Ok(models)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn models_are_found_and_ignored_files_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        for path in ["b/1/model.py", "a/model.py", "a/my_model.py", "fetched/1/model.py"] {
            fs::create_dir_all(root.join(path).parent().unwrap()).unwrap();
            fs::write(root.join(path), "").unwrap();
        }
        fs::write(root.join(".gitignore"), "/fetched\n").unwrap();
        assert_eq!(models(root).unwrap(), [Path::new("a/model.py"), Path::new("b/1/model.py")]);
    }
}
