//! The crates for programs of others: packaged, built from their packages, and documented as a registry does.

use anyhow::Result;

use crate::project::{Project, show};
use crate::tidy::published;

/// Packages the crates, builds each package against the others, and builds their documentation with all features.
pub fn run(project: &Project) -> Result<()> {
    let metadata = project.metadata()?;
    let mut names = Vec::new();
    for package in published::packages(&metadata) {
        names.extend(["--package", package.name.as_str()]);
    }
    // What is packaged is the working tree.
    show(project.cargo(&["package", "--allow-dirty"]).args(&names))?;
    let mut doc = project.cargo(&["doc", "--no-deps", "--all-features"]);
    show(doc.args(&names).env("RUSTDOCFLAGS", "-D warnings"))
}
