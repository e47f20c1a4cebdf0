//! A model as its backend sees it.

use std::ffi::{CString, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nereid_backend_api::{Error, MemoryUsage, ModelConfig, ModelContext, Result};
use nereid_model_config::proto::ModelInstanceGroup;
use nereid_model_config::{adopt_completed, from_json, to_json};
use triton_sys::*;

use crate::backend::BackendObject;
use crate::boundary::exports;
use crate::handle::Handle;
use crate::message::Message;
use crate::server::ServerObject;
use crate::text::c_string;

/// The only version of the configuration format.
pub(crate) const CONFIG_VERSION: u32 = 1;

/// A model behind a C handle.
pub(crate) struct ModelObject {
    name: CString,
    version: u64,
    location: CString,
    complete: bool,
    config: Mutex<Config>,
    server: Handle<ServerObject>,
    backend: Handle<BackendObject>,
    state: AtomicPtr<c_void>,
    /// As last reported.
    memory_usage: Mutex<Vec<MemoryUsage>>,
}

struct Config {
    config: ModelConfig,
    /// Whether the backend changed it.
    changed: bool,
}

impl ModelObject {
    /// A model about to be loaded.
    pub(crate) fn new(
        context: &ModelContext,
        server: Handle<ServerObject>,
        backend: Handle<BackendObject>,
    ) -> Self {
        Self {
            name: c_string(&context.name),
            version: context.version,
            location: c_string(&context.directory.to_string_lossy()),
            complete: context.complete,
            config: Mutex::new(Config { config: context.config.clone(), changed: false }),
            server,
            backend,
            state: AtomicPtr::default(),
            memory_usage: Mutex::default(),
        }
    }

    /// The memory usage that the backend reported for the model, without its instances.
    pub(crate) fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.memory_usage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The configuration as completed by the backend; `None` if unchanged.
    pub(crate) fn completed(&self) -> Option<ModelConfig> {
        let config = self.config();
        config.changed.then(|| config.config.clone())
    }

    /// Sets the instance groups of the configuration.
    pub(crate) fn set_instance_groups(&self, groups: &[ModelInstanceGroup]) {
        self.config().config.instance_group = groups.to_vec();
    }

    fn config(&self) -> MutexGuard<'_, Config> {
        // Each change is one assignment.
        self.config.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes over the fields that the backend may complete; ignores the others.
    fn complete(&self, json: &str) -> Result<()> {
        let mut stored = self.config();
        let config = completed(&stored.config, json)?;
        *stored = Config { config, changed: true };
        Ok(())
    }
}

/// The configuration with the fields that the backend completed.
///
/// # Errors
/// The document is not a configuration, or is another model's.
pub(crate) fn completed(config: &ModelConfig, json: &str) -> Result<ModelConfig> {
    let completed = from_json(json)
        .map_err(|error| Error::invalid_arg(format!("the completed configuration: {error}")))?;
    let mut config = config.clone();
    adopt_completed(&mut config, completed).map_err(|error| Error::invalid_arg(error.to_string()))?;
    Ok(config)
}

pub(crate) fn check_version(version: u32) -> Result<()> {
    if version == CONFIG_VERSION {
        return Ok(());
    }
    Err(Error::invalid_arg(format!(
        "configuration version {version} is not supported; expected {CONFIG_VERSION}"
    )))
}

exports! {
    fn TRITONBACKEND_ModelName(model: *mut TRITONBACKEND_Model, name: *mut *const c_char) {
        name.set(model.get()?.name.as_ptr())?;
    }

    fn TRITONBACKEND_ModelVersion(model: *mut TRITONBACKEND_Model, version: *mut u64) {
        version.set(model.get()?.version)?;
    }

    fn TRITONBACKEND_ModelRepository(
        model: *mut TRITONBACKEND_Model,
        artifact_type: *mut TRITONBACKEND_ArtifactType,
        location: *mut *const c_char,
    ) {
        let model = model.get()?;
        artifact_type.set(TRITONBACKEND_ARTIFACT_FILESYSTEM)?;
        location.set(model.location.as_ptr())?;
    }

    fn TRITONBACKEND_ModelConfig(
        model: *mut TRITONBACKEND_Model,
        config_version: u32,
        model_config: *mut *mut TRITONSERVER_Message,
    ) {
        check_version(config_version)?;
        let json = to_json(&model.get()?.config().config);
        model_config.give(Message::new(json))?;
    }

    fn TRITONBACKEND_ModelAutoCompleteConfig(model: *mut TRITONBACKEND_Model, auto_complete_config: *mut bool) {
        auto_complete_config.set(model.get()?.complete)?;
    }

    fn TRITONBACKEND_ModelSetConfig(
        model: *mut TRITONBACKEND_Model,
        config_version: u32,
        model_config: *mut TRITONSERVER_Message,
    ) {
        check_version(config_version)?;
        let message = model_config.get()?;
        model.get()?.complete(message.json())?;
    }

    fn TRITONBACKEND_ModelServer(model: *mut TRITONBACKEND_Model, server: *mut *mut TRITONSERVER_Server) {
        server.set(model.get()?.server.as_c())?;
    }

    fn TRITONBACKEND_ModelBackend(model: *mut TRITONBACKEND_Model, backend: *mut *mut TRITONBACKEND_Backend) {
        backend.set(model.get()?.backend.as_c())?;
    }

    fn TRITONBACKEND_ModelState(model: *mut TRITONBACKEND_Model, state: *mut *mut c_void) {
        state.set(model.get()?.state.load(Relaxed))?;
    }

    fn TRITONBACKEND_ModelSetState(model: *mut TRITONBACKEND_Model, state: *mut c_void) {
        model.get()?.state.store(state, Relaxed);
    }

    fn TRITONBACKEND_ModelReportMemoryUsage(
        model: *mut TRITONBACKEND_Model,
        usage: *mut *mut TRITONSERVER_BufferAttributes,
        usage_size: u32,
    ) {
        let usage = crate::attributes::usage(&usage, usage_size)?;
        *model.get()?.memory_usage.lock().unwrap_or_else(PoisonError::into_inner) = usage;
    }
}
