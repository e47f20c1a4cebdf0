//! A gate: a Unix socket at which loads and executions wait until its listener releases them.
//!
//! Tests use it where a delay would stand for "while that one executes": the connection says that an execution has
//! begun, and its end releases it. No file is watched and no clock is read.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use nereid_backend_api::ModelConfig;

/// Where to wait.
#[derive(Clone, Debug)]
pub(crate) struct Gate(PathBuf);

impl Gate {
    /// The gate that a parameter of the configuration names, if it names any.
    pub(crate) fn configured(config: &ModelConfig, parameter: &str) -> Option<Self> {
        let path = &config.parameters.get(parameter)?.string_value;
        (!path.is_empty()).then(|| Self(path.into()))
    }

    /// Connects, writes `line`, and waits until the other side writes anything or ends the connection. Where nobody
    /// listens the gate is open.
    pub(crate) fn pass(&self, line: &str) {
        let Ok(mut connection) = UnixStream::connect(&self.0) else { return };
        if connection.write_all(format!("{line}\n").as_bytes()).is_ok() {
            // Any outcome is a release: a byte, the end of the connection, or an error.
            let _ = connection.read(&mut [0]);
        }
    }
}
