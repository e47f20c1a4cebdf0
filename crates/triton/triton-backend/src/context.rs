//! Contexts: the server's view of a backend, a model and an instance at start.

use std::ffi::c_char;
use std::path::{Path, PathBuf};
use std::ptr;

use serde_json::Value;
use triton_sys::*;

use crate::config::{ModelConfig, command_line};
use crate::error::{Result, check, text};
use crate::memory::{self, MemoryManager, MemoryUsage};
use crate::message::{self, Message};
use crate::property::{property, text_lossy};
use crate::server::Server;

/// The kind of device that an instance runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InstanceKind {
    /// The server has not decided.
    Auto,
    /// The CPU.
    Cpu,
    /// A GPU: [`InstanceContext::device_id`] is its number.
    Gpu,
    /// The model decides.
    Model,
}

impl InstanceKind {
    pub(crate) fn into_c(self) -> TRITONSERVER_InstanceGroupKind {
        match self {
            Self::Auto => TRITONSERVER_INSTANCEGROUPKIND_AUTO,
            Self::Cpu => TRITONSERVER_INSTANCEGROUPKIND_CPU,
            Self::Gpu => TRITONSERVER_INSTANCEGROUPKIND_GPU,
            Self::Model => TRITONSERVER_INSTANCEGROUPKIND_MODEL,
        }
    }

    fn from_c(kind: TRITONSERVER_InstanceGroupKind) -> Self {
        match kind {
            TRITONSERVER_INSTANCEGROUPKIND_CPU => Self::Cpu,
            TRITONSERVER_INSTANCEGROUPKIND_GPU => Self::Gpu,
            TRITONSERVER_INSTANCEGROUPKIND_MODEL => Self::Model,
            _ => Self::Auto,
        }
    }
}

/// A device that an instance may use in addition to its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecondaryDevice {
    /// The device's kind, as in configurations: `KIND_NVDLA`.
    pub kind: String,
    /// The device's number among the devices of that kind.
    pub id: i64,
}

/// How instances map to threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExecutionPolicy {
    /// One thread per instance. The default.
    Blocking,
    /// One thread per device, shared by its instances: `execute` returns early and answers later.
    DeviceBlocking,
}

/// A backend at its start.
pub struct BackendContext<'a> {
    handle: *mut TRITONBACKEND_Backend,
    name: &'a str,
    folder: PathBuf,
}

impl BackendContext<'_> {
    /// # Safety
    /// `handle` lives at least as long as the context.
    pub(crate) unsafe fn new(handle: *mut TRITONBACKEND_Backend) -> Result<Self> {
        let mut name = ptr::null();
        // SAFETY: the backend lives, and its name with it.
        let name = unsafe {
            check(TRITONBACKEND_BackendName(handle, &mut name))?;
            text(name)?
        };
        // SAFETY: the backend lives, and both addresses may be written.
        let folder = location(|kind, place| unsafe { TRITONBACKEND_BackendArtifacts(handle, kind, place) })?;
        Ok(Self { handle, name, folder })
    }

    /// The backend's name, as used in configurations.
    pub fn name(&self) -> &str {
        self.name
    }

    /// The folder of the backend's library.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The backend's configuration: `{"cmdline": {...}}`.
    ///
    /// # Errors
    /// The server's error.
    pub fn config(&self) -> Result<Value> {
        let mut config = ptr::null_mut();
        // SAFETY: the backend lives; the message stays the server's and is read at once.
        unsafe {
            check(TRITONBACKEND_BackendConfig(self.handle, &mut config))?;
            message::json(config)
        }
    }

    /// A setting from the command line (`--backend-config=<name>,<setting>=<value>`), or a default of
    /// the server such as `default-max-batch-size`.
    ///
    /// # Errors
    /// The server's error.
    pub fn setting(&self, name: &str) -> Result<Option<String>> {
        let config = self.config()?;
        Ok(command_line(&config).and_then(|settings| settings.get(name)?.as_str().map(str::to_owned)))
    }

    /// The server's memory, for buffers of the backend's own:
    ///
    /// ```no_run
    /// # fn start(context: &triton_backend::BackendContext<'_>) -> triton_backend::Result<()> {
    /// let mut buffer = context.memory_manager()?.allocate(1024)?;
    /// buffer[..3].copy_from_slice(b"abc");
    /// # Ok(())
    /// # }
    /// # fn main() {}
    /// ```
    ///
    /// # Errors
    /// The server's error.
    pub fn memory_manager(&self) -> Result<MemoryManager> {
        let mut manager = ptr::null_mut();
        // SAFETY: the backend lives, the address may be written, and the manager lives as long as the backend.
        unsafe {
            check(TRITONBACKEND_BackendMemoryManager(self.handle, &mut manager))?;
            MemoryManager::new(manager)
        }
    }

    /// Sets how instances map to threads.
    ///
    /// # Errors
    /// The server's error.
    pub fn set_execution_policy(&self, policy: ExecutionPolicy) -> Result<()> {
        let policy = match policy {
            ExecutionPolicy::Blocking => TRITONBACKEND_EXECUTION_BLOCKING,
            ExecutionPolicy::DeviceBlocking => TRITONBACKEND_EXECUTION_DEVICE_BLOCKING,
        };
        // SAFETY: the backend lives.
        unsafe { check(TRITONBACKEND_BackendSetExecutionPolicy(self.handle, policy)) }
    }
}

/// A model at its start.
pub struct ModelContext<'a> {
    handle: *mut TRITONBACKEND_Model,
    name: &'a str,
    version: u64,
    folder: PathBuf,
    server: Server,
}

impl ModelContext<'_> {
    /// # Safety
    /// `handle` lives at least as long as the context.
    pub(crate) unsafe fn new(handle: *mut TRITONBACKEND_Model) -> Result<Self> {
        let (mut name, mut version, mut server) = (ptr::null(), 0, ptr::null_mut());
        // SAFETY: the model lives, and its name with it; all addresses may be written. The server outlives its models.
        let (name, server) = unsafe {
            check(TRITONBACKEND_ModelName(handle, &mut name))?;
            check(TRITONBACKEND_ModelVersion(handle, &mut version))?;
            check(TRITONBACKEND_ModelServer(handle, &mut server))?;
            (text(name)?, Server::new(server))
        };
        // SAFETY: the model lives, and both addresses may be written.
        let folder = location(|kind, place| unsafe { TRITONBACKEND_ModelRepository(handle, kind, place) })?;
        Ok(Self { handle, name, version, folder, server })
    }

    /// The model's name.
    pub fn name(&self) -> &str {
        self.name
    }

    /// The loaded version.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// The model's folder, which contains the folders of its versions.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of the loaded version.
    pub fn version_folder(&self) -> PathBuf {
        self.folder.join(self.version.to_string())
    }

    /// The current configuration.
    ///
    /// # Errors
    /// The server's error, as for all functions here.
    pub fn config(&self) -> Result<ModelConfig> {
        let mut config = ptr::null_mut();
        // SAFETY: the model lives; the message is new, and ours.
        let message = unsafe {
            check(TRITONBACKEND_ModelConfig(self.handle, 1, &mut config))?;
            Message::own(config)
        };
        ModelConfig::new(message.json()?)
    }

    /// The server, for requests by the model.
    pub fn server(&self) -> Server {
        self.server.clone()
    }

    /// Reports the model's memory, without its instances. Replaces earlier reports.
    ///
    /// # Errors
    /// The server's error.
    pub fn report_memory_usage(&self, usage: &[MemoryUsage]) -> Result<()> {
        // SAFETY: the model lives, and the list until the function returns.
        memory::report(usage, |list, count| unsafe {
            TRITONBACKEND_ModelReportMemoryUsage(self.handle, list, count)
        })
    }

    pub(crate) fn may_complete_config(&self) -> Result<bool> {
        let mut may = false;
        // SAFETY: the model lives, and the address may be written.
        unsafe { check(TRITONBACKEND_ModelAutoCompleteConfig(self.handle, &mut may))? };
        Ok(may)
    }

    pub(crate) fn set_config(&self, config: &ModelConfig) -> Result<()> {
        let message = Message::of(config.json())?;
        // SAFETY: the model and the message live; the server copies what it needs from the message.
        unsafe { check(TRITONBACKEND_ModelSetConfig(self.handle, 1, message.handle())) }
    }
}

/// An instance at its start.
pub struct InstanceContext<'a> {
    handle: *mut TRITONBACKEND_ModelInstance,
    name: &'a str,
    kind: InstanceKind,
    device_id: i32,
    is_passive: bool,
}

impl InstanceContext<'_> {
    /// # Safety
    /// `handle` lives at least as long as the context.
    pub(crate) unsafe fn new(handle: *mut TRITONBACKEND_ModelInstance) -> Result<Self> {
        let (mut name, mut kind) = (ptr::null(), TRITONSERVER_INSTANCEGROUPKIND_AUTO);
        let (mut device_id, mut is_passive) = (0, false);
        // SAFETY: the instance lives, and its name with it; all addresses may be written.
        let name = unsafe {
            check(TRITONBACKEND_ModelInstanceName(handle, &mut name))?;
            check(TRITONBACKEND_ModelInstanceKind(handle, &mut kind))?;
            check(TRITONBACKEND_ModelInstanceDeviceId(handle, &mut device_id))?;
            check(TRITONBACKEND_ModelInstanceIsPassive(handle, &mut is_passive))?;
            text(name)?
        };
        Ok(Self { handle, name, kind: InstanceKind::from_c(kind), device_id, is_passive })
    }

    /// The instance's name.
    pub fn name(&self) -> &str {
        self.name
    }

    /// The kind of device that the instance runs on.
    pub fn kind(&self) -> InstanceKind {
        self.kind
    }

    /// The number of the instance's device, if its kind has devices.
    pub fn device_id(&self) -> i32 {
        self.device_id
    }

    /// Whether the instance is loaded but never executed by the server itself.
    pub fn is_passive(&self) -> bool {
        self.is_passive
    }

    /// The host policy of the instance, as JSON.
    ///
    /// # Errors
    /// The server's error, as for all functions here.
    pub fn host_policy(&self) -> Result<Value> {
        let mut policy = ptr::null_mut();
        // SAFETY: the instance lives; the message stays the server's and is read at once.
        unsafe {
            check(TRITONBACKEND_ModelInstanceHostPolicy(self.handle, &mut policy))?;
            message::json(policy)
        }
    }

    /// The names of the optimization profiles for the instance.
    pub fn profiles(&self) -> Vec<String> {
        // SAFETY: the instance lives.
        let count =
            unsafe { property(0, |count| TRITONBACKEND_ModelInstanceProfileCount(self.handle, count)) };
        let read = |index| {
            // SAFETY: the instance lives, and its profiles' names with it; the name is copied.
            let name = unsafe {
                text_lossy(property(ptr::null(), |name| {
                    TRITONBACKEND_ModelInstanceProfileName(self.handle, index, name)
                }))
            };
            name.into_owned()
        };
        (0..count).map(read).collect()
    }

    /// The devices that the instance may use in addition to its own.
    pub fn secondary_devices(&self) -> Vec<SecondaryDevice> {
        // SAFETY: the instance lives.
        let count = unsafe {
            property(0, |count| TRITONBACKEND_ModelInstanceSecondaryDeviceCount(self.handle, count))
        };
        let read = |index| {
            // SAFETY: the instance lives, and the names of kinds with it; the name is copied.
            let (kind, id) = unsafe {
                let (kind, id) = property((ptr::null(), 0), |(kind, id)| {
                    TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(self.handle, index, kind, id)
                });
                (text_lossy(kind).into_owned(), id)
            };
            SecondaryDevice { kind, id }
        };
        (0..count).map(read).collect()
    }

    /// Reports the instance's memory. Replaces earlier reports.
    ///
    /// # Errors
    /// The server's error.
    pub fn report_memory_usage(&self, usage: &[MemoryUsage]) -> Result<()> {
        // SAFETY: the instance lives, and the list until the function returns.
        memory::report(usage, |list, count| unsafe {
            TRITONBACKEND_ModelInstanceReportMemoryUsage(self.handle, list, count)
        })
    }

    pub(crate) fn model(&self) -> Result<*mut TRITONBACKEND_Model> {
        let mut model = ptr::null_mut();
        // SAFETY: the instance lives, and the address may be written.
        unsafe { check(TRITONBACKEND_ModelInstanceModel(self.handle, &mut model))? };
        Ok(model)
    }
}

/// A path from a function that returns it with its kind, of which only one exists.
fn location(
    get: impl FnOnce(*mut TRITONBACKEND_ArtifactType, *mut *const c_char) -> *mut TRITONSERVER_Error,
) -> Result<PathBuf> {
    let (mut kind, mut place) = (TRITONBACKEND_ARTIFACT_FILESYSTEM, ptr::null());
    // SAFETY: the error is ours; the path lives as long as its owner, and is copied.
    unsafe {
        check(get(&mut kind, &mut place))?;
        Ok(Path::new(text(place)?).to_owned())
    }
}
