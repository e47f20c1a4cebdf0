//! The process's limit of file descriptors. Each connection needs one, and shells start programs with a soft limit of
//! 1,024, kept for programs that use `select`.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard limit.
pub(crate) fn raise_limit() {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    if let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }) {
        tracing::warn!("cannot raise the limit of file descriptors: {error}");
    }
}
