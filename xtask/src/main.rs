//! `cargo xtask`: the commands of everyday work on this repository.
//!
//! This crate depends on no other crate of the workspace, so it builds in seconds and runs even when they do not
//! compile.

#![forbid(unsafe_code)]

mod bench;
mod deny;
mod docs;
mod fetch;
mod fuzz;
mod package;
mod project;
mod test;
mod tidy;
mod venv;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

use crate::project::Project;

#[derive(Parser)]
#[command(name = "cargo xtask", about = "Everyday commands of the Nereid repository", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Set up what the tests need and run every check, stopping at the first failure
    Test {
        /// Run only these steps, always in the fixed order [default: all but those that run only if named]
        #[arg(value_name = "STEP")]
        steps: Vec<test::Step>,
    },
    /// Check the rules of the house that no compiler checks
    Tidy,
    /// Check licences, banned crates, sources and advisories of the dependencies
    Deny(deny::Deny),
    /// Look for inputs that break the readers of untrusted data
    Fuzz(fuzz::Fuzz),
    /// Build the documentation as a site of all versions with a search, and check its links
    Docs(docs::Docs),
    /// Fetch files that the repository does not contain
    #[command(subcommand)]
    Fetch(fetch::Fetch),
    /// Make packages for users
    Package(package::Package),
    /// Measure the server
    #[command(subcommand)]
    Bench(bench::Bench),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    let project = Project::find()?;
    match command {
        Command::Test { steps } => test::run(&project, &steps),
        Command::Tidy => tidy::run(&project),
        Command::Deny(deny) => deny::run(&project, &deny),
        Command::Fuzz(fuzz) => fuzz::run(&project, &fuzz),
        Command::Docs(docs) => docs::run(&project, &docs),
        Command::Fetch(what) => fetch::run(&project, what),
        Command::Package(package) => package::run(&project, &package),
        Command::Bench(bench) => bench::run(&project, &bench),
    }
}
