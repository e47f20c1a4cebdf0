//! An instance of a model as its backend sees it.

use std::ffi::{CString, c_char, c_void};
use std::sync::atomic::{AtomicPtr, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use nereid_backend_api::{BatchMonitor, InstanceContext, MemoryUsage, Result};
use serde_json::json;
use triton_sys::*;

use crate::boundary::exports;
use crate::handle::{Handle, LentHandle};
use crate::list::{at, count};
use crate::message::Message;
use crate::model::ModelObject;
use crate::names::kind_to_c;
use crate::text::c_string;

/// An instance behind a C handle.
pub(crate) struct InstanceObject {
    name: CString,
    kind: TRITONSERVER_InstanceGroupKind,
    device: i32,
    host_policy: LentHandle<Message>,
    passive: bool,
    profiles: Vec<CString>,
    secondary_devices: Vec<(CString, i64)>,
    model: Handle<ModelObject>,
    state: AtomicPtr<c_void>,
    /// As last reported.
    memory_usage: Mutex<Vec<MemoryUsage>>,
    /// Notified of executed batches; set with the first batch.
    monitor: Mutex<Option<Arc<dyn BatchMonitor>>>,
}

impl InstanceObject {
    /// The instance that `context` describes.
    pub(crate) fn new(context: &InstanceContext, model: Handle<ModelObject>) -> Result<Self> {
        let (kind, device) = kind_to_c(context.kind);
        let policy = &context.host_policy;
        let policy = json!({ policy.name.as_str(): &policy.settings }).to_string();
        let secondary = context.secondary_devices.iter();
        Ok(Self {
            name: c_string(&context.name),
            kind,
            device,
            host_policy: LentHandle::new(Message::new(policy))?,
            passive: context.passive,
            profiles: context.profiles.iter().map(|profile| c_string(profile)).collect(),
            secondary_devices: secondary
                .map(|device| (c_string(device.kind().as_str_name()), device.device_id))
                .collect(),
            model,
            state: AtomicPtr::default(),
            memory_usage: Mutex::default(),
            monitor: Mutex::default(),
        })
    }

    pub(crate) fn device(&self) -> (TRITONSERVER_InstanceGroupKind, i32) {
        (self.kind, self.device)
    }

    /// The memory usage that the backend reported for the instance.
    pub(crate) fn memory_usage(&self) -> Vec<MemoryUsage> {
        self.memory_usage.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_monitor(&self, monitor: Arc<dyn BatchMonitor>) {
        *self.monitor.lock().unwrap_or_else(PoisonError::into_inner) = Some(monitor);
    }

    pub(crate) fn monitor(&self) -> Option<Arc<dyn BatchMonitor>> {
        self.monitor.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

exports! {
    fn TRITONBACKEND_ModelInstanceName(instance: *mut TRITONBACKEND_ModelInstance, name: *mut *const c_char) {
        name.set(instance.get()?.name.as_ptr())?;
    }

    fn TRITONBACKEND_ModelInstanceKind(
        instance: *mut TRITONBACKEND_ModelInstance,
        kind: *mut TRITONSERVER_InstanceGroupKind,
    ) {
        kind.set(instance.get()?.kind)?;
    }

    fn TRITONBACKEND_ModelInstanceDeviceId(instance: *mut TRITONBACKEND_ModelInstance, device_id: *mut i32) {
        device_id.set(instance.get()?.device)?;
    }

    fn TRITONBACKEND_ModelInstanceHostPolicy(
        instance: *mut TRITONBACKEND_ModelInstance,
        host_policy: *mut *mut TRITONSERVER_Message,
    ) {
        host_policy.set(instance.get()?.host_policy.handle().as_c())?;
    }

    fn TRITONBACKEND_ModelInstanceIsPassive(instance: *mut TRITONBACKEND_ModelInstance, is_passive: *mut bool) {
        is_passive.set(instance.get()?.passive)?;
    }

    fn TRITONBACKEND_ModelInstanceProfileCount(instance: *mut TRITONBACKEND_ModelInstance, count: *mut u32) {
        count.set(self::count(&instance.get()?.profiles))?;
    }

    fn TRITONBACKEND_ModelInstanceProfileName(
        instance: *mut TRITONBACKEND_ModelInstance,
        index: u32,
        profile_name: *mut *const c_char,
    ) {
        let instance = instance.get()?;
        profile_name.set(at(&instance.profiles, index, "profiles")?.as_ptr())?;
    }

    fn TRITONBACKEND_ModelInstanceSecondaryDeviceCount(
        instance: *mut TRITONBACKEND_ModelInstance,
        count: *mut u32,
    ) {
        count.set(self::count(&instance.get()?.secondary_devices))?;
    }

    fn TRITONBACKEND_ModelInstanceSecondaryDeviceProperties(
        instance: *mut TRITONBACKEND_ModelInstance,
        index: u32,
        kind: *mut *const c_char,
        id: *mut i64,
    ) {
        let instance = instance.get()?;
        let (name, device) = at(&instance.secondary_devices, index, "secondary devices")?;
        kind.set(name.as_ptr())?;
        id.set(*device)?;
    }

    fn TRITONBACKEND_ModelInstanceModel(
        instance: *mut TRITONBACKEND_ModelInstance,
        model: *mut *mut TRITONBACKEND_Model,
    ) {
        model.set(instance.get()?.model.as_c())?;
    }

    fn TRITONBACKEND_ModelInstanceState(instance: *mut TRITONBACKEND_ModelInstance, state: *mut *mut c_void) {
        state.set(instance.get()?.state.load(Relaxed))?;
    }

    fn TRITONBACKEND_ModelInstanceSetState(instance: *mut TRITONBACKEND_ModelInstance, state: *mut c_void) {
        instance.get()?.state.store(state, Relaxed);
    }

    fn TRITONBACKEND_ModelInstanceReportMemoryUsage(
        instance: *mut TRITONBACKEND_ModelInstance,
        usage: *mut *mut TRITONSERVER_BufferAttributes,
        usage_size: u32,
    ) {
        let usage = crate::attributes::usage(&usage, usage_size)?;
        *instance.get()?.memory_usage.lock().unwrap_or_else(PoisonError::into_inner) = usage;
    }
}
