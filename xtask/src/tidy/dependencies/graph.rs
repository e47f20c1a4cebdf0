//! The crates and their dependencies, as cargo resolved them.

use std::collections::{BTreeMap, VecDeque};
use std::fs;

use cargo_metadata::{DependencyKind, Metadata};

/// The dependencies of each package, without development dependencies.
#[derive(Default)]
pub struct Graph {
    /// Sorted by id.
    pub(super) packages: BTreeMap<String, Package>,
}

#[derive(Default)]
pub(super) struct Package {
    pub(super) name: String,
    /// Set for the crates of this workspace.
    pub(super) member: Option<Member>,
    /// Ids.
    pub(super) uses: Vec<String>,
}

#[derive(Default)]
pub(super) struct Member {
    /// The crate's folder, relative to the root.
    pub(super) folder: String,
    pub(super) manifest: String,
}

impl Graph {
    /// The graph that cargo resolved, for all platforms.
    pub fn of(metadata: &Metadata) -> Self {
        let mut graph = Self::default();
        for package in &metadata.packages {
            let member = metadata.workspace_members.contains(&package.id).then(|| {
                let folder = package.manifest_path.parent().unwrap_or(&metadata.workspace_root);
                Member {
                    folder: folder.strip_prefix(&metadata.workspace_root).unwrap_or(folder).to_string(),
                    manifest: fs::read_to_string(&package.manifest_path).unwrap_or_default(),
                }
            });
            let name = package.name.to_string();
            graph.packages.insert(package.id.repr.clone(), Package { name, member, uses: Vec::new() });
        }
        for node in metadata.resolve.iter().flat_map(|resolve| &resolve.nodes) {
            let built_from = node
                .deps
                .iter()
                .filter(|dep| dep.dep_kinds.iter().any(|info| info.kind != DependencyKind::Development));
            if let Some(package) = graph.packages.get_mut(&node.id.repr) {
                package.uses = built_from.map(|dep| dep.pkg.repr.clone()).collect();
            }
        }
        graph
    }

    pub(super) fn used_by<'a>(&'a self, package: &'a Package) -> impl Iterator<Item = &'a Package> {
        package.uses.iter().filter_map(|id| self.packages.get(id))
    }

    /// The outside crates that a package depends on, each with a shortest path to it, including itself.
    pub(super) fn outside_dependencies<'a>(&'a self, package: &'a Package) -> Vec<Vec<&'a str>> {
        let mut ways: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        let mut queue: VecDeque<(&Package, Vec<&str>)> = VecDeque::from([(package, Vec::new())]);
        while let Some((from, way)) = queue.pop_front() {
            for next in self.used_by(from).filter(|next| next.member.is_none()) {
                if ways.contains_key(next.name.as_str()) {
                    continue;
                }
                let mut way = way.clone();
                way.push(&next.name);
                ways.insert(&next.name, way.clone());
                queue.push_back((next, way));
            }
        }
        ways.into_values().collect()
    }
}

impl Member {
    pub(super) fn path(&self) -> String {
        format!("{}/Cargo.toml", self.folder)
    }

    /// The line that names the dependency, else the first.
    pub(super) fn line_of(&self, dependency: &str) -> usize {
        let names = |line: &str| {
            line.trim_start().strip_prefix(dependency).is_some_and(|rest| rest.starts_with(['.', ' ', '=']))
        };
        self.manifest.lines().position(names).map_or(1, |index| index + 1)
    }
}
