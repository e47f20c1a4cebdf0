//! The module in an in-memory file, from which the interpreters load it: nothing has to be unpacked, cleaned up, or
//! protected.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nereid_backend_api::{Error, Result};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::module;

/// The module, for as long as this lives.
#[derive(Debug)]
pub(crate) struct Library {
    path: PathBuf,
    file: Arc<OwnedFd>,
}

impl Library {
    pub(crate) fn new() -> Result<Self> {
        let cannot = |error: io::Error| {
            Error::unavailable(format!("cannot keep the module for Python in memory: {error}"))
        };
        let file = memfd_create(module::NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING);
        let mut file = File::from(file.map_err(|error| cannot(error.into()))?);
        module::write_library(&mut file).map_err(cannot)?;
        // All processes map the same pages, and none can change them.
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        fcntl_add_seals(&file, seals).map_err(|error| cannot(error.into()))?;
        // The interpreters inherit the descriptor: a confined one cannot open the server's.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        Ok(Self { path: path.into(), file: Arc::new(file.into()) })
    }

    /// The path for the interpreters.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor for the interpreters to inherit.
    pub(crate) fn descriptor(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.file)
    }
}
