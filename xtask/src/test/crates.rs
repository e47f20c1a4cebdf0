//! The crates for programs of others: packaged, built from their packages, documented as a registry does, and compared with their last
//! release.

use anyhow::Result;

use super::semver;
use crate::project::{Project, show};
use crate::tidy::published;

/// Packages the crates, builds each package against the others, builds their documentation with all features, and looks for changes that
/// break programs.
pub fn run(project: &Project) -> Result<()> {
    let metadata = project.metadata()?;
    let mut names = Vec::new();
    for package in published::packages(&metadata) {
        names.extend(["--package", package.name.as_str()]);
    }
    // What is packaged is the working tree.
    show(project.cargo(&["package", "--allow-dirty"]).args(&names))?;
    let mut doc = project.cargo(&["doc", "--no-deps", "--all-features"]);
    show(doc.args(&names).env("RUSTDOCFLAGS", "-D warnings"))?;
    semver::run(project, &names)
}
