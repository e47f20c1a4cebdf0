//! C objects of agents and their models.

use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nereid_backend_api::{Error, ErrorCode, Result};
use nereid_core::{AgentAction, AgentContext, AgentFolders, LoadGuard, ModelLocation};
use nereid_model_config::{ModelConfig, to_json};
use triton_sys::*;

use crate::boundary::exports;
use crate::message::Message;
use crate::model::check_version;
use crate::text::c_string;

/// Limit of locations per model: C may still read the text of each.
const MAX_LOCATIONS: usize = 1000;

/// An agent behind a C handle.
#[derive(Default)]
pub(crate) struct AgentObject {
    state: AtomicPtr<c_void>,
}

/// A model behind a C handle.
pub(crate) struct AgentModelObject {
    config: ModelConfig,
    parameters: Vec<(CString, CString)>,
    folders: AgentFolders,
    state: AtomicPtr<c_void>,
    places: Mutex<Places>,
}

/// The location of a model, and the folder acquired for it.
struct Places {
    action: Option<AgentAction>,
    location: ModelLocation,
    /// Every text passed to C, the current location's last.
    texts: Vec<CString>,
    /// The folder that the agent acquired.
    acquired: Option<(CString, LoadGuard)>,
}

impl AgentModelObject {
    pub(crate) fn new(context: AgentContext) -> Result<Self> {
        let AgentContext { location, config, parameters, folders, .. } = context;
        let parameters = parameters.iter().map(|(name, value)| (c_string(name), c_string(value))).collect();
        let texts = vec![c_string(&location.to_string())];
        let places = Mutex::new(Places { action: None, location, texts, acquired: None });
        Ok(Self { config, parameters, folders, state: AtomicPtr::default(), places })
    }

    /// Records the action that begins.
    pub(super) fn begin(&self, action: AgentAction) {
        self.places().action = Some(action);
    }

    pub(super) fn location(&self) -> ModelLocation {
        self.places().location.clone()
    }

    /// The text of the location. C may read it as long as the model exists.
    fn read_location(&self) -> (TRITONREPOAGENT_ArtifactType, *const c_char) {
        let places = self.places();
        let kind = match places.location {
            ModelLocation::Folder(_) => TRITONREPOAGENT_ARTIFACT_FILESYSTEM,
            ModelLocation::Remote(_) => TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM,
        };
        (kind, places.texts.last().map_or(std::ptr::null(), |text| text.as_ptr()))
    }

    fn acquire(&self, kind: TRITONREPOAGENT_ArtifactType) -> Result<*const c_char> {
        if kind != TRITONREPOAGENT_ARTIFACT_FILESYSTEM {
            return Err(Error::invalid_arg(
                "only a location of the type TRITONREPOAGENT_ARTIFACT_FILESYSTEM can be acquired",
            ));
        }
        if let Some((path, _)) = &self.places().acquired {
            return Ok(path.as_ptr());
        }
        if self.places().texts.len() >= MAX_LOCATIONS {
            return Err(Error::invalid_arg("locations were acquired and released too often"));
        }
        let (path, guard) = self.folders.acquire()?;
        let text = c_string(&path.to_string_lossy());
        let address = text.as_ptr();
        self.places().acquired = Some((text, guard));
        Ok(address)
    }

    fn release(&self) -> Result<()> {
        let mut places = self.places();
        let released = places.acquired.take();
        let Some((text, guard)) = released else {
            return Err(Error::unavailable("no location is acquired that could be released"));
        };
        // The location may be this folder, whose text C still holds.
        places.texts.insert(0, text);
        drop(places);
        drop(guard);
        Ok(())
    }

    fn update(&self, kind: TRITONREPOAGENT_ArtifactType, location: &str) -> Result<()> {
        let invalid = |message: &str| Err(Error::new(ErrorCode::InvalidArg, message.to_owned()));
        let mut places = self.places();
        if places.action != Some(AgentAction::Load) {
            return invalid("the location can be updated only during TRITONREPOAGENT_ACTION_LOAD");
        }
        if location.is_empty() {
            return invalid("the location is empty");
        }
        if places.texts.len() >= MAX_LOCATIONS {
            return invalid("the location was updated too often");
        }
        places.location = match kind {
            TRITONREPOAGENT_ARTIFACT_FILESYSTEM => ModelLocation::Folder(Path::new(location).to_owned()),
            TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM => ModelLocation::Remote(location.to_owned()),
            TRITONREPOAGENT_ArtifactType(number) => {
                return invalid(&format!("unknown artifact type {number}"));
            }
        };
        places.texts.push(c_string(location));
        Ok(())
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// C's number of the action.
pub(super) fn to_c(action: AgentAction) -> TRITONREPOAGENT_ActionType {
    match action {
        AgentAction::Load => TRITONREPOAGENT_ACTION_LOAD,
        AgentAction::LoadComplete => TRITONREPOAGENT_ACTION_LOAD_COMPLETE,
        AgentAction::LoadFail => TRITONREPOAGENT_ACTION_LOAD_FAIL,
        AgentAction::Unload => TRITONREPOAGENT_ACTION_UNLOAD,
        AgentAction::UnloadComplete => TRITONREPOAGENT_ACTION_UNLOAD_COMPLETE,
    }
}

exports! {
    fn TRITONREPOAGENT_ApiVersion(major: *mut u32, minor: *mut u32) {
        major.set(TRITONREPOAGENT_API_VERSION_MAJOR)?;
        minor.set(TRITONREPOAGENT_API_VERSION_MINOR)?;
    }

    fn TRITONREPOAGENT_ModelRepositoryLocation(
        _agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        artifact_type: *mut TRITONREPOAGENT_ArtifactType,
        location: *mut *const c_char,
    ) {
        let (kind, text) = model.get()?.read_location();
        artifact_type.set(kind)?;
        location.set(text)?;
    }

    fn TRITONREPOAGENT_ModelRepositoryLocationAcquire(
        _agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        artifact_type: TRITONREPOAGENT_ArtifactType,
        location: *mut *const c_char,
    ) {
        location.set(model.get()?.acquire(artifact_type)?)?;
    }

    fn TRITONREPOAGENT_ModelRepositoryLocationRelease(
        _agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        _location: *const c_char,
    ) {
        model.get()?.release()?;
    }

    fn TRITONREPOAGENT_ModelRepositoryUpdate(
        _agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        artifact_type: TRITONREPOAGENT_ArtifactType,
        location: *const c_char,
    ) {
        model.get()?.update(artifact_type, &location.read()?)?;
    }

    fn TRITONREPOAGENT_ModelParameterCount(
        _agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        count: *mut u32,
    ) {
        let parameters = model.get()?.parameters.len();
        count.set(u32::try_from(parameters).unwrap_or(u32::MAX))?;
    }

    fn TRITONREPOAGENT_ModelParameter(
        _agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        index: u32,
        parameter_name: *mut *const c_char,
        parameter_value: *mut *const c_char,
    ) {
        let model = model.get()?;
        let parameter = model.parameters.get(index as usize);
        let missing = || Error::invalid_arg(format!("the model has no parameter {index} for the agent"));
        let (name, value) = parameter.ok_or_else(missing)?;
        parameter_name.set(name.as_ptr())?;
        parameter_value.set(value.as_ptr())?;
    }

    fn TRITONREPOAGENT_ModelConfig(
        _agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
        config_version: u32,
        model_config: *mut *mut TRITONSERVER_Message,
    ) {
        let model = model.get()?;
        check_version(config_version)?;
        model_config.give(Message::new(to_json(&model.config)))?;
    }

    fn TRITONREPOAGENT_ModelState(model: *mut TRITONREPOAGENT_AgentModel, state: *mut *mut c_void) {
        state.set(model.get()?.state.load(Relaxed))?;
    }

    fn TRITONREPOAGENT_ModelSetState(model: *mut TRITONREPOAGENT_AgentModel, state: *mut c_void) {
        model.get()?.state.store(state, Relaxed);
    }

    fn TRITONREPOAGENT_State(agent: *mut TRITONREPOAGENT_Agent, state: *mut *mut c_void) {
        state.set(agent.get()?.state.load(Relaxed))?;
    }

    fn TRITONREPOAGENT_SetState(agent: *mut TRITONREPOAGENT_Agent, state: *mut c_void) {
        agent.get()?.state.store(state, Relaxed);
    }
}
