//! The package for Python: a wheel with the server's library, its headers, the program and the modules.
//!
//! Knows the parts and their places in the package, not their contents.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use super::components::Engine;
use super::elf::{Program, newest_glibc};
use super::training::Build;
use super::tree::write_new;
use super::{components, contents, notices, sbom, source_date};
use crate::project::{Project, show};
use crate::venv::Venv;

/// The build tool of the wheel.
const REQUIREMENTS: &str = "maturin==1.16.0\n";

/// The names of the packages with the embedded engine and without it. They have the same modules.
const NAME: &str = "nereid-server";
const MINIMAL: &str = "nereid-server-minimal";

/// The crates of the built files.
const CRATES: [&str; 2] = [components::LIBRARY, "nereid-wheel"];

/// The library and the command, as arguments of cargo.
pub const TARGETS: [&str; 3] = ["--lib", "--bin", "nereid-command"];

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

/// Packs a wheel of the built targets. Returns its path.
pub fn build(project: &Project, build: &Build, engine: Engine) -> Result<PathBuf> {
    let materials = bill_of_materials(project, build, engine)?;
    pack_from(project, build, engine, |maturin| {
        maturin.arg("--sbom-include").arg(&materials);
        build.set_module(project, maturin)
    })
}

/// Writes the bill of materials. Returns its path.
fn bill_of_materials(project: &Project, build: &Build, engine: Engine) -> Result<PathBuf> {
    let library = Program::read(&build.folder(project).join(BUILT[0].0))?;
    let components = components::of(project, library.machine, &CRATES, engine)?;
    let program = components.iter().find(|component| component.name == components::PROGRAM);
    let version = &program.context("the program is not among the components")?.version;
    let path = project.scratch("wheel").join(format!("{}.cdx.json", contents::NAME));
    let text = sbom::text(contents::NAME, version, &components, source_date(project)?)?;
    write_new(&path, text.as_bytes())?;
    Ok(path)
}

/// Packs a wheel of the parts built with this profile. Returns its path; its folder contains no other file.
pub fn pack(project: &Project, profile: &str) -> Result<PathBuf> {
    pack_from(project, &Build::plain(profile), Engine::Embedded, |_| Ok(()))
}

/// `set_module` completes the command that builds the module.
fn pack_from(
    project: &Project,
    build: &Build,
    engine: Engine,
    set_module: impl FnOnce(&mut Command) -> Result<()>,
) -> Result<PathBuf> {
    let (built, profile) = (build.folder(project), build.profile.as_str());
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
    if let Some(zig) = &build.zig {
        zig.check("the wheel", glibc)?;
        // The release that was linked for: every tool knows its tag.
        glibc = zig.glibc;
    }
    let library = Program::read(&package.join(BUILT[0].1))?;
    let components = components::of(project, library.machine, &CRATES, engine)?;
    fs::write(stage.join("THIRD-PARTY-NOTICES.txt"), notices::text(project, &components)?)?;
    fs::copy(project.root.join("LICENSE"), stage.join("LICENSE"))?;
    for file in ["pyproject.toml", "README.md"] {
        fs::copy(project.root.join(SOURCE).join(file), stage.join(file))?;
    }
    let manifest = project.root.join(SOURCE).join("Cargo.toml");
    set_manifest(&stage.join("pyproject.toml"), &manifest, engine)?;

    let level = if profile == "dev" { "1" } else { "9" };
    let mut maturin = project.command(venv.program("maturin"));
    maturin.current_dir(&stage).args(["build", "--quiet", "--locked", "--profile", profile]);
    maturin.args(["--auditwheel", "skip", "--compatibility", &format!("manylinux_2_{glibc}")]);
    maturin.args(["--compression-level", level]).arg("--out").arg(&wheels);
    maturin.env("CARGO_TARGET_DIR", &project.target);
    set_module(&mut maturin)?;
    show(&mut maturin)?;
    let found: Vec<_> = fs::read_dir(&wheels)?.collect::<std::io::Result<_>>()?;
    match found.as_slice() {
        [wheel] => Ok(wheel.path()),
        others => bail!("maturin left {} files in {}", others.len(), wheels.display()),
    }
}

/// Points maturin to the modules' crate, which is outside the folder where the package is assembled, and names the package.
fn set_manifest(pyproject: &Path, manifest: &Path, engine: Engine) -> Result<()> {
    let mut text = fs::read_to_string(pyproject)?;
    let mut replace = |from: &str, to: &str| {
        if !text.contains(from) {
            bail!("{} has no line {}", pyproject.display(), from.trim());
        }
        text = text.replace(from, to);
        Ok(())
    };
    let table = "[tool.maturin]\n";
    replace(table, &format!("{table}manifest-path = \"{}\"\n", manifest.display()))?;
    if engine == Engine::None {
        replace(&name_line(NAME), &name_line(MINIMAL))?;
    }
    Ok(fs::write(pyproject, text)?)
}

/// The line of the project's table with its name.
fn name_line(name: &str) -> String {
    format!("name = \"{name}\"\n")
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
    use super::super::elf::Machine;
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
    fn the_package_and_its_manifest_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("pyproject.toml");
        let project = Project::find().unwrap();
        let given = fs::read_to_string(project.root.join(SOURCE).join("pyproject.toml")).unwrap();
        for (engine, name) in [(Engine::Embedded, NAME), (Engine::None, MINIMAL)] {
            fs::write(&file, &given).unwrap();
            set_manifest(&file, Path::new("/somewhere/Cargo.toml"), engine).unwrap();
            let text = fs::read_to_string(&file).unwrap();
            let document: toml_edit::DocumentMut = text.parse().unwrap();
            assert_eq!(document["project"]["name"].as_str(), Some(name));
            assert_eq!(document["tool"]["maturin"]["manifest-path"].as_str(), Some("/somewhere/Cargo.toml"));
        }
        for text in ["", "[tool.maturin]\n", "name = \"nereid-server\"\n"] {
            fs::write(&file, text).unwrap();
            set_manifest(&file, Path::new("/somewhere/Cargo.toml"), Engine::None).unwrap_err();
        }
    }

    #[test]
    fn only_the_minimal_package_lacks_the_embedded_engine() {
        let project = Project::find().unwrap();
        for (engine, expected) in [(Engine::Embedded, true), (Engine::None, false)] {
            let components = components::of(&project, Machine::X86_64, &CRATES, engine).unwrap();
            let has = |name: &str| components.iter().any(|component| component.name == name);
            assert_eq!((has("tract-onnx"), has("nereid-onnxruntime")), (expected, true), "{engine:?}");
        }
    }
}
