//! The server, for backends: what it serves, and inferences on it.

use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::pin::pin;
use std::ptr;
use std::sync::mpsc::channel;
use std::sync::{Arc, OnceLock, Weak};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use bytes::Bytes;
use nereid_backend_api::{Error, Result};
use nereid_core::{Overrides, Server};
use nereid_cuda::Cuda;
use nereid_model_config::to_json;
use nereid_protocol::repository::LoadParameter;
use triton_sys::*;

use crate::boundary::{Out, exports};
use crate::handle::Handle;
use crate::inference::version;
use crate::message::Message;
use crate::metrics::Snapshot;
use crate::model::check_version;
use crate::{call, describe};

/// Tells the metrics of a server as text.
type TellMetrics = Box<dyn Fn(&Server) -> String + Send + Sync>;

/// The server in C's hands. It does not keep the server alive.
#[derive(Default)]
pub(crate) struct ServerObject {
    /// With what tells its metrics.
    server: OnceLock<(Weak<Server>, TellMetrics)>,
    /// What the memory of GPUs is copied with.
    cuda: Option<Arc<Cuda>>,
}

impl ServerObject {
    /// One that is not attached yet.
    pub(crate) fn new(cuda: Option<Arc<Cuda>>) -> Self {
        Self { server: OnceLock::new(), cuda }
    }

    /// Says which it is, once.
    pub(crate) fn attach(&self, server: &Arc<Server>, metrics: TellMetrics) {
        self.server.get_or_init(|| (Arc::downgrade(server), metrics));
    }

    /// The driver of the GPUs, if there is one.
    pub(crate) fn cuda(&self) -> Option<&Arc<Cuda>> {
        self.cuda.as_ref()
    }

    /// The server.
    ///
    /// # Errors
    /// `Unavailable` if it is not there: not yet, or no longer.
    pub(crate) fn server(&self) -> Result<Arc<Server>> {
        self.attached().map(|(server, _)| server)
    }

    /// Its metrics, as text.
    ///
    /// # Errors
    /// `Unavailable` if it is not there.
    fn metrics(&self) -> Result<String> {
        self.attached().map(|(server, metrics)| metrics(&server))
    }

    fn attached(&self) -> Result<(Arc<Server>, &TellMetrics)> {
        let attached = self.server.get().and_then(|(server, metrics)| Some((server.upgrade()?, metrics)));
        attached.ok_or_else(|| {
            Error::unavailable("there is no server: a model is looked at without one, or it has ended")
        })
    }
}

/// Does what takes its time on other threads, and waits for the outcome.
fn wait(begin: impl FnOnce(Box<dyn FnOnce(Result<()>) + Send>) -> Result<()>) -> Result<()> {
    let (done, outcome) = channel();
    begin(Box::new(move |outcome| done.send(outcome).unwrap_or_default()))?;
    outcome.recv().unwrap_or_else(|_| Err(Error::unavailable("the server is shutting down")))
}

/// Waits for an answer that is found on another thread.
pub(crate) fn blocking<T>(answer: impl Future<Output = T>) -> T {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut answer, mut context) = (pin!(answer), Context::from_waker(&waker));
    loop {
        match answer.as_mut().poll(&mut context) {
            Poll::Ready(answer) => return answer,
            Poll::Pending => thread::park(),
        }
    }
}

fn load(server: Handle<ServerObject>, name: &str, overrides: Overrides) -> Result<()> {
    let server = server.get()?.server()?;
    wait(|done| server.load_model(name, overrides, done))
}

fn unload(server: Handle<ServerObject>, name: &str) -> Result<()> {
    let server = server.get()?.server()?;
    wait(|done| server.unload_model(name, done))
}

fn unload_with_dependents(server: Handle<ServerObject>, name: &str) -> Result<()> {
    let server = server.get()?.server()?;
    wait(|done| server.unload_model_and_dependents(name, done))
}

/// What load parameters give in place of what is in the repository.
fn overrides(parameters: &Out<*const TRITONSERVER_Parameter>, count: u64) -> Result<Overrides> {
    let mut overrides = Overrides::default();
    for parameter in parameters.elements(count)? {
        let parameter = Handle::<crate::parameter::Parameter>::of(parameter.cast_mut()).get()?;
        let name = parameter.name().to_string_lossy();
        let wrong_type = |expected| {
            Error::invalid_arg(format!("parameter '{name}' has the wrong type; expected {expected}"))
        };
        match LoadParameter::named(&name)? {
            LoadParameter::Config => {
                overrides.config = Some(parameter.as_text().ok_or_else(|| wrong_type("a string"))?);
            }
            LoadParameter::File(path) => {
                let contents = parameter.as_bytes().map(Bytes::copy_from_slice);
                let contents = contents.ok_or_else(|| wrong_type("bytes"))?;
                overrides.files.push((PathBuf::from(path), contents));
            }
        }
    }
    Ok(overrides)
}

fn give_message(message: &Out<*mut TRITONSERVER_Message>, json: impl Into<String>) -> Result<()> {
    message.give(Message::new(json))
}

exports! {
    fn TRITONSERVER_ApiVersion(major: *mut u32, minor: *mut u32) {
        major.set(TRITONSERVER_API_VERSION_MAJOR)?;
        minor.set(TRITONSERVER_API_VERSION_MINOR)?;
    }

    fn TRITONSERVER_ServerIsLive(server: *mut TRITONSERVER_Server, live: *mut bool) {
        live.set(server.get()?.server().is_ok())?;
    }

    fn TRITONSERVER_ServerIsReady(server: *mut TRITONSERVER_Server, ready: *mut bool) {
        let server = server.get()?.server()?;
        ready.set(blocking(server.ready()))?;
    }

    fn TRITONSERVER_ServerModelIsReady(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        ready: *mut bool,
    ) {
        let (server, name) = (server.get()?.server()?, model_name.read()?);
        ready.set(blocking(server.model_ready(&name, version(model_version)?)).is_ok())?;
    }

    fn TRITONSERVER_ServerModelBatchProperties(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        flags: *mut u32,
        voidp: *mut *mut c_void,
    ) {
        voidp.set_if_wanted(ptr::null_mut());
        let model = server.get()?.server()?.model(&model_name.read()?, version(model_version)?)?;
        let batches = model.signature().max_batch_size > 0;
        flags.set(if batches { TRITONSERVER_BATCH_FIRST_DIM.0 } else { TRITONSERVER_BATCH_UNKNOWN.0 })?;
    }

    fn TRITONSERVER_ServerModelTransactionProperties(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        txn_flags: *mut u32,
        voidp: *mut *mut c_void,
    ) {
        voidp.set_if_wanted(ptr::null_mut());
        let model = server.get()?.server()?.model(&model_name.read()?, version(model_version)?)?;
        let flags = if model.is_decoupled() { TRITONSERVER_TXN_DECOUPLED } else { TRITONSERVER_TXN_ONE_TO_ONE };
        txn_flags.set(flags.0)?;
    }

    fn TRITONSERVER_ServerMetadata(
        server: *mut TRITONSERVER_Server,
        server_metadata: *mut *mut TRITONSERVER_Message,
    ) {
        give_message(&server_metadata, describe::server(&*server.get()?.server()?)?)?;
    }

    fn TRITONSERVER_ServerModelMetadata(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        model_metadata: *mut *mut TRITONSERVER_Message,
    ) {
        let server = server.get()?.server()?;
        let metadata = describe::model(&server, &model_name.read()?, version(model_version)?)?;
        give_message(&model_metadata, metadata)?;
    }

    fn TRITONSERVER_ServerModelStatistics(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        model_stats: *mut *mut TRITONSERVER_Message,
    ) {
        let server = server.get()?.server()?;
        let name = model_name.read_if_given().unwrap_or_default();
        give_message(&model_stats, describe::statistics(&server, &name, version(model_version)?)?)?;
    }

    fn TRITONSERVER_ServerModelConfig(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        config_version: u32,
        model_config: *mut *mut TRITONSERVER_Message,
    ) {
        check_version(config_version)?;
        let model = server.get()?.server()?.model(&model_name.read()?, version(model_version)?)?;
        give_message(&model_config, to_json(model.config()))?;
    }

    fn TRITONSERVER_ServerModelIndex(
        server: *mut TRITONSERVER_Server,
        flags: u32,
        model_index: *mut *mut TRITONSERVER_Message,
    ) {
        let only_ready = flags & TRITONSERVER_INDEX_FLAG_READY.0 != 0;
        give_message(&model_index, describe::index(&*server.get()?.server()?, only_ready)?)?;
    }

    fn TRITONSERVER_ServerLoadModel(server: *mut TRITONSERVER_Server, model_name: *const c_char) {
        load(server, &model_name.read()?, Overrides::default())?;
    }

    fn TRITONSERVER_ServerLoadModelWithParameters(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        parameters: *mut *const TRITONSERVER_Parameter,
        parameter_count: u64,
    ) {
        load(server, &model_name.read()?, overrides(&parameters, parameter_count)?)?;
    }

    fn TRITONSERVER_ServerUnloadModel(server: *mut TRITONSERVER_Server, model_name: *const c_char) {
        unload(server, &model_name.read()?)?;
    }

    /// Nothing depends on other models.
    fn TRITONSERVER_ServerUnloadModelAndDependents(server: *mut TRITONSERVER_Server, model_name: *const c_char) {
        unload_with_dependents(server, &model_name.read()?)?;
    }

    fn TRITONSERVER_ServerMetrics(server: *mut TRITONSERVER_Server, metrics: *mut *mut TRITONSERVER_Metrics) {
        let text = server.get()?.metrics()?;
        metrics.give(Arc::new(Snapshot(text)))?;
    }

    fn TRITONSERVER_ServerInferAsync(
        server: *mut TRITONSERVER_Server,
        inference_request: *mut TRITONSERVER_InferenceRequest,
        trace: *mut TRITONSERVER_InferenceTrace,
    ) {
        let server = server.get()?.server()?;
        let trace = if trace.is_null() { None } else { Some(crate::trace::send(trace)?) };
        call::start(&server, inference_request, trace)?;
    }
}
