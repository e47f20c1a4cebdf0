//! Builds the module for the models' Python, `crates/engines/python-module`, which the backend carries as compressed bytes.
//!
//! The module is a crate of this workspace, so its dependencies are in the one lock file, but it is always built
//! optimised, as a shared library, into a separate folder. The build does not need Python.

use std::env;
use std::fs::File;
use std::io;
use std::path::Path;
use std::process::Command;

use flate2::Compression;
use flate2::write::GzEncoder;

const PACKAGE: &str = "nereid-python-module";
const LIBRARY: &str = "libnereid_python_module.so";

fn main() {
    let variable = |name| env::var(name).unwrap_or_else(|_| panic!("cargo sets {name}"));
    let (here, out) = (variable("CARGO_MANIFEST_DIR"), variable("OUT_DIR"));
    let workspace = Path::new(&here).join("../../..");
    let parts = [
        "crates/engines/python-module",
        "crates/api/tensor-types",
        "crates/platform/cuda-driver",
        "crates/platform/dylib",
        "crates/engines/python-arrays",
        "crates/engines/worker-protocol",
        "Cargo.lock",
    ];
    for part in parts {
        println!("cargo::rerun-if-changed={}", workspace.join(part).display());
    }
    let target_dir = Path::new(&out).join("module");
    let target = variable("TARGET");
    let mut cargo = Command::new(variable("CARGO"));
    cargo.args(["build", "--release", "--locked", "--lib", "--package", PACKAGE, "--target", &target]);
    cargo.args(["--config", "profile.release.strip=\"symbols\""]);
    cargo.arg("--manifest-path").arg(workspace.join("Cargo.toml")).arg("--target-dir").arg(&target_dir);
    // Clippy does not check the module here, and the build must not depend on this machine's Python.
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER").env("PYO3_NO_PYTHON", "1");
    let status = cargo.status().unwrap_or_else(|error| panic!("cannot run cargo: {error}"));
    assert!(status.success(), "cannot build {PACKAGE}: {status}");
    let library = target_dir.join(target).join("release").join(LIBRARY);
    let packed = Path::new(&out).join("module.gz");
    pack(&library, &packed).unwrap_or_else(|error| panic!("cannot compress {}: {error}", library.display()));
    println!("cargo::rustc-env=NEREID_PYTHON_MODULE={}", packed.display());
}

/// Compresses a file.
fn pack(file: &Path, packed: &Path) -> io::Result<()> {
    let mut encoder = GzEncoder::new(File::create(packed)?, Compression::best());
    io::copy(&mut File::open(file)?, &mut encoder)?;
    encoder.finish().map(drop)
}
