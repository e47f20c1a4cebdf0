//! A gate: a Unix socket at which loads and executions wait until its listener releases them.
//!
//! Tests use it instead of delays to control when an execution ends: the connection signals its start, and closing it
//! releases the execution. No file is watched and no clock is read.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use nereid_backend_api::ModelConfig;

/// The path of the socket.
#[derive(Clone, Debug)]
pub(crate) struct Gate(PathBuf);

impl Gate {
    /// The gate configured in a parameter, if any.
    pub(crate) fn configured(config: &ModelConfig, parameter: &str) -> Option<Self> {
        let path = &config.parameters.get(parameter)?.string_value;
        (!path.is_empty()).then(|| Self(path.into()))
    }

    /// Connects, writes `line`, and waits until the other side writes or closes the connection. Without a listener,
    /// the gate is open.
    pub(crate) fn pass(&self, line: &str) {
        let Ok(mut connection) = UnixStream::connect(&self.0) else { return };
        if connection.write_all(format!("{line}\n").as_bytes()).is_ok() {
            // Any outcome is a release: a byte, the end of the connection, or an error.
            let _ = connection.read(&mut [0]);
        }
    }
}
