//! What runs within a model's interpreter: the module `c_python_backend_utils`.
//!
//! It uses CPython's stable ABI only, so one build serves every CPython from 3.9 on.

use pyo3::prelude::*;

/// The native half of `triton_python_backend_utils`, and what runs a model.
#[pymodule]
mod c_python_backend_utils {
    use pyo3::prelude::*;

    /// Serves a model over the two sockets until the server ends it.
    #[pyfunction]
    fn main(_python: Python<'_>, _call: i32, _side: i32) -> PyResult<()> {
        Ok(())
    }
}
