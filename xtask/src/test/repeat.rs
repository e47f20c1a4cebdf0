//! End-to-end tests that failed beside others, once more and one after the other.
//!
//! A machine that stands still for seconds fails a test that waits for a program of its own. Such a test passes alone, and is named
//! at the end of the step. A defect fails twice.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::project::show;

/// More failures than this have a cause in the code.
const MOST: usize = 5;

/// Runs `all`, a pytest that keeps its cache in a folder. Where few tests failed, runs what `alone` makes of their names.
pub fn run(cache: &Path, all: &mut Command, alone: impl FnOnce(&[String]) -> Command) -> Result<()> {
    let list = cache.join("v/cache/lastfailed");
    // Names what failed in an earlier run, until this one ends.
    if let Err(error) = fs::remove_file(&list)
        && error.kind() != ErrorKind::NotFound
    {
        return Err(error).context(format!("cannot remove {}", list.display()));
    }
    let Err(failure) = show(all) else { return Ok(()) };
    let failed = fs::read(&list).ok().and_then(|list| serde_json::from_slice(&list).ok());
    let failed: Vec<String> = failed.map(BTreeMap::<String, bool>::into_keys).into_iter().flatten().collect();
    if failed.is_empty() || failed.len() > MOST {
        return Err(failure);
    }
    println!("{failure:#}\nonce more, one after the other:");
    show(&mut alone(&failed))?;
    println!("passed only alone: {}", failed.join(", "));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]);
        shell
    }

    /// The tests that are repeated, and whether the step passes, where these tests fail beside others and alone.
    fn repeated(together: &str, alone: &str) -> (Vec<String>, bool) {
        let cache = tempfile::tempdir().unwrap();
        let list = cache.path().join("v/cache/lastfailed");
        fs::create_dir_all(list.parent().unwrap()).unwrap();
        fs::write(&list, r#"{"earlier": true}"#).unwrap();
        let mut all = shell(&format!("{together} > {}", list.display()));
        let mut named = Vec::new();
        let result = run(cache.path(), &mut all, |tests| {
            named.extend_from_slice(tests);
            shell(alone)
        });
        (named, result.is_ok())
    }

    #[test]
    fn a_few_failures_are_repeated() {
        let failing = r#"{ printf '{"b.py::two": true, "a.py::one[x y]": true}'; exit 1; }"#;
        let named = ["a.py::one[x y]", "b.py::two"].map(str::to_owned).to_vec();
        assert_eq!(repeated(failing, "exit 0"), (named.clone(), true));
        assert_eq!(repeated(failing, "exit 1"), (named, false));
    }

    #[test]
    fn nothing_is_repeated_after_success_or_many_failures() {
        assert_eq!(repeated("true", "exit 1"), (vec![], true));
        let many: Vec<_> = (0..=MOST).map(|test| format!(r#""{test}": true"#)).collect();
        let many = format!("{{ printf '{{{}}}'; exit 1; }}", many.join(","));
        assert_eq!(repeated(&many, "exit 0"), (vec![], false));
        // pytest itself failed, and wrote no list.
        assert_eq!(repeated("{ printf ''; exit 4; }", "exit 0"), (vec![], false));
    }
}
