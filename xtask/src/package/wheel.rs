//! The package for Python: a wheel with the server's library, its headers, the program and the modules.
//!
//! Knows the parts and their places in the package, not their contents.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::elf::{Program, newest_glibc};
use super::training::Build;
use super::{components, notices};
use crate::project::{Project, show};
use crate::venv::Venv;

/// The build tool of the wheel.
const REQUIREMENTS: &str = "maturin==1.16.0\n";

/// The crates of the built files.
const CRATES: [&str; 2] = ["nereid-libtritonserver", "nereid-wheel"];

/// The built files, and their places in the package.
const BUILT: [(&str, &str); 2] =
    [("libtritonserver.so", "lib/libtritonserver.so"), ("nereid-command", "bin/nereid")];

/// The crate with the modules.
const SOURCE: &str = "crates/programs/wheel";

/// The package of the command, in a folder of its own: the end-to-end tests have a module of the same name.
const COMMAND: &str = "command/nereid_server";

/// The headers for programs in C.
const HEADERS: &str = "crates/programs/libtritonserver/include";

/// The Python environment that packs wheels.
pub fn tools(project: &Project) -> Result<Venv> {
    Venv::with(project, "maturin", REQUIREMENTS)
}

/// Builds all parts, and packs the wheel. Returns its path.
pub fn build(project: &Project, build: &Build) -> Result<PathBuf> {
    show(&mut build.command(project, &CRATES))?;
    pack_from(project, &build.folder(project), &build.profile)
}

/// Packs a wheel of the parts built with this profile. Returns its path; its folder contains no other file.
pub fn pack(project: &Project, profile: &str) -> Result<PathBuf> {
    pack_from(project, &Build::plain(profile).folder(project), profile)
}

fn pack_from(project: &Project, built: &Path, profile: &str) -> Result<PathBuf> {
    let venv = tools(project)?;
    let work = project.scratch("wheel");
    let (stage, wheels) = (work.join("project"), work.join("dist"));
    for folder in [&stage, &wheels] {
        match fs::remove_dir_all(folder) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error.into()),
            _ => fs::create_dir_all(folder)?,
        }
    }
    let source = project.root.join(SOURCE);
    let package = stage.join("nereid");
    copy_folder(&source.join("nereid"), &package)?;
    copy_folder(&source.join(COMMAND), &stage.join("nereid_server"))?;
    copy_folder(&project.root.join(HEADERS), &package.join("include"))?;
    let mut glibc = 0;
    for (file, place) in BUILT {
        let (from, to) = (built.join(file), package.join(place));
        fs::create_dir_all(to.parent().context("a file of the package is in no folder")?)?;
        fs::copy(&from, &to).with_context(|| format!("{} is not built", from.display()))?;
        glibc = glibc.max(newest_glibc(&fs::read(&to)?));
    }
    let library = Program::read(&package.join(BUILT[0].1))?;
    let components = components::of(project, library.machine, &CRATES)?;
    fs::write(stage.join("THIRD-PARTY-NOTICES.txt"), notices::text(project, &components)?)?;
    fs::copy(project.root.join("LICENSE"), stage.join("LICENSE"))?;
    for file in ["pyproject.toml", "README.md"] {
        fs::copy(project.root.join(SOURCE).join(file), stage.join(file))?;
    }
    let manifest = project.root.join(SOURCE).join("Cargo.toml");
    set_manifest(&stage.join("pyproject.toml"), &manifest)?;

    let level = if profile == "dev" { "1" } else { "9" };
    let mut maturin = project.command(venv.program("maturin"));
    maturin.current_dir(&stage).args(["build", "--quiet", "--locked", "--profile", profile]);
    maturin.args(["--auditwheel", "skip", "--compatibility", &format!("manylinux_2_{glibc}")]);
    maturin.args(["--compression-level", level]).arg("--out").arg(&wheels);
    maturin.env("CARGO_TARGET_DIR", &project.target);
    show(&mut maturin)?;
    let found: Vec<_> = fs::read_dir(&wheels)?.collect::<std::io::Result<_>>()?;
    match found.as_slice() {
        [wheel] => Ok(wheel.path()),
        others => bail!("maturin left {} files in {}", others.len(), wheels.display()),
    }
}

/// Points maturin to the modules' crate, which is outside the folder where the package is assembled.
fn set_manifest(pyproject: &Path, manifest: &Path) -> Result<()> {
    let table = "[tool.maturin]\n";
    let text = fs::read_to_string(pyproject)?;
    if !text.contains(table) {
        bail!("{} has no table {}", pyproject.display(), table.trim());
    }
    let text = text.replace(table, &format!("{table}manifest-path = \"{}\"\n", manifest.display()));
    Ok(fs::write(pyproject, text)?)
}

fn copy_folder(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot read {}", from.display()))? {
        let entry = entry?;
        let (path, target) = (entry.path(), to.join(entry.file_name()));
        if entry.file_name() == "__pycache__" {
            continue;
        } else if path.is_dir() {
            copy_folder(&path, &target)?;
        } else {
            fs::copy(&path, &target)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_copied_without_what_python_compiled() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for path in ["a.py", "deep/er/b.py", "__pycache__/a.pyc", "deep/__pycache__/b.pyc"] {
            let path = from.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "x").unwrap();
        }
        copy_folder(from.path(), to.path()).unwrap();
        for (path, expected) in
            [("a.py", true), ("deep/er/b.py", true), ("__pycache__", false), ("deep/__pycache__", false)]
        {
            assert_eq!(to.path().join(path).exists(), expected, "{path}");
        }
    }

    #[test]
    fn the_manifest_is_named_in_the_table_of_maturin() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pyproject.toml");
        fs::write(&file, "[tool.maturin]\nbindings = \"pyo3\"\n").unwrap();
        set_manifest(&file, Path::new("/somewhere/Cargo.toml")).unwrap();
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.starts_with("[tool.maturin]\nmanifest-path = \"/somewhere/Cargo.toml\"\n"), "{text}");
        fs::write(&file, "").unwrap();
        set_manifest(&file, Path::new("/somewhere/Cargo.toml")).unwrap_err();
    }
}
