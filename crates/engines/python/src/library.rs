//! The module in an in-memory file, from which the interpreters load it: nothing has to be unpacked, cleaned up, or
//! protected.

use std::io::Write;
use std::path::{Path, PathBuf};

use nereid_backend_api::{Error, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::fs::File;
use std::os::fd::AsRawFd;

use crate::module;

/// The module, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Library {
    path: PathBuf,
    _file: File,
}

impl Library {
    pub(crate) fn new() -> Result<Self> {
        let cannot = |error: std::io::Error| {
            Error::unavailable(format!("cannot keep the module for Python in memory: {error}"))
        };
        let file = memfd_create(module::NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let mut file = File::from(file.map_err(|error| cannot(error.into()))?);
        file.write_all(module::LIBRARY).map_err(cannot)?;
        // All processes map the same pages, and none can change them.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(|error| cannot(error.into()))?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Ok(Self { path: path.into(), _file: file })
    }

    /// The path for the interpreters.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}
