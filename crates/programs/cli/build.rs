//! Makes the linker export the functions of Triton's C interface to the libraries that the program loads; by default,
//! programs export none. Records commit, target and profile for `nereid --version`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-link-arg-bins=-Wl,--export-dynamic-symbol=TRITON*");
    println!("cargo::rerun-if-env-changed=NEREID_COMMIT");
    println!("cargo::rustc-env=NEREID_BUILD_COMMIT={}", commit().unwrap_or_default());
    println!("cargo::rustc-env=NEREID_BUILD_TARGET={}", env::var("TARGET").unwrap_or_default());
    println!("cargo::rustc-env=NEREID_BUILD_PROFILE={}", profile());
}

/// The commit in the variable `NEREID_COMMIT`, for builds of sources without a repository, or else git's. Builds for
/// development have none: each commit would link the program again.
fn commit() -> Option<String> {
    if let Some(commit) = env::var("NEREID_COMMIT").ok().filter(|commit| !commit.is_empty()) {
        return Some(commit);
    }
    if env::var("PROFILE").as_deref() != Ok("release") {
        return None;
    }
    let root = Path::new(&env::var_os("CARGO_MANIFEST_DIR")?).join("../../..");
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(&root).args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
        Some(text.trim().to_owned())
    };
    // A copy that cargo made of the package may be inside another repository.
    let is_ours = git(&["ls-files", "--error-unmatch", "crates/programs/cli/build.rs"]).is_some();
    let log = git(&["rev-parse", "--git-path", "logs/HEAD"]).filter(|_| is_ours)?;
    println!("cargo::rerun-if-changed={}", root.join(log).display());
    git(&["rev-parse", "--short=12", "HEAD"])
}

/// The name of cargo's profile: the folder of the target directory, `PROFILE/build/PACKAGE/out`.
fn profile() -> String {
    let folder = env::var_os("OUT_DIR").map(PathBuf::from);
    let named = folder.as_deref().and_then(|folder| folder.ancestors().nth(3)?.file_name()?.to_str());
    match named {
        Some("debug") => "dev".to_owned(),
        Some(name) => name.to_owned(),
        None => env::var("PROFILE").unwrap_or_default(),
    }
}
