//! The stand-in for NVIDIA's driver library, compiled and loaded for tests of the crates that use it. Each loaded copy
//! acts as a separate process.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::ffi::{CString, c_char, c_int};
use std::path::{Path, PathBuf};
use std::process::Command;

use libloading::Library;

/// A copy of the stand-in, and the hands that tests have on it.
pub struct Standin {
    /// The library, to be loaded.
    pub path: PathBuf,
    library: Library,
    _folder: tempfile::TempDir,
}

impl Standin {
    /// A stand-in with devices of these capabilities.
    pub fn with(devices: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libcuda.so.1");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../tests/gpu/standin.c");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let status = Command::new(compiler)
            .args(["-std=gnu11", "-shared", "-fPIC", "-pthread", "-Wall", "-Wextra", "-Werror"])
            .arg(format!("-DDEVICES=\"{devices}\""))
            .arg(source)
            .arg("-o")
            .arg(&path)
            .status();
        assert!(status.unwrap().success());
        // SAFETY: it has no constructors.
        let library = unsafe { Library::new(&path).unwrap() };
        Self { path, library, _folder: folder }
    }

    /// Has a call of this thread fail from now on; none, for an empty name.
    pub fn fail(&self, call: &str, code: c_int) {
        let call = CString::new(call).unwrap();
        // SAFETY: the function is declared so in the stand-in.
        unsafe {
            let fail = self.library.get::<unsafe extern "C" fn(*const c_char, c_int)>(b"standin_fail\0");
            fail.unwrap()(call.as_ptr(), code);
        }
    }

    /// The value of one of the stand-in's counters.
    pub fn count(&self, name: &str) -> c_int {
        // SAFETY: the counters are declared with this signature in the stand-in.
        unsafe { self.library.get::<unsafe extern "C" fn() -> c_int>(name.as_bytes()).unwrap()() }
    }

    /// Number of device memory blocks allocated or opened.
    pub fn memories(&self) -> c_int {
        self.count("standin_memories")
    }
}
