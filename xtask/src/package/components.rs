//! The crates that end up in the program, with their licences and folders: for the third-party notices and the bill of materials.
//!
//! Follows ordinary dependencies on the platform of the program. Crates that only build scripts, procedural macros or tests use are
//! not part of it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use cargo_metadata::{CargoOpt, DependencyKind, Metadata, MetadataCommand, PackageId};

use super::elf::Machine;
use crate::project::Project;

/// The crate of the program.
pub const PROGRAM: &str = "nereid-cli";

/// The crate of the server's library, and of the program that starts its command.
pub const LIBRARY: &str = "nereid-libtritonserver";

/// Whether a build has the embedded engine for ONNX models, which is a default feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Embedded,
    None,
}

/// A crate of the program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Component {
    pub name: String,
    pub version: String,
    /// An SPDX expression.
    pub licence: String,
    pub authors: Vec<String>,
    pub repository: Option<String>,
    /// SHA-256 of the crate's file in the registry; `None` for crates of this repository.
    pub checksum: Option<String>,
    pub folder: PathBuf,
    /// Names and versions of the crates that it uses.
    pub uses: BTreeSet<(String, String)>,
}

impl Component {
    /// Whether the crate belongs to this repository.
    pub fn is_own(&self) -> bool {
        self.checksum.is_none()
    }
}

/// All crates of the program, sorted; crates of this repository included.
pub fn of_program(project: &Project, machine: Machine) -> Result<Vec<Component>> {
    of(project, machine, &[PROGRAM], Engine::Embedded)
}

/// All crates that are linked with these, sorted.
pub fn of(project: &Project, machine: Machine, roots: &[&str], engine: Engine) -> Result<Vec<Component>> {
    let features = match engine {
        Engine::Embedded => CargoOpt::SomeFeatures(Vec::new()),
        Engine::None => CargoOpt::NoDefaultFeatures,
    };
    let metadata = MetadataCommand::new()
        .current_dir(&project.root)
        .features(features)
        .other_options(vec![
            "--filter-platform".to_owned(),
            machine.target().to_owned(),
            "--locked".to_owned(),
        ])
        .exec()
        .context("cargo metadata failed")?;
    let lock = std::fs::read_to_string(project.root.join("Cargo.lock"))?;
    collect(&metadata, roots, &checksums(&lock)?)
}

fn collect(
    metadata: &Metadata,
    roots: &[&str],
    checksums: &BTreeMap<(String, String), String>,
) -> Result<Vec<Component>> {
    let resolve = metadata.resolve.as_ref().context("cargo metadata has no dependency graph")?;
    let packages: BTreeMap<&PackageId, _> =
        metadata.packages.iter().map(|package| (&package.id, package)).collect();
    let nodes: BTreeMap<&PackageId, _> = resolve.nodes.iter().map(|node| (&node.id, node)).collect();
    let find = |name: &&str| {
        let package = metadata.packages.iter().find(|package| package.name == *name);
        Ok(&package.with_context(|| format!("the workspace has no crate {name}"))?.id)
    };
    let mut next: Vec<_> = roots.iter().map(find).collect::<Result<_>>()?;
    let mut seen = BTreeSet::new();
    let mut components = Vec::new();
    while let Some(id) = next.pop() {
        let package = packages[id];
        // What a macro uses runs in the compiler.
        let is_macro = package.targets.iter().any(|target| target.is_proc_macro());
        if is_macro || !seen.insert(id) {
            continue;
        }
        let is_linked = |dependency: &&cargo_metadata::NodeDep| {
            let is_macro = packages[&dependency.pkg].targets.iter().any(|target| target.is_proc_macro());
            !is_macro && dependency.dep_kinds.iter().any(|kind| kind.kind == DependencyKind::Normal)
        };
        let used: Vec<_> =
            nodes[id].deps.iter().filter(is_linked).map(|dependency| &dependency.pkg).collect();
        let key = |id: &PackageId| (packages[id].name.to_string(), packages[id].version.to_string());
        components.push(Component {
            name: package.name.to_string(),
            version: package.version.to_string(),
            licence: package.license.clone().unwrap_or_default().replace('/', " OR "),
            authors: package.authors.clone(),
            repository: package.repository.clone(),
            checksum: checksums.get(&key(id)).cloned(),
            folder: package.manifest_path.parent().context("a manifest has no folder")?.into(),
            uses: used.iter().map(|id| key(id)).collect(),
        });
        next.extend(used);
    }
    components.sort();
    Ok(components)
}

/// The checksums in `Cargo.lock`, by name and version.
fn checksums(lock: &str) -> Result<BTreeMap<(String, String), String>> {
    let lock: toml_edit::DocumentMut = lock.parse().context("cannot read Cargo.lock")?;
    let packages = lock.get("package").and_then(|item| item.as_array_of_tables()).into_iter().flatten();
    let text = |package: &toml_edit::Table, name: &str| Some(package.get(name)?.as_str()?.to_owned());
    let entry =
        |package| Some(((text(package, "name")?, text(package, "version")?), text(package, "checksum")?));
    Ok(packages.filter_map(entry).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_has_its_libraries_but_no_tools_of_builds_and_tests() {
        let project = Project::find().unwrap();
        let components = of_program(&project, Machine::X86_64).unwrap();
        let found = |name: &str| components.iter().find(|component| component.name == name);
        for name in ["nereid-cli", "nereid-core", "tokio", "hyper", "tract-onnx", "libmimalloc-sys"] {
            assert!(found(name).is_some(), "{name}");
        }
        for name in ["cc", "proptest", "serde_derive", "xtask", "nereid-testkit", "windows-sys", "pyo3"] {
            assert!(found(name).is_none(), "{name}");
        }
        for component in &components {
            assert!(!component.licence.is_empty(), "{}", component.name);
            assert_eq!(component.is_own(), component.folder.starts_with(&project.root));
        }
        let used = components.iter().flat_map(|component| &component.uses);
        let names: BTreeSet<_> =
            components.iter().map(|component| (component.name.clone(), component.version.clone())).collect();
        for used in used {
            assert!(names.contains(used), "{used:?}");
        }
    }

    #[test]
    fn checksums_belong_to_a_name_and_a_version() {
        let lock = "[[package]]\nname = \"a\"\nversion = \"1.0.0\"\nchecksum = \"12\"\n\n\
                    [[package]]\nname = \"a\"\nversion = \"2.0.0\"\nchecksum = \"34\"\n\n\
                    [[package]]\nname = \"own\"\nversion = \"0.1.0\"\n";
        let found = checksums(lock).unwrap();
        let key = |name: &str, version: &str| (name.to_owned(), version.to_owned());
        assert_eq!(found.get(&key("a", "1.0.0")).map(String::as_str), Some("12"));
        assert_eq!(found.get(&key("a", "2.0.0")).map(String::as_str), Some("34"));
        assert_eq!(found.get(&key("own", "0.1.0")), None);
        checksums("[[package").unwrap_err();
    }
}
