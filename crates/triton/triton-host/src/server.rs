//! The server for backends in C and applications: [`Peers`] as C functions, and its documents.

use std::ffi::{c_char, c_void};
use std::path::PathBuf;
use std::ptr;
use std::sync::{Arc, OnceLock, Weak};

use bytes::Bytes;
use nereid_backend_api::{Error, ErrorCode, Overrides, Peers, RequestTrace, Result, block_on};
use nereid_core::Server;
use nereid_cuda::Cuda;
use nereid_model_config::to_json;
use nereid_protocol::repository::LoadParameter;
use triton_sys::*;

use crate::boundary::{Out, exports};
use crate::embedder::Embedded;
use crate::handle::Handle;
use crate::inference::{InferenceRequest, version};
use crate::message::Message;
use crate::metrics::Snapshot;
use crate::model::check_version;
use crate::trace::SentTrace;
use crate::{call, describe};

/// Renders the metrics of a server as text.
type RenderMetrics = Box<dyn Fn(&Server) -> Result<String> + Send + Sync>;

/// The server's C handle. It keeps the server alive only if C created it.
#[derive(Default)]
pub(crate) struct ServerObject {
    attached: OnceLock<ServerParts>,
    /// Copies to and from GPU memory.
    cuda: Option<Arc<Cuda>>,
    /// The application's server, if C created it.
    owned: Option<Arc<dyn Embedded>>,
}

struct ServerParts {
    peers: Arc<dyn Peers>,
    /// For the server's documents, which only C reads.
    server: Weak<Server>,
    metrics: RenderMetrics,
}

impl ServerObject {
    /// A handle that is not attached yet.
    pub(crate) fn new(cuda: Option<Arc<Cuda>>) -> Self {
        Self { attached: OnceLock::new(), cuda, owned: None }
    }

    /// A server that an application created.
    pub(crate) fn owned(server: Arc<dyn Embedded>) -> Self {
        let core = server.server();
        let text = Arc::clone(&server);
        let attached = ServerParts {
            peers: core.peers_of_application(),
            server: Arc::downgrade(core),
            metrics: Box::new(move |_| text.metrics()),
        };
        Self { attached: OnceLock::from(attached), cuda: server.cuda(), owned: Some(server) }
    }

    /// The application's server.
    ///
    /// # Errors
    /// `Unsupported` if C did not create it: a backend's handle denotes the server that runs it.
    pub(crate) fn as_owner(&self) -> Result<&Arc<dyn Embedded>> {
        let foreign = || Error::unsupported("only the application that made the server can do this");
        self.owned.as_ref().ok_or_else(foreign)
    }

    /// Attaches the handle to a server, once.
    pub(crate) fn attach(&self, server: &Arc<Server>, metrics: RenderMetrics) {
        self.attached.get_or_init(|| ServerParts {
            peers: server.peers(),
            server: Arc::downgrade(server),
            metrics,
        });
    }

    /// The driver of the GPUs, if there is one.
    pub(crate) fn cuda(&self) -> Option<&Arc<Cuda>> {
        self.cuda.as_ref()
    }

    /// The server as backends use it.
    ///
    /// # Errors
    /// `Unavailable` if it is not attached.
    pub(crate) fn peers(&self) -> Result<&dyn Peers> {
        Ok(&*self.attached()?.peers)
    }

    /// The server, for its documents.
    ///
    /// # Errors
    /// `Unavailable` if the handle is not attached yet, or the server was dropped.
    fn server(&self) -> Result<Arc<Server>> {
        self.attached()?.server.upgrade().ok_or_else(|| Error::unavailable("the server has shut down"))
    }

    /// A trace for an application's request without one, if the server's options enable traces.
    fn sample_trace(&self, request: &Handle<InferenceRequest>) -> Result<Option<SentTrace>> {
        let Some(control) = self.owned.as_ref().map(|owned| owned.server().trace()) else { return Ok(None) };
        if !control.is_on() {
            return Ok(None);
        }
        let drawn = control.draw(&request.get()?.fields().model_name, || None);
        Ok(drawn.map(|trace| SentTrace { trace: RequestTrace::new(trace), handle: None }))
    }

    /// Checks that an application's server is not stopped, for calls that require a running server.
    ///
    /// # Errors
    /// `Unavailable` if it is stopped.
    fn check_not_stopped(&self) -> Result<()> {
        match &self.owned {
            Some(owned) if owned.server().is_stopping() => Err(Error::unavailable("the server was stopped")),
            _ => Ok(()),
        }
    }

    /// The server's metrics, as text.
    ///
    /// # Errors
    /// `Unavailable` if the server was dropped.
    fn metrics(&self) -> Result<String> {
        let server = self.server()?;
        (self.attached()?.metrics)(&server)
    }

    fn attached(&self) -> Result<&ServerParts> {
        let examined = || Error::unavailable("no server is available: the model is only being checked");
        self.attached.get().ok_or_else(examined)
    }
}

fn load(server: Handle<ServerObject>, name: &str, overrides: Overrides) -> Result<()> {
    block_on(server.get()?.peers()?.load(name, overrides))
}

fn unload(server: Handle<ServerObject>, name: &str, dependents: bool) -> Result<()> {
    block_on(server.get()?.peers()?.unload(name, dependents))
}

/// The overrides in the parameters of a load.
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
        let server = server.get()?;
        server.check_not_stopped()?;
        live.set(server.server().is_ok_and(|server| server.is_live()))?;
    }

    fn TRITONSERVER_ServerIsReady(server: *mut TRITONSERVER_Server, ready: *mut bool) {
        let server = server.get()?;
        server.check_not_stopped()?;
        ready.set(block_on(server.peers()?.ready())?)?;
    }

    fn TRITONSERVER_ServerModelIsReady(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        ready: *mut bool,
    ) {
        let (server, name, version) = (server.get()?, model_name.read()?, version(model_version)?);
        server.server()?;
        ready.set(false)?;
        match server.peers()?.model(&name, version) {
            Ok(_) => ready.set(block_on(server.peers()?.model_ready(&name, version)).is_ok())?,
            // Neither an unknown model nor one that is not served is an error.
            Err(error) if matches!(error.code(), ErrorCode::NotFound | ErrorCode::Unavailable) => {}
            Err(error) => return Err(error),
        }
    }

    fn TRITONSERVER_ServerModelBatchProperties(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        flags: *mut u32,
        voidp: *mut *mut c_void,
    ) {
        voidp.set_optional(ptr::null_mut());
        let model = server.get()?.peers()?.model(&model_name.read()?, version(model_version)?)?;
        flags.set(if model.config().max_batch_size > 0 { TRITONSERVER_BATCH_FIRST_DIM.0 } else { TRITONSERVER_BATCH_UNKNOWN.0 })?;
    }

    fn TRITONSERVER_ServerModelTransactionProperties(
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
        txn_flags: *mut u32,
        voidp: *mut *mut c_void,
    ) {
        voidp.set_optional(ptr::null_mut());
        let model = server.get()?.peers()?.model(&model_name.read()?, version(model_version)?)?;
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
        let name = model_name.read_optional().unwrap_or_default();
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
        let model = server.get()?.peers()?.model(&model_name.read()?, version(model_version)?)?;
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
        unload(server, &model_name.read()?, false)?;
    }

    fn TRITONSERVER_ServerUnloadModelAndDependents(server: *mut TRITONSERVER_Server, model_name: *const c_char) {
        unload(server, &model_name.read()?, true)?;
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
        let server = server.get()?;
        let trace = match trace.is_null() {
            true => server.sample_trace(&inference_request)?,
            false => Some(crate::trace::send(trace)?),
        };
        call::start(server.peers()?, inference_request, trace)?;
    }
}
