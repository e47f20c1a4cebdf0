//! The crates for programs of others: complete descriptions, and no dependency that a registry would lack.
//!
//! `publish = true` marks them. `cargo xtask test crates` packages them and builds the packages.

use cargo_metadata::{DependencyKind, Metadata, Package};

use super::Problem;

/// The gaps of a crate.
struct Crate {
    /// The path of the manifest, relative to the root.
    manifest: String,
    /// Names of missing fields.
    missing: Vec<&'static str>,
    /// Dependencies that are not published, or have no version.
    unpublished: Vec<String>,
}

/// The packages that may be published, by name.
pub fn packages(metadata: &Metadata) -> Vec<&Package> {
    let members = metadata.workspace_packages();
    let mut found: Vec<_> = members.into_iter().filter(|package| is_published(package)).collect();
    found.sort_by_key(|package| &package.name);
    found
}

fn is_published(package: &Package) -> bool {
    package.publish.as_ref().is_none_or(|registries| !registries.is_empty())
}

/// Checks every crate that may be published.
pub fn check(metadata: &Metadata) -> Vec<Problem> {
    packages(metadata).into_iter().flat_map(|package| problems(&Crate::of(package, metadata))).collect()
}

impl Crate {
    fn of(package: &Package, metadata: &Metadata) -> Self {
        let folder = package.manifest_path.parent().unwrap_or(&metadata.workspace_root);
        let exists = |name: &str| folder.join(name).is_file();
        let fields = [
            ("description", package.description.is_some()),
            ("license", package.license.is_some()),
            ("documentation", package.documentation.is_some()),
            ("readme", package.readme.as_ref().is_some_and(|readme| exists(readme.as_str()))),
            ("keywords", (1..=5).contains(&package.keywords.len())),
            ("categories", (1..=5).contains(&package.categories.len())),
            ("LICENSE (the file)", exists("LICENSE")),
        ];
        let used = package.dependencies.iter().filter(|it| it.kind != DependencyKind::Development);
        let unpublished = used.filter(|dependency| {
            let Some(path) = &dependency.path else { return false };
            let found = metadata.packages.iter().find(|it| it.manifest_path.parent() == Some(path));
            dependency.req.comparators.is_empty() || found.is_none_or(|it| !is_published(it))
        });
        let manifest = &package.manifest_path;
        Self {
            manifest: manifest.strip_prefix(&metadata.workspace_root).unwrap_or(manifest).to_string(),
            missing: fields.into_iter().filter(|(_, is_there)| !is_there).map(|(name, _)| name).collect(),
            unpublished: unpublished.map(|dependency| dependency.name.clone()).collect(),
        }
    }
}

fn problems(krate: &Crate) -> Vec<Problem> {
    let missing = krate.missing.iter().map(|name| format!("a crate with `publish = true` needs {name}"));
    let unpublished = krate.unpublished.iter().map(|name| {
        format!("a crate with `publish = true` needs dependencies with it and with a version: '{name}'")
    });
    missing.chain(unpublished).map(|message| Problem::new(&krate.manifest, 1, message)).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use cargo_metadata::MetadataCommand;

    use super::*;

    const COMPLETE: &str = r#"[package]
name = "sdk"
version = "0.1.0"
edition = "2024"
license = "Apache-2.0"
description = "text"
documentation = "https://docs.rs/sdk"
readme = "README.md"
keywords = ["one"]
categories = ["science"]

[dependencies]
inner = { path = "../inner", version = "0.1.0" }

[dev-dependencies]
inner-tests = { package = "tools", path = "../tools" }
"#;

    fn write_crate(root: &Path, name: &str, manifest: &str) {
        let folder = root.join(name);
        fs::create_dir_all(folder.join("src")).unwrap();
        fs::write(folder.join("Cargo.toml"), manifest).unwrap();
        fs::write(folder.join("src/lib.rs"), "").unwrap();
    }

    /// Problems of a workspace whose crate `sdk` has this manifest; its dependency `inner` is `published` or not.
    fn found(sdk: &str, published: bool, files: &[&str]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::write(root.join("Cargo.toml"), "[workspace]\nresolver = \"3\"\nmembers = [\"*\"]\n").unwrap();
        write_crate(root, "sdk", sdk);
        let complete = COMPLETE.split("\n[dependencies]").next().unwrap().replace("\"sdk\"", "\"inner\"");
        let closed = "[package]\nname = \"inner\"\nversion = \"0.1.0\"\npublish = false\n";
        write_crate(root, "inner", if published { &complete } else { closed });
        write_crate(root, "tools", &closed.replace("inner", "tools"));
        for file in ["README.md", "LICENSE"] {
            fs::write(root.join("inner").join(file), "").unwrap();
        }
        for file in files {
            fs::write(root.join("sdk").join(file), "").unwrap();
        }
        let metadata = MetadataCommand::new().current_dir(root).exec().unwrap();
        check(&metadata).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn complete_crates_pass() {
        assert_eq!(found(COMPLETE, true, &["README.md", "LICENSE"]), [""; 0]);
        // Crates that stay in the workspace need nothing.
        let closed = "[package]\nname = \"sdk\"\nversion = \"0.1.0\"\npublish = false\n";
        assert_eq!(found(closed, false, &[]), [""; 0]);
    }

    #[test]
    fn missing_fields_files_and_versions_are_reported() {
        let all = ["README.md", "LICENSE"];
        for (from, to, published, files, expected) in [
            ("license = \"Apache-2.0\"\n", "", true, &all[..], "needs license"),
            ("description = \"text\"\n", "", true, &all, "needs description"),
            ("documentation = \"https://docs.rs/sdk\"\n", "", true, &all, "needs documentation"),
            ("keywords = [\"one\"]\n", "keywords = []\n", true, &all, "needs keywords"),
            ("categories = [\"science\"]\n", "", true, &all, "needs categories"),
            (", version = \"0.1.0\" }", " }", true, &all, "with a version: 'inner'"),
            ("", "", false, &all, "with a version: 'inner'"),
            ("", "", true, &["LICENSE"], "needs readme"),
            ("", "", true, &["README.md"], "needs LICENSE (the file)"),
        ] {
            let problems = found(&COMPLETE.replacen(from, to, 1), published, files);
            assert!(
                problems.len() == 1
                    && problems[0].contains(expected)
                    && problems[0].starts_with("sdk/Cargo.toml:1:"),
                "{expected}: {problems:?}"
            );
        }
    }
}
