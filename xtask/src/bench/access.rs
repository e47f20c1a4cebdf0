//! The cost of an access policy for a request. The measurement is a benchmark of `nereid-access`; this only starts it.

use anyhow::Result;

use crate::project::{Project, show};

/// Builds it optimised, and fails if a step is over its target.
pub fn run(project: &Project) -> Result<()> {
    show(&mut project.cargo(&["bench", "--package", "nereid-access", "--bench", "requests"]))
}
