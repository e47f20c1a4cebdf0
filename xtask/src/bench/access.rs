//! The cost of an access policy for a request, and what a client notices of another one that floods the same model. The
//! measurements are benchmarks of `nereid-access` and `nereid-core`; this only starts them.

use anyhow::Result;

use crate::project::{Project, show};

/// Builds them optimised, and fails if a row is over its target.
pub fn run(project: &Project) -> Result<()> {
    for (package, bench) in [("nereid-access", "requests"), ("nereid-core", "shares")] {
        show(&mut project.cargo(&["bench", "--package", package, "--bench", bench]))?;
    }
    Ok(())
}
