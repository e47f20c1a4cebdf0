//! The cost of scheduling alone. The measurement is a benchmark of `nereid-core`; this only starts it.

use anyhow::Result;

use crate::project::{Project, show};

/// Builds it optimised and prints its table.
pub fn run(project: &Project) -> Result<()> {
    show(&mut project.cargo(&["bench", "--package", "nereid-core", "--bench", "scheduling"]))
}
