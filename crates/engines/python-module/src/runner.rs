//! Runs a model: takes the server's calls one by one, until the server ends the connection.

use std::ffi::CString;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nereid_worker_protocol::call::{
    COMPLETE, COMPLETED, EXECUTE, EXECUTED, FAILED, FINALIZE, FINALIZED, INITIALIZE, INITIALIZED,
    NAMES_ENGINE, READINESS, READY, REPORTS_READINESS,
};
use nereid_worker_protocol::tensor::Failure;
use nereid_worker_protocol::{Channel, Incoming, Malformed, Message, Sender};
use pyo3::exceptions::PyOSError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyModule};

use crate::constants::{ErrorCode, exception};
use crate::exchange::Exchange;
use crate::request::InferenceRequest;
use crate::response::InferenceResponse;
use crate::side::Side;

/// Idle time after which the memory that carried tensors is released.
const IDLE: Duration = Duration::from_secs(5);

/// Modules in Python included here, in the order of their dependencies.
const MODULES: [(&str, &str); 2] = [
    ("triton_python_backend_utils", include_str!("../python/utils.py")),
    ("nereid_python_runner", include_str!("../python/runner.py")),
];

/// Whether the model is initialised and not finalised.
static INITIALISED: AtomicBool = AtomicBool::new(false);

/// Whether the model is initialised and not finalised.
pub fn is_initialised() -> bool {
    INITIALISED.load(Ordering::Relaxed)
}

/// Creates the modules that models import.
pub fn add_modules(python: Python<'_>) -> PyResult<()> {
    MODULES.iter().try_for_each(|(name, source)| add_module(python, name, source).map(drop))
}

/// The module for inner requests. Loaded on demand, because it needs asyncio, which is large.
pub fn calls(python: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
    add_module(python, "nereid_python_calls", include_str!("../python/calls.py"))
}

fn add_module<'py>(python: Python<'py>, name: &str, source: &str) -> PyResult<Bound<'py, PyAny>> {
    let modules = python.import("sys")?.getattr("modules")?;
    if let Ok(module) = modules.get_item(name) {
        return Ok(module);
    }
    let text = |text: &str| CString::new(text).map_err(|_| exception("a source has a zero"));
    let file = text(&format!("<{name}>"))?;
    let module = PyModule::from_code(python, &text(source)?, &file, &text(name)?)?.into_any();
    modules.set_item(name, &module)?;
    Ok(module)
}

/// A model and its state.
struct Runner {
    module: Py<PyModule>,
    /// `execute` of the model.
    execute: Option<Py<PyAny>>,
    decoupled: bool,
}

/// Serves calls until the connection ends.
pub fn serve(python: Python<'_>, calls: Channel) -> PyResult<()> {
    let Channel { mut sender, mut receiver } = calls;
    receiver.set_timeout(Some(IDLE))?;
    let mut runner: Option<Runner> = None;
    let mut incoming = python.detach(|| receiver.receive());
    loop {
        let call = match incoming {
            Ok(Some(call)) => call,
            Ok(None) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                sender.trimmer().trim();
                Side::get()?.trim(python);
                incoming = python.detach(|| receiver.receive());
                continue;
            }
            Err(error) => return Err(PyOSError::new_err(error.to_string())),
        };
        let answer = Runner::answer(&mut runner, python, &call).unwrap_or_else(|error| {
            log_traceback(python, &error);
            let place = model_folders(&call).and_then(|folders| place(python, &error, &folders));
            let text = error_text(python, &error);
            Answer::Failed(place.map_or_else(|| text.clone(), |place| format!("{text} ({place})")))
        });
        let answer = answer.write(python, &mut sender)?;
        // Free the inputs' buffers before the server is notified.
        drop(call);
        incoming = python.detach(|| {
            answer.send()?;
            receiver.receive()
        });
    }
}

/// Prints an exception with its traceback, for the log. CPython before 3.12 prints the traceback of the exception object,
/// which lacks the frames that were left since it was last caught.
fn log_traceback(python: Python<'_>, error: &PyErr) {
    if let Some(traceback) = error.traceback(python) {
        // Without it, the exception is printed as it is.
        let _ = error.value(python).setattr("__traceback__", traceback);
    }
    error.display(python);
}

/// The answer to a call of the server.
enum Answer<'py> {
    Completed(Option<String>),
    Initialized { reports_readiness: bool },
    Executed(ExecutionOutcome<'py>),
    Readiness(bool),
    Finalized,
    Failed(String),
}

/// The outcome of an execution.
struct ExecutionOutcome<'py> {
    /// The indices, in order, of requests that the model has not seen. They are answered.
    refused: Vec<usize>,
    /// The other requests.
    requests: Vec<Bound<'py, InferenceRequest>>,
    responses: Option<Responses<'py>>,
}

/// A response for each request, some of which may be missing.
type Responses<'py> = Vec<Option<Bound<'py, InferenceResponse>>>;

impl Answer<'_> {
    fn write<'a>(self, python: Python<'_>, sender: &'a mut Sender) -> PyResult<Message<'a>> {
        let kind = match &self {
            Self::Completed(_) => COMPLETED,
            Self::Initialized { .. } => INITIALIZED,
            Self::Executed(_) => EXECUTED,
            Self::Readiness(_) => READINESS,
            Self::Finalized => FINALIZED,
            Self::Failed(_) => FAILED,
        };
        let mut answer = sender.message(kind);
        match self {
            Self::Completed(config) => answer.optional_text(config.as_deref()),
            Self::Initialized { reports_readiness } => {
                answer.u32(NAMES_ENGINE | if reports_readiness { REPORTS_READINESS } else { 0 });
                let version = python.version_info();
                answer.text(&format!("Python {}.{}.{}", version.major, version.minor, version.patch));
            }
            Self::Executed(ExecutionOutcome { refused, requests, responses }) => {
                answer.u64(Side::get()?.sent(python));
                answer.count(refused.len() + requests.len());
                let mut refused = refused.into_iter().peekable();
                let mut responses = responses.into_iter().flatten();
                let mut place = 0;
                for request in &requests {
                    while refused.next_if_eq(&place).is_some() {
                        answer.later_outcome();
                        place += 1;
                    }
                    let response = responses.next().flatten();
                    write_outcome(python, &mut answer, request.get(), response.as_ref());
                    place += 1;
                }
                refused.for_each(|_| answer.later_outcome());
            }
            Self::Readiness(ready) => answer.bool(ready),
            Self::Finalized => {}
            Self::Failed(error_text) => {
                answer.failure(Failure { code: ErrorCode::Internal as u8, message: &error_text });
                answer.u64(Side::get()?.sent(python));
            }
        }
        Ok(answer)
    }
}

/// The message that clients receive for an exception: its type and its text.
fn error_text(python: Python<'_>, error: &PyErr) -> String {
    let name = error.get_type(python).name().map_or_else(|_| "exception".into(), |name| name.to_string());
    match error.value(python).str() {
        Ok(text) => format!("{name}: {text}"),
        Err(_) => name,
    }
}

/// The folders with a model's code, if this call loads the model. Errors of loads are for the model's author; clients' requests get
/// no places.
fn model_folders(call: &Incoming) -> Option<Vec<PathBuf>> {
    if !matches!(call.kind(), COMPLETE | INITIALIZE) {
        return None;
    }
    let pairs = call.reader().pairs().ok()?;
    let find = |key: &str| pairs.iter().find(|(found, _)| *found == key).map(|(_, value)| Path::new(*value));
    // The code of a backend written in Python is in a folder of its own.
    let file = find("nereid.model_file").and_then(Path::parent);
    Some(find("nereid.model_directory").into_iter().chain(file).map(Path::to_owned).collect())
}

/// Where code in these folders raised an exception: line of the innermost call there, and its file below the folder's parent.
fn place(python: Python<'_>, error: &PyErr, folders: &[PathBuf]) -> Option<String> {
    let mut next = error.traceback(python).map(Bound::into_any);
    let mut found = None;
    while let Some(entry) = next.filter(|entry| !entry.is_none()) {
        let code = entry.getattr("tb_frame").and_then(|frame| frame.getattr("f_code")).ok()?;
        let file: String = code.getattr("co_filename").and_then(|name| name.extract()).ok()?;
        let folder = folders.iter().find(|folder| Path::new(&file).starts_with(folder));
        if let Some(file) = folder.and_then(|folder| Path::new(&file).strip_prefix(folder.parent()?).ok()) {
            let line: u32 = entry.getattr("tb_lineno").and_then(|line| line.extract()).ok()?;
            found = Some(format!("{}:{line}", file.display()));
        }
        next = entry.getattr("tb_next").ok();
    }
    found
}

fn malformed(error: Malformed) -> PyErr {
    exception(error.to_string())
}

impl Runner {
    fn answer<'py>(this: &mut Option<Self>, python: Python<'py>, call: &Incoming) -> PyResult<Answer<'py>> {
        if call.kind() == EXECUTE
            && let Some(runner) = this
        {
            return runner.execute(python, call);
        }
        let runner = match this {
            Some(runner) => runner,
            None => {
                add_modules(python)?;
                let module = python.import("nereid_python_runner")?.unbind();
                this.insert(Self { module, execute: None, decoupled: false })
            }
        };
        let module = runner.module.bind(python);
        Ok(match call.kind() {
            COMPLETE => {
                let arguments = call.reader().pairs().map_err(malformed)?;
                Answer::Completed(module.call_method1("complete", (arguments,))?.extract()?)
            }
            INITIALIZE => {
                let arguments = call.reader().pairs().map_err(malformed)?;
                let (execute, decoupled, reports_readiness): (Py<PyAny>, bool, bool) =
                    module.call_method1("initialize", (arguments,))?.extract()?;
                (runner.execute, runner.decoupled) = (Some(execute), decoupled);
                INITIALISED.store(true, Ordering::Relaxed);
                Answer::Initialized { reports_readiness }
            }
            READY => Answer::Readiness(module.call_method0("is_ready")?.extract()?),
            FINALIZE => {
                runner.execute = None;
                INITIALISED.store(false, Ordering::Relaxed);
                module.call_method0("finalize")?;
                Answer::Finalized
            }
            kind => return Err(exception(format!("unknown call {kind} of the server"))),
        })
    }

    fn execute<'py>(&self, python: Python<'py>, call: &Incoming) -> PyResult<Answer<'py>> {
        let execute = self.execute.as_ref().ok_or_else(|| exception("the model is not initialised"))?;
        let mut reader = call.reader();
        let count = reader.count(1).map_err(malformed)?;
        let mut requests = Vec::with_capacity(count);
        let mut refused = Vec::new();
        for place in 0..count {
            let (request, inputs) = reader.request().map_err(malformed)?;
            let exchange = Exchange::of(&request, self.decoupled);
            match InferenceRequest::received(python, request, inputs, Arc::clone(&exchange)) {
                Ok(request) => requests.push(Bound::new(python, request)?),
                // An input that cannot be opened fails only its own request.
                Err(error) => {
                    let error_text = error_text(python, &error);
                    exchange
                        .fail(python, Failure { code: ErrorCode::Internal as u8, message: &error_text })?;
                    refused.push(place);
                }
            }
        }
        if requests.is_empty() {
            return Ok(Answer::Executed(ExecutionOutcome { refused, requests, responses: None }));
        }
        match self.responses(python, execute, &requests) {
            Ok(responses) => Ok(Answer::Executed(ExecutionOutcome { refused, requests, responses })),
            Err(error) => {
                // The server answers all of them with the error.
                requests
                    .iter()
                    .filter_map(|request| request.get().exchange.as_ref())
                    .for_each(|it| it.close());
                Err(error)
            }
        }
    }

    /// The responses that `execute` returns; `None` if it returns nothing.
    fn responses<'py>(
        &self,
        python: Python<'py>,
        execute: &Py<PyAny>,
        requests: &[Bound<'py, InferenceRequest>],
    ) -> PyResult<Option<Responses<'py>>> {
        let list = PyList::new(python, requests)?;
        let mut returned = execute.bind(python).call1((&list,))?;
        if !returned.is_none() && !returned.is_instance_of::<PyList>() {
            returned = self.module.bind(python).call_method1("settle", (returned, list, self.decoupled))?;
        }
        if returned.is_none() {
            return Ok(None);
        }
        if self.decoupled {
            return Err(exception(
                "the model is using the decoupled mode and the execute function must return None",
            ));
        }
        let Ok(returned) = returned.cast::<PyList>() else {
            return Err(exception(format!(
                "Expected a list in the execute return, found type '{}'.",
                returned.get_type().str()?
            )));
        };
        if returned.len() != requests.len() {
            return Err(exception(format!(
                "Number of InferenceResponse objects do not match the number of InferenceRequest objects. \
                 InferenceRequest(s) size is:{}, and InferenceResponse(s) size is:{}",
                requests.len(),
                returned.len()
            )));
        }
        let response = |(response, request): (Bound<'py, PyAny>, &Bound<'py, InferenceRequest>)| {
            if response.is_none() {
                return Ok(None);
            }
            let unexpected = |expected: &str, found: &Bound<'py, PyAny>| {
                let found = found.get_type().str().map_or_else(|_| "?".into(), |name| name.to_string());
                exception(format!("Expected {expected}, found type '{found}'."))
            };
            if request.get().exchange.as_ref().is_some_and(|exchange| exchange.is_to_be_rescheduled()) {
                let expected = "a None object in the execute function return list for rescheduled request";
                return Err(unexpected(expected, &response));
            }
            response.cast_into::<InferenceResponse>().map(Some).map_err(|error| {
                let expected = "an 'InferenceResponse' object in the execute function return list";
                unexpected(expected, &error.into_inner())
            })
        };
        returned.iter().zip(requests).map(response).collect::<PyResult<_>>().map(Some)
    }
}

fn write_outcome(
    python: Python<'_>,
    answer: &mut Message<'_>,
    request: &InferenceRequest,
    response: Option<&Bound<'_, InferenceResponse>>,
) {
    let Some(exchange) = &request.exchange else { return answer.later_outcome() };
    if exchange.reschedule() {
        return answer.reschedule_outcome();
    }
    match response {
        // A response that was sent already stays the only one.
        Some(response) if exchange.claim() => {
            response.get().write_outcome(python, answer, exchange.outputs());
        }
        _ => answer.later_outcome(),
    }
}
