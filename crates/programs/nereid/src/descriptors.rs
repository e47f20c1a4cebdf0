//! The process's limit of file descriptors. Each connection takes one, and shells start programs with a limit of 1,024, which
//! is there for programs of the last century.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit as far as the process may do so by itself.
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!("cannot raise the limit of file descriptors: {error}");
    }
}
