//! The optimisation levels of packages in the profiles, and that what ships is stripped.
//!
//! In the profile `dist`, the level of a crate of ours follows from its floor: the request path is built for speed, the rest
//! for size. A package of others is listed only if what ships links it.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, Metadata, PackageId, TargetKind};
use toml_edit::{Document, Item};

use super::Problem;

const MANIFEST: &str = "Cargo.toml";

/// The crates of the program and of the library, which link everything that ships.
const SHIPPED: [&str; 2] = ["nereid-cli", "nereid-libtritonserver"];

/// The level without an entry.
const DEFAULT: &str = "s";

/// The levels of the crates of a floor.
struct Floor {
    folder: &'static str,
    level: &'static str,
    /// Crates at other levels, by folder.
    others: &'static [(&'static str, &'static str)],
}

/// Level 3 is for what runs for each request, `z` for what runs only at a start, a load or a plan, or in subcommands.
const FLOORS: &[Floor] = &[
    Floor {
        folder: "crates/api",
        level: "3",
        others: &[("model-config", "z"), ("model-files", "s"), ("testkit", "s")],
    },
    Floor {
        folder: "crates/platform",
        level: "z",
        others: &[("allocator", "3"), ("affinity", "s"), ("cuda-driver", "s"), ("shared-memory", "3")],
    },
    Floor {
        folder: "crates/server",
        level: "3",
        // Neither runs for requests to loaded models.
        others: &[("residency", "s"), ("scaling", "s")],
    },
    Floor { folder: "crates/models", level: "z", others: &[] },
    Floor {
        folder: "crates/faces",
        level: "3",
        others: &[
            ("console", "z"),
            ("metrics", "s"),
            ("openai", "s"),
            ("sagemaker", "s"),
            ("trace", "s"),
            ("vertex-ai", "s"),
        ],
    },
    Floor {
        folder: "crates/engines",
        level: "s",
        others: &[
            ("caffe2", "z"),
            ("forest", "3"),
            ("trees", "3"),
            ("graph-executor", "3"),
            ("identity", "3"),
            ("llamacpp", "3"),
            ("onnxruntime", "3"),
            ("python-env", "z"),
            ("tract", "3"),
            ("worker", "3"),
            ("worker-protocol", "3"),
        ],
    },
    Floor { folder: "crates/triton", level: "s", others: &[("plugin", "z"), ("triton-host", "3")] },
    Floor {
        folder: "crates/programs",
        level: "s",
        // The levels of the program's and the library's own crates also decide how the whole is optimised when it is linked.
        others: &[
            ("assembly", "z"),
            ("cli", "3"),
            ("libtritonserver", "3"),
            ("options", "z"),
            ("terminal", "z"),
            ("tune", "z"),
        ],
    },
];

/// Checks the profiles of the workspace's manifest.
pub fn check(manifest: &str, metadata: &Metadata) -> Vec<Problem> {
    let packages = Packages::of(metadata);
    match Document::parse(manifest) {
        Ok(document) => Profiles { manifest, document: document.as_item(), packages: &packages }.check(),
        Err(error) => vec![Problem::new(MANIFEST, 1, error.message().to_owned())],
    }
}

/// What the rules need of cargo's graph.
#[derive(Default)]
struct Packages {
    all: BTreeSet<String>,
    /// Packages linked into the program or the library.
    linked: BTreeSet<String>,
    /// The folders of our crates.
    ours: BTreeMap<String, String>,
    /// Our programs and C libraries.
    stripped: BTreeSet<String>,
}

impl Packages {
    fn of(metadata: &Metadata) -> Self {
        let mut packages = Self::default();
        let mut names: BTreeMap<&PackageId, &str> = BTreeMap::new();
        for package in &metadata.packages {
            packages.all.insert(package.name.to_string());
            names.insert(&package.id, &package.name);
            if metadata.workspace_members.contains(&package.id) {
                let folder = package.manifest_path.parent().unwrap_or(&metadata.workspace_root);
                let folder = folder.strip_prefix(&metadata.workspace_root).unwrap_or(folder);
                packages.ours.insert(package.name.to_string(), folder.to_string());
                let ships = |kind: &TargetKind| matches!(kind, TargetKind::Bin | TargetKind::CDyLib);
                if package.targets.iter().any(|target| target.kind.iter().any(ships)) {
                    packages.stripped.insert(package.name.to_string());
                }
            }
        }
        let nodes: BTreeMap<_, _> =
            metadata.resolve.iter().flat_map(|it| &it.nodes).map(|node| (&node.id, node)).collect();
        let roots = metadata.packages.iter().filter(|package| SHIPPED.contains(&package.name.as_str()));
        let mut queue: Vec<&PackageId> = roots.map(|package| &package.id).collect();
        let mut seen = BTreeSet::new();
        while let Some(id) = queue.pop() {
            if !seen.insert(id) {
                continue;
            }
            packages.linked.extend(names.get(id).map(|name| (*name).to_owned()));
            let Some(node) = nodes.get(id) else { continue };
            let used = node.deps.iter().filter(|dependency| {
                dependency.dep_kinds.iter().any(|info| info.kind == DependencyKind::Normal)
            });
            queue.extend(used.map(|dependency| &dependency.pkg));
        }
        packages
    }
}

struct Profiles<'a> {
    manifest: &'a str,
    document: &'a Item,
    packages: &'a Packages,
}

impl Profiles<'_> {
    fn check(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let dist = self.entries("dist");
        for name in dist.keys().filter(|name| !self.packages.linked.contains(*name)) {
            problems.push(self.problem("dist", name, "is not linked into what ships"));
        }
        for name in
            self.entries("dev").keys().filter(|name| *name != "*" && !self.packages.all.contains(*name))
        {
            problems.push(self.problem("dev", name, "is not a dependency"));
        }
        for (name, folder) in &self.packages.ours {
            let Some(expected) = level(folder).filter(|_| self.packages.linked.contains(name)) else {
                continue;
            };
            let found =
                dist.get(name).and_then(|entry| entry.get("opt-level")).map_or(DEFAULT.to_owned(), text);
            if found != expected {
                let message = format!(
                    "has the level {found}, but its floor says {expected} (xtask/src/tidy/profiles.rs)"
                );
                problems.push(self.problem("dist", name, &message));
            }
        }
        problems.extend(self.check_strip(&dist));
        problems
    }

    /// Cargo forgets a profile's `strip` for a package with settings of its own.
    fn check_strip(&self, dist: &BTreeMap<String, &Item>) -> Vec<Problem> {
        let is_stripped = |item: &Item| item.get("strip").map(text).as_deref() == Some("symbols");
        let mut problems = Vec::new();
        if !is_stripped(&self.document["profile"]["dist"]) {
            problems.push(Problem::new(
                MANIFEST,
                self.line("[profile.dist]"),
                "profile dist must strip symbols",
            ));
        }
        for (name, entry) in dist {
            if self.packages.stripped.contains(name) && !is_stripped(entry) {
                problems.push(self.problem(
                    "dist",
                    name,
                    "ships and has its own settings, so it needs strip = \"symbols\"",
                ));
            }
        }
        problems
    }

    /// The entries of a profile's packages.
    fn entries(&self, profile: &str) -> BTreeMap<String, &Item> {
        let packages =
            self.document.get("profile").and_then(|it| it.get(profile)).and_then(|it| it.get("package"));
        let packages = packages.and_then(Item::as_table_like);
        packages
            .map(|table| table.iter().map(|(name, item)| (name.to_owned(), item)).collect())
            .unwrap_or_default()
    }

    fn problem(&self, profile: &str, name: &str, message: &str) -> Problem {
        let line = self.line(&format!("{name}.opt-level"));
        Problem::new(MANIFEST, line, format!("profile {profile}: package '{name}' {message}"))
    }

    /// The first line that begins so, or else the first.
    fn line(&self, beginning: &str) -> usize {
        self.manifest.lines().position(|line| line.starts_with(beginning)).map_or(1, |index| index + 1)
    }
}

/// The level of a crate of ours, by its folder.
fn level(folder: &str) -> Option<&'static str> {
    let (parent, name) = folder.rsplit_once('/')?;
    let floor = FLOORS.iter().find(|floor| floor.folder == parent)?;
    Some(floor.others.iter().find(|(other, _)| *other == name).map_or(floor.level, |(_, level)| level))
}

fn text(item: &Item) -> String {
    match item.as_integer() {
        Some(number) => number.to_string(),
        None => item.as_str().unwrap_or_default().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packages() -> Packages {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let ours = [
            ("nereid-core", "crates/server/core"),
            ("nereid-metrics", "crates/faces/metrics"),
            ("nereid-check", "crates/models/check"),
            ("nereid-cli", "crates/programs/cli"),
            ("nereid-wheel", "crates/programs/wheel"),
        ];
        Packages {
            all: names(&["bytes", "proptest", "nereid-core"]),
            linked: names(&["bytes", "nereid-core", "nereid-metrics", "nereid-check", "nereid-cli"]),
            ours: ours.map(|(name, folder)| (name.to_owned(), folder.to_owned())).into(),
            stripped: names(&["nereid-cli", "nereid-wheel"]),
        }
    }

    const GOOD: &str = "[profile.dist]
strip = \"symbols\"
[profile.dist.package]
bytes.opt-level = 3
nereid-check.opt-level = \"z\"
nereid-cli.opt-level = 3
nereid-cli.strip = \"symbols\"
nereid-core.opt-level = 3
[profile.dev.package]
\"*\".debug = false
proptest.opt-level = 1
";

    fn problems(manifest: &str) -> Vec<String> {
        let (document, packages) = (Document::parse(manifest).unwrap(), packages());
        let profiles = Profiles { manifest, document: document.as_item(), packages: &packages };
        profiles.check().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn broken_rule_of_a_profile_is_reported_with_its_line() {
        assert_eq!(problems(GOOD), [""; 0]);
        for (from, to, expected) in [
            (
                "bytes.opt",
                "gone.opt",
                "Cargo.toml:4: profile dist: package 'gone' is not linked into what ships",
            ),
            ("proptest.opt", "gone.opt", "Cargo.toml:11: profile dev: package 'gone' is not a dependency"),
            (
                "nereid-core.opt-level = 3",
                "nereid-core.opt-level = 2",
                "Cargo.toml:8: profile dist: package 'nereid-core' has the level 2, but its floor says 3",
            ),
            ("nereid-core.opt-level = 3", "", "package 'nereid-core' has the level s, but its floor says 3"),
            (
                "nereid-check.opt-level = \"z\"",
                "nereid-metrics.opt-level = 3\nnereid-check.opt-level = \"z\"",
                "package 'nereid-metrics' has the level 3, but its floor says s",
            ),
            (
                "nereid-cli.strip = \"symbols\"\n",
                "",
                "Cargo.toml:6: profile dist: package 'nereid-cli' ships",
            ),
            ("strip = \"symbols\"\n[", "[", "Cargo.toml:1: profile dist must strip symbols"),
        ] {
            let found = problems(&GOOD.replacen(from, to, 1));
            assert!(found.len() == 1 && found[0].contains(expected), "{to}: {found:?}");
        }
    }
}
