//! Runs the tests of the crates with unsafe code under AddressSanitizer and LeakSanitizer, which come with the stable toolchain.

use std::env::consts::ARCH;

use anyhow::{Context as _, Result};

use crate::project::{Project, show};
use crate::tidy::UNSAFE_CRATES;

/// Crates without tests of their own. Tests of other crates and of clients run their code.
const LEFT_OUT: &[&str] = &[
    "crates/engines/python-arrays",
    "crates/engines/python-module",
    "crates/platform/cuda-driver",
    "crates/programs/libtritonserver",
    "crates/programs/wheel",
];

/// Tests of the C library's allocator, which the sanitizer replaces.
const SKIPPED: &[&str] = &["memory_freed_between_used_pieces_is_released"];

/// Runs the tests. Documentation tests are left out: rustdoc would link them without the sanitizer.
pub fn run(project: &Project) -> Result<()> {
    let metadata = project.metadata()?;
    let mut cargo = project.cargo(&["test", "--no-fail-fast", "--lib", "--tests"]);
    // With a target, the flags do not apply to build scripts and macros.
    cargo.arg(format!("--target={ARCH}-unknown-linux-gnu"));
    for folder in UNSAFE_CRATES.iter().filter(|folder| !LEFT_OUT.contains(folder)) {
        let manifest = project.root.join(folder).join("Cargo.toml");
        let package = metadata.packages.iter().find(|package| package.manifest_path == *manifest);
        let package = package.with_context(|| format!("{folder} is not a package of the workspace"))?;
        cargo.args(["-p", &package.name]);
    }
    cargo.arg("--").args(SKIPPED.iter().flat_map(|test| ["--skip", test]));
    // The flag is unstable, and this variable lets the stable compiler take it.
    show(cargo.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", "-Zsanitizer=address"))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;

    #[test]
    fn crates_are_left_out_only_without_tests() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        for folder in LEFT_OUT {
            assert!(UNSAFE_CRATES.contains(folder), "{folder} has no unsafe code");
            for file in ignore::Walk::new(root.join(folder)).flatten() {
                let text = fs::read_to_string(file.path()).unwrap_or_default();
                assert!(!text.contains("#[test]"), "{} has tests", file.path().display());
            }
        }
    }

    #[test]
    fn skipped_tests_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates");
        let sources: Vec<_> = ignore::Walk::new(root)
            .flatten()
            .filter(|file| file.path().extension().is_some_and(|ending| ending == "rs"))
            .map(|file| fs::read_to_string(file.path()).unwrap())
            .collect();
        for test in SKIPPED {
            assert!(sources.iter().any(|text| text.contains(&format!("fn {test}()"))), "{test}");
        }
    }
}
