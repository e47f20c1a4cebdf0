//! Code that runs within a model's interpreter: the module `c_python_backend_utils`, the native half of
//! `triton_python_backend_utils`, and the receiver of the server's calls.
//!
//! This crate uses CPython's stable ABI and numpy's C interface, so one build serves every CPython from 3.9 on, with numpy 1
//! and 2. It knows the protocol of worker processes, and nothing else of the server.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod arguments;
mod constants;
mod exchange;
mod gpu;
mod inner;
mod parameters;
mod request;
mod response;
mod runner;
mod server;
mod side;
mod tensor;

use pyo3::prelude::*;

/// The native half of `triton_python_backend_utils`.
#[pymodule]
mod c_python_backend_utils {
    use pyo3::prelude::*;

    #[pymodule_export]
    use crate::constants::{ErrorCode, LogLevel, MemoryType, MetricKind, TritonModelException};
    #[pymodule_export]
    use crate::exchange::ResponseSender;
    #[pymodule_export]
    use crate::inner::InnerCall;
    #[pymodule_export]
    use crate::request::{InferenceRequest, InferenceTrace, PreferredMemory, get_input_tensor_by_name};
    #[pymodule_export]
    use crate::response::{InferenceResponse, TritonError};
    #[pymodule_export]
    use crate::server::{MetricHandle, load, log, model_ready, new_family, unload};
    #[pymodule_export]
    use crate::tensor::{Memory, Tensor};
    use crate::{gpu, runner, side};
    use nereid_worker_protocol::tensor::Failure;
    use nereid_worker_protocol::worker;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        let error = module.getattr("TritonError")?;
        for (name, code) in ErrorCode::MEMBERS {
            error.setattr(*name, *code)?;
        }
        for (name, memory) in MemoryType::MEMBERS {
            module.add(*name, *memory)?;
        }
        Ok(())
    }

    /// Creates `triton_python_backend_utils` without a server, for tools and tests.
    #[pyfunction]
    fn add_modules(python: Python<'_>) -> PyResult<()> {
        runner::add_modules(python)
    }

    /// Answers a request with an error, unless it has been answered.
    #[pyfunction]
    fn fail(python: Python<'_>, request: &Bound<'_, InferenceRequest>, message: &str) -> PyResult<()> {
        let failure = Failure { code: ErrorCode::Internal as u8, message };
        request.get().exchange.as_ref().map_or(Ok(()), |exchange| exchange.fail(python, failure))
    }

    /// Serves a model for the server that started this process, over its standard input, until the server closes it.
    /// The driver is the name of CUDA's library; empty if the server uses no GPUs.
    #[pyfunction]
    #[pyo3(signature = (description, driver = String::new()))]
    fn main(python: Python<'_>, description: &str, driver: String) -> PyResult<()> {
        if !driver.is_empty() {
            gpu::set_library(driver);
        }
        let connection = worker::connect(description)?;
        side::Side::start(connection.side)?;
        runner::serve(python, connection.calls)
    }
}
