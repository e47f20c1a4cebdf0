//! The native part of a server: takes options and documents as strings, which the Python layer converts.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::ptr;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use triton_sys::*;

use crate::call::{self, Responses};
use crate::errors::check;
use crate::handle::{ServerHandle, interruptible};
use crate::inputs::RequestArguments;
use crate::text::{c_text, document, metrics};

/// A server.
#[pyclass(module = "nereid.nereid_native", frozen)]
pub struct Server(Arc<ServerHandle>);

/// The options of a server under construction.
struct Options(*mut TRITONSERVER_ServerOptions);

impl Options {
    fn new(options: &[(CString, CString)], listens: bool) -> PyResult<Self> {
        let mut made = Self(ptr::null_mut());
        // SAFETY: the strings live until the functions return, and the options as long as `made`.
        unsafe {
            check(NEREID_ServerOptionsNew(&raw mut made.0))?;
            for (name, value) in options {
                check(NEREID_ServerOptionsSet(made.0, name.as_ptr(), value.as_ptr()))?;
            }
            check(NEREID_ServerOptionsSetListen(made.0, listens))?;
        }
        Ok(made)
    }
}

impl Drop for Options {
    fn drop(&mut self) {
        // SAFETY: this object owns them.
        drop(check(unsafe { TRITONSERVER_ServerOptionsDelete(self.0) }));
    }
}

/// The parameters of a load, until it ends.
struct LoadParameters(Vec<*const TRITONSERVER_Parameter>);

impl LoadParameters {
    /// A model's configuration, and its files by path.
    fn new(config: Option<&CStr>, files: &BTreeMap<CString, Vec<u8>>) -> Self {
        let mut made = Self(Vec::new());
        // SAFETY: strings and contents live as long as the parameters are used.
        unsafe {
            if let Some(config) = config {
                let kind = TRITONSERVER_PARAMETER_STRING;
                made.0.push(TRITONSERVER_ParameterNew(c"config".as_ptr(), kind, config.as_ptr().cast()));
            }
            for (path, contents) in files {
                let (data, length) = (contents.as_ptr().cast(), contents.len() as u64);
                made.0.push(TRITONSERVER_ParameterBytesNew(path.as_ptr(), data, length));
            }
        }
        made
    }
}

impl Drop for LoadParameters {
    fn drop(&mut self) {
        for parameter in &self.0 {
            // SAFETY: this object owns them.
            unsafe { TRITONSERVER_ParameterDelete(parameter.cast_mut()) }
        }
    }
}

/// Calls a function of the C interface with the server and the listed arguments.
macro_rules! ask {
    ($server:expr, $python:expr, $function:ident, $($argument:expr),*) => {{
        let server = Arc::clone(&$server.0);
        document_of($python, move |made| {
            // SAFETY: the server is alive, and strings until the function returns.
            Ok(unsafe { $function(server.get()?, $($argument,)* made) })
        })
    }};
}

fn document_of(
    python: Python<'_>,
    ask: impl FnOnce(*mut *mut TRITONSERVER_Message) -> PyResult<*mut TRITONSERVER_Error> + Send,
) -> PyResult<String> {
    python.detach(|| document(ask))
}

#[pymethods]
impl Server {
    /// Starts a server, and waits until the models to load at start are loaded or have failed.
    #[new]
    fn new(python: Python<'_>, options: Vec<(String, String)>, listens: bool) -> PyResult<Self> {
        let options: Vec<_> = options
            .iter()
            .map(|(name, value)| Ok((c_text(name)?, c_text(value)?)))
            .collect::<PyResult<_>>()?;
        let made = interruptible(python, move || {
            let options = Options::new(&options, listens)?;
            let mut server = ptr::null_mut();
            // SAFETY: the options are alive.
            check(unsafe { TRITONSERVER_ServerNew(&raw mut server, options.0) })?;
            Ok::<_, PyErr>(ServerHandle::new(server))
        })?;
        Ok(Self(Arc::new(made?)))
    }

    fn stop(&self, python: Python<'_>) -> PyResult<()> {
        let server = Arc::clone(&self.0);
        interruptible(python, move || server.stop())?
    }

    fn set_exit_timeout(&self, seconds: u32) -> PyResult<()> {
        // SAFETY: the server is alive.
        check(unsafe { TRITONSERVER_ServerSetExitTimeout(self.0.get()?, seconds) })
    }

    fn is_live(&self) -> PyResult<bool> {
        let mut live = false;
        // SAFETY: the server is alive.
        check(unsafe { TRITONSERVER_ServerIsLive(self.0.get()?, &raw mut live) })?;
        Ok(live)
    }

    fn is_ready(&self, python: Python<'_>) -> PyResult<bool> {
        let server = Arc::clone(&self.0);
        python.detach(move || {
            let mut ready = false;
            // SAFETY: the server is alive.
            check(unsafe { TRITONSERVER_ServerIsReady(server.get()?, &raw mut ready) })?;
            Ok(ready)
        })
    }

    fn model_is_ready(&self, python: Python<'_>, name: &str, version: i64) -> PyResult<bool> {
        let (server, name) = (Arc::clone(&self.0), c_text(name)?);
        python.detach(move || {
            let mut ready = false;
            // SAFETY: the server is alive, and the string until the function returns.
            check(unsafe {
                TRITONSERVER_ServerModelIsReady(server.get()?, name.as_ptr(), version, &raw mut ready)
            })?;
            Ok(ready)
        })
    }

    /// Whether a model is decoupled: sends any number of responses.
    fn model_is_decoupled(&self, name: &str, version: i64) -> PyResult<bool> {
        let (name, mut flags) = (c_text(name)?, 0);
        // SAFETY: the server is alive, and the string until the function returns.
        check(unsafe {
            TRITONSERVER_ServerModelTransactionProperties(
                self.0.get()?,
                name.as_ptr(),
                version,
                &raw mut flags,
                ptr::null_mut(),
            )
        })?;
        Ok(flags & TRITONSERVER_TXN_DECOUPLED.0 != 0)
    }

    fn metadata(&self, python: Python<'_>) -> PyResult<String> {
        ask!(self, python, TRITONSERVER_ServerMetadata,)
    }

    fn addresses(&self, python: Python<'_>) -> PyResult<String> {
        ask!(self, python, NEREID_ServerAddresses,)
    }

    fn index(&self, python: Python<'_>, ready: bool) -> PyResult<String> {
        let flags = if ready { TRITONSERVER_INDEX_FLAG_READY.0 } else { 0 };
        ask!(self, python, TRITONSERVER_ServerModelIndex, flags)
    }

    fn model_metadata(&self, python: Python<'_>, name: &str, version: i64) -> PyResult<String> {
        let name = c_text(name)?;
        ask!(self, python, TRITONSERVER_ServerModelMetadata, name.as_ptr(), version)
    }

    fn model_statistics(&self, python: Python<'_>, name: &str, version: i64) -> PyResult<String> {
        let name = c_text(name)?;
        ask!(self, python, TRITONSERVER_ServerModelStatistics, name.as_ptr(), version)
    }

    fn model_config(&self, python: Python<'_>, name: &str, version: i64) -> PyResult<String> {
        let name = c_text(name)?;
        ask!(self, python, TRITONSERVER_ServerModelConfig, name.as_ptr(), version, 1)
    }

    fn metrics(&self, python: Python<'_>) -> PyResult<String> {
        let server = Arc::clone(&self.0);
        python.detach(move || {
            let server = server.get()?;
            // SAFETY: the server is alive.
            metrics(|made| Ok(unsafe { TRITONSERVER_ServerMetrics(server, made) }))
        })
    }

    fn load(
        &self,
        python: Python<'_>,
        name: &str,
        config: Option<&str>,
        files: BTreeMap<String, Vec<u8>>,
    ) -> PyResult<()> {
        let (server, name) = (Arc::clone(&self.0), c_text(name)?);
        let config = config.map(c_text).transpose()?;
        let files = files.into_iter().map(|(path, contents)| Ok((c_text(&path)?, contents)));
        let files: BTreeMap<_, _> = files.collect::<PyResult<_>>()?;
        interruptible(python, move || {
            let mut parameters = LoadParameters::new(config.as_deref(), &files);
            let count = parameters.0.len() as u64;
            let list = parameters.0.as_mut_ptr();
            // SAFETY: the server, the string and the parameters are alive until the function returns.
            check(unsafe {
                TRITONSERVER_ServerLoadModelWithParameters(server.get()?, name.as_ptr(), list, count)
            })
        })?
    }

    fn unload(&self, python: Python<'_>, name: &str, with_members: bool) -> PyResult<()> {
        let (server, name) = (Arc::clone(&self.0), c_text(name)?);
        let unload = if with_members {
            TRITONSERVER_ServerUnloadModelAndDependents
        } else {
            TRITONSERVER_ServerUnloadModel
        };
        // SAFETY: the server is alive, and the string until the function returns.
        interruptible(python, move || check(unsafe { unload(server.get()?, name.as_ptr()) }))?
    }

    fn register(&self, python: Python<'_>, path: &str, names: BTreeMap<String, String>) -> PyResult<()> {
        let (server, path) = (Arc::clone(&self.0), c_text(path)?);
        let names = names.iter().map(|(name, folder)| Ok((c_text(folder)?, c_text(name)?)));
        let names: Vec<_> = names.collect::<PyResult<_>>()?;
        interruptible(python, move || {
            let kind = TRITONSERVER_PARAMETER_STRING;
            // SAFETY: the strings live as long as the parameters are used.
            let parameter = |(folder, name): &(CString, CString)| unsafe {
                TRITONSERVER_ParameterNew(folder.as_ptr(), kind, name.as_ptr().cast()).cast_const()
            };
            let mut parameters = LoadParameters(names.iter().map(parameter).collect());
            let count = u32::try_from(parameters.0.len()).unwrap_or(u32::MAX);
            let list = parameters.0.as_mut_ptr();
            // SAFETY: the server, the string and the parameters are alive until the function returns.
            check(unsafe {
                TRITONSERVER_ServerRegisterModelRepository(server.get()?, path.as_ptr(), list, count)
            })
        })?
    }

    fn unregister(&self, python: Python<'_>, path: &str) -> PyResult<()> {
        let (server, path) = (Arc::clone(&self.0), c_text(path)?);
        let unregister = move || {
            // SAFETY: the server is alive, and the string until the function returns.
            check(unsafe { TRITONSERVER_ServerUnregisterModelRepository(server.get()?, path.as_ptr()) })
        };
        python.detach(unregister)
    }

    fn poll(&self, python: Python<'_>) -> PyResult<()> {
        let server = Arc::clone(&self.0);
        interruptible(python, move || {
            // SAFETY: the server is alive.
            check(unsafe { TRITONSERVER_ServerPollModelRepository(server.get()?) })
        })?
    }

    /// Sends a request. The timeout is in microseconds; 0 for the model's default.
    #[pyo3(signature = (model, version, inputs, *, outputs = None, id = None, parameters = None, sequence = None,
        priority = 0, timeout = 0))]
    #[allow(clippy::too_many_arguments, reason = "they have names in Python")]
    fn send<'py>(
        &self,
        python: Python<'py>,
        model: &str,
        version: i64,
        inputs: Bound<'py, PyDict>,
        outputs: Option<Vec<String>>,
        id: Option<String>,
        parameters: Option<Bound<'py, PyDict>>,
        sequence: Option<(Bound<'py, PyAny>, bool, bool)>,
        priority: u64,
        timeout: u64,
    ) -> PyResult<Responses> {
        let arguments =
            RequestArguments { model, version, inputs, outputs, id, parameters, sequence, priority, timeout };
        call::send(python, &self.0, &arguments)
    }
}
