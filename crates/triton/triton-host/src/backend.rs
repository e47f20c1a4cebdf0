//! A backend as its library sees it: name, settings, location and attributes.

use std::ffi::{CString, c_char, c_void};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{Error, Result};
use nereid_cuda::Pools;
use nereid_model_config::proto::ModelInstanceGroup;
use nereid_model_config::proto::model_instance_group::Kind;
use triton_sys::*;

use crate::boundary::exports;
use crate::handle::LentHandle;
use crate::memory::MemoryManager;
use crate::message::Message;
use crate::text::c_string;

/// A backend behind a C handle.
pub(crate) struct BackendObject {
    name: CString,
    directory: CString,
    settings: LentHandle<Message>,
    manager: LentHandle<MemoryManager>,
    policy: AtomicU32,
    state: AtomicPtr<c_void>,
}

impl BackendObject {
    /// A backend of that name in `directory`; `settings` is a JSON document.
    pub(crate) fn new(name: &str, directory: &Path, settings: String, pools: &Arc<Pools>) -> Result<Self> {
        Ok(Self {
            name: c_string(name),
            directory: c_string(&directory.to_string_lossy()),
            settings: LentHandle::new(Message::new(settings))?,
            manager: LentHandle::new(Arc::new(MemoryManager::new(Arc::clone(pools))))?,
            policy: AtomicU32::new(TRITONBACKEND_EXECUTION_BLOCKING.0),
            state: AtomicPtr::default(),
        })
    }

    /// Whether the backend's instances share one thread per device.
    pub(crate) fn shares_threads(&self) -> bool {
        self.policy.load(Relaxed) == TRITONBACKEND_EXECUTION_DEVICE_BLOCKING.0
    }
}

/// Attributes that a backend reports when it is initialized.
#[derive(Default)]
pub(crate) struct Attributes {
    parallel: AtomicBool,
    /// Instance groups for configurations without any.
    preferred: Mutex<Vec<ModelInstanceGroup>>,
}

impl Attributes {
    /// Whether several instances of a model may be created at the same time.
    pub(crate) fn parallel(&self) -> bool {
        self.parallel.load(Relaxed)
    }

    /// The instance groups for configurations without any, on a machine with these GPUs. GPUs that do not exist are
    /// removed, and so are groups left without a GPU. Empty if one instance on the CPU remains on a machine without GPUs,
    /// which is the default there.
    pub(crate) fn preferred(&self, gpus: &[i32]) -> Vec<ModelInstanceGroup> {
        let mut groups = self.preferred.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for group in &mut groups {
            if group.kind() == Kind::Auto && !gpus.is_empty() {
                group.set_kind(Kind::Gpu);
            }
            if group.kind() == Kind::Gpu && group.gpus.is_empty() {
                group.gpus = gpus.to_vec();
            }
        }
        groups.retain_mut(|group| {
            group.gpus.retain(|gpu| group.kind != Kind::Gpu as i32 || gpus.contains(gpu));
            group.kind() != Kind::Gpu || !group.gpus.is_empty()
        });
        let on_processor = |group: &ModelInstanceGroup| matches!(group.kind(), Kind::Auto | Kind::Cpu);
        let says_nothing =
            |group: &ModelInstanceGroup| gpus.is_empty() && on_processor(group) && group.count <= 1;
        if let [only] = &groups[..]
            && says_nothing(only)
        {
            groups.clear();
        }
        groups
    }
}

exports! {
    fn TRITONBACKEND_ApiVersion(major: *mut u32, minor: *mut u32) {
        major.set(TRITONBACKEND_API_VERSION_MAJOR)?;
        minor.set(TRITONBACKEND_API_VERSION_MINOR)?;
    }

    fn TRITONBACKEND_BackendName(backend: *mut TRITONBACKEND_Backend, name: *mut *const c_char) {
        name.set(backend.get()?.name.as_ptr())?;
    }

    fn TRITONBACKEND_BackendConfig(
        backend: *mut TRITONBACKEND_Backend,
        backend_config: *mut *mut TRITONSERVER_Message,
    ) {
        backend_config.set(backend.get()?.settings.handle().as_c())?;
    }

    fn TRITONBACKEND_BackendExecutionPolicy(
        backend: *mut TRITONBACKEND_Backend,
        policy: *mut TRITONBACKEND_ExecutionPolicy,
    ) {
        policy.set(TRITONBACKEND_ExecutionPolicy(backend.get()?.policy.load(Relaxed)))?;
    }

    fn TRITONBACKEND_BackendSetExecutionPolicy(
        backend: *mut TRITONBACKEND_Backend,
        policy: TRITONBACKEND_ExecutionPolicy,
    ) {
        if ![TRITONBACKEND_EXECUTION_BLOCKING, TRITONBACKEND_EXECUTION_DEVICE_BLOCKING].contains(&policy) {
            return Err(Error::invalid_arg(format!("unknown execution policy {}", policy.0)));
        }
        backend.get()?.policy.store(policy.0, Relaxed);
    }

    fn TRITONBACKEND_BackendArtifacts(
        backend: *mut TRITONBACKEND_Backend,
        artifact_type: *mut TRITONBACKEND_ArtifactType,
        location: *mut *const c_char,
    ) {
        let backend = backend.get()?;
        artifact_type.set(TRITONBACKEND_ARTIFACT_FILESYSTEM)?;
        location.set(backend.directory.as_ptr())?;
    }

    fn TRITONBACKEND_BackendMemoryManager(
        backend: *mut TRITONBACKEND_Backend,
        manager: *mut *mut TRITONBACKEND_MemoryManager,
    ) {
        manager.set(backend.get()?.manager.handle().as_c())?;
    }

    fn TRITONBACKEND_BackendState(backend: *mut TRITONBACKEND_Backend, state: *mut *mut c_void) {
        state.set(backend.get()?.state.load(Relaxed))?;
    }

    fn TRITONBACKEND_BackendSetState(backend: *mut TRITONBACKEND_Backend, state: *mut c_void) {
        backend.get()?.state.store(state, Relaxed);
    }

    fn TRITONBACKEND_BackendAttributeAddPreferredInstanceGroup(
        backend_attributes: *mut TRITONBACKEND_BackendAttribute,
        kind: TRITONSERVER_InstanceGroupKind,
        count: u64,
        device_ids: *const u64,
        id_count: u64,
    ) {
        if kind > TRITONSERVER_INSTANCEGROUPKIND_MODEL {
            return Err(Error::invalid_arg(format!("unknown instance kind {}", kind.0)));
        }
        let devices = if device_ids.is_null() { Vec::new() } else { device_ids.elements(id_count)? };
        let attributes = backend_attributes.get()?;
        let mut groups = attributes.preferred.lock().unwrap_or_else(PoisonError::into_inner);
        let device = |device: u64| i32::try_from(device).ok();
        let mut group = ModelInstanceGroup {
            count: i32::try_from(count).unwrap_or(i32::MAX),
            gpus: devices.into_iter().filter_map(device).collect(),
            ..ModelInstanceGroup::default()
        };
        group.set_kind(match kind {
            TRITONSERVER_INSTANCEGROUPKIND_CPU => Kind::Cpu,
            TRITONSERVER_INSTANCEGROUPKIND_GPU => Kind::Gpu,
            TRITONSERVER_INSTANCEGROUPKIND_MODEL => Kind::Model,
            _ => Kind::Auto,
        });
        groups.push(group);
    }

    fn TRITONBACKEND_BackendAttributeSetParallelModelInstanceLoading(
        backend_attributes: *mut TRITONBACKEND_BackendAttribute,
        enabled: bool,
    ) {
        backend_attributes.get()?.parallel.store(enabled, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn preferred_groups_are_limited_to_existing_gpus() {
        let group = |kind: Kind, gpus: &[i32]| ModelInstanceGroup {
            kind: kind as i32,
            count: 1,
            gpus: gpus.to_vec(),
            ..ModelInstanceGroup::default()
        };
        let preferred = |groups: &[ModelInstanceGroup], gpus: &[i32]| {
            let attributes = Attributes::default();
            *attributes.preferred.lock().unwrap() = groups.to_vec();
            attributes.preferred(gpus)
        };
        let (some, any, model) = (group(Kind::Gpu, &[1, 3]), group(Kind::Gpu, &[]), group(Kind::Model, &[]));
        let all = [some.clone(), any.clone(), model.clone()];
        assert_eq!(preferred(&all, &[]), std::slice::from_ref(&model));
        let of = |gpus: &[i32]| group(Kind::Gpu, gpus);
        assert_eq!(preferred(&all, &[0]), [of(&[0]), model.clone()]);
        assert_eq!(preferred(&all, &[0, 1]), [of(&[1]), of(&[0, 1]), model]);
        let cpu = group(Kind::Cpu, &[]);
        assert_eq!(preferred(std::slice::from_ref(&cpu), &[]), []);
        assert_eq!(preferred(std::slice::from_ref(&cpu), &[0]), [cpu]);
        assert_eq!(preferred(&[group(Kind::Auto, &[])], &[0, 1]), [of(&[0, 1])]);
        assert_eq!(preferred(&[group(Kind::Auto, &[])], &[]), []);
        assert_eq!(preferred(&[some], &[1]), [group(Kind::Gpu, &[1])]);
    }
}
