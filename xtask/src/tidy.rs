//! The house rules that neither the compiler nor clippy checks.
//!
//! Every check is a function from its input to a list of problems; here they run on the real tree. All problems are
//! listed, not just the first.

mod circles;
mod comments;
mod dependencies;
mod documents;
mod form;
mod leaks;
mod profiles;
pub mod published;
mod rust;
mod tree;
mod unsafety;

use std::{fmt, fs};

use anyhow::{Result, bail};

use crate::project::Project;
use rust::RustFile;

pub use unsafety::UNSAFE_CRATES;

/// Something that breaks a rule, and where.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Problem {
    path: String,
    line: usize,
    message: String,
}

impl Problem {
    fn new(path: &str, line: usize, message: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, message: message.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.message)
    }
}

/// Prints every problem; fails if there are any.
pub fn run(project: &Project) -> Result<()> {
    let problems = check(project)?;
    for problem in &problems {
        println!("{problem}");
    }
    match problems.len() {
        0 => {
            println!("tidy: no problem");
            Ok(())
        }
        1 => bail!("tidy: 1 problem"),
        count => bail!("tidy: {count} problems"),
    }
}

/// Every problem of the tree, sorted by place.
fn check(project: &Project) -> Result<Vec<Problem>> {
    let files = tree::text_files(&project.root)?;
    let metadata = project.metadata()?;
    let mut problems = Vec::new();
    let mut imports = circles::Imports::default();
    let mut comments = comments::Comments::default();
    for file in &files {
        problems.extend(leaks::check(file));
        problems.extend(documents::check_paths(file, &files, &project.root));
        if let Some(source) = RustFile::of(file) {
            imports.add(&source);
            comments.add(&source);
            problems.extend(form::check(&source));
            problems.extend(unsafety::check_notes(&source));
        }
    }
    problems.extend(imports.check());
    problems.extend(comments.check());
    problems.extend(documents::check_required(&files));
    problems.extend(unsafety::check_crates(&metadata, &files));
    problems.extend(dependencies::check(&dependencies::Graph::of(&metadata)));
    problems.extend(published::check(&metadata));
    problems.extend(profiles::check(&fs::read_to_string(project.root.join("Cargo.toml"))?, &metadata));
    problems.sort();
    Ok(problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_tidy() {
        let problems = check(&Project::find().unwrap()).unwrap();
        let list: Vec<_> = problems.iter().map(Problem::to_string).collect();
        assert!(list.is_empty(), "{} problems:\n{}", list.len(), list.join("\n"));
    }

    #[test]
    fn a_problem_is_shown_in_the_form_that_editors_jump_to() {
        assert_eq!(Problem::new("crates/a/src/lib.rs", 7, "no").to_string(), "crates/a/src/lib.rs:7: no");
    }
}
