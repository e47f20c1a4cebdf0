//! The cost of an embedded server: the C interface against Rust, and Python against gRPC. The measurement is a Python
//! program, because it measures Python, too; this module builds its requirements and starts it.

use anyhow::Result;

use crate::package::wheel;
use crate::project::{Project, show};
use crate::test::end_to_end_environment;

/// Prints tables in Markdown.
pub fn run(project: &Project) -> Result<()> {
    let built = ["--package", "nereid-libtritonserver", "--package", "nereid"];
    let example = ["--lib", "--bin", "nereid-command", "--example", "requests"];
    show(project.cargo(&["build", "--locked", "--release"]).args(built).args(example))?;
    let wheel = wheel::pack(project, "release")?;
    let release = project.target.join("release");
    let python = end_to_end_environment(project)?;
    let mut measure = python.command(project, &["tests/measure/embedded.py"]);
    measure.arg(release.join("libtritonserver.so")).arg(release.join("examples/requests")).arg(wheel);
    show(&mut measure)
}
