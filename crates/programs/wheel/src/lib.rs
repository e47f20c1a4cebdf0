//! The native half of the package `nereid` for Python: servers, requests and tensors, on the C interface of
//! `libtritonserver.so`.
//!
//! The package loads that library first, and this module links nothing: so the package has one copy of the server,
//! shared by its command, this module and programs in C. It uses CPython's stable ABI: one build serves every CPython
//! from 3.9 on.
//!
//! The interpreter's lock is never held while a thread waits, and server threads never take it: they put responses into
//! queues that Python empties.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod call;
mod errors;
mod handle;
mod inputs;
mod log;
mod response;
mod server;
mod signal;
mod tensor;
mod text;

use pyo3::prelude::*;

/// The native half of the package `nereid`.
#[pymodule]
mod nereid_native {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::call::Responses;
    #[pymodule_export]
    use crate::log::{next_record, start_records, stop_records};
    #[pymodule_export]
    use crate::log::{set_log_file, set_log_levels};
    #[pymodule_export]
    use crate::response::Response;
    #[pymodule_export]
    use crate::server::Server;
    #[pymodule_export]
    use crate::signal::Signal;
    #[pymodule_export]
    use crate::tensor::Tensor;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::errors::add(module)
    }
}
