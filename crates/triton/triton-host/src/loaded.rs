//! Models and instances of backends that are libraries.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use nereid_backend_api::{
    Batch, CustomBatching, Instance, InstanceContext, MemoryUsage, Model, ModelCapabilities, ModelConfig,
    ModelContext, ReadinessAnnouncer, ReadinessReports, Result, SharedInputs,
};
use nereid_model_config::proto::ModelInstanceGroup;
use triton_sys::*;

use crate::batching::{Batcher, Batching};
use crate::handle::{Handle, LentHandle};
use crate::health::{Facts, Health};
use crate::instance::InstanceObject;
use crate::loader::LoadedBackend;
use crate::model::ModelObject;
use crate::request::RequestObject;
use crate::server::ServerObject;
use crate::thrown::call;

/// An initialized model. Its instances share it.
pub(crate) struct LoadedModel {
    shared: Arc<Shared>,
    object: Arc<ModelObject>,
    /// The live instances, and some dropped ones.
    instances: Mutex<Vec<Weak<LiveInstance>>>,
    completed: Option<ModelConfig>,
    batcher: Option<Arc<Batcher>>,
    facts: Arc<Facts>,
}

/// The kind and number of an instance's device.
type Device = (TRITONSERVER_InstanceGroupKind, i32);

struct Shared {
    // Dropped in this order: the handle after the last call.
    lent: LentHandle<ModelObject>,
    backend: Arc<LoadedBackend>,
    /// For backends that share a thread per device: the lock of each device.
    devices: Mutex<HashMap<Device, Arc<Mutex<()>>>>,
    name: String,
}

impl LoadedModel {
    pub(crate) fn load(
        backend: Arc<LoadedBackend>,
        context: &ModelContext,
        server: Handle<ServerObject>,
        batcher: Option<&Path>,
    ) -> Result<Self> {
        let object = Arc::new(ModelObject::new(context, server, backend.handle()));
        let lent = LentHandle::new(Arc::clone(&object))?;
        // Finalized from here on, even if initialization fails, as in the reference.
        let shared =
            Arc::new(Shared { lent, backend, devices: Mutex::default(), name: context.name.clone() });
        if let Some(initialize) = shared.backend.entries.model_initialize {
            // SAFETY: a handle of the function's kind, alive until the model is finalized.
            let act = || unsafe { initialize(shared.handle().as_c()) };
            call("TRITONBACKEND_ModelInitialize", format_args!("model '{}'", shared.name), act)?;
        }
        let batcher = batcher.map(|path| Batcher::load(path, Arc::clone(&shared) as _, shared.handle()));
        let batcher = batcher.transpose()?.flatten();
        let completed = object.completed();
        let outputs = &completed.as_ref().unwrap_or(&context.config).output;
        let facts = Arc::new(Health::of(outputs.iter().map(|output| output.name.clone()).collect()));
        Ok(Self {
            shared,
            object,
            instances: Mutex::default(),
            completed,
            facts,
            batcher: batcher.map(Arc::new),
        })
    }
}

impl LoadedModel {
    /// The live instances.
    fn instances(&self) -> Vec<Arc<LiveInstance>> {
        let instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        instances.iter().filter_map(Weak::upgrade).collect()
    }
}

impl Model for LoadedModel {
    fn completed_config(&self) -> Option<&ModelConfig> {
        self.completed.as_ref()
    }

    fn create_instance(&self, context: InstanceContext) -> Result<Box<dyn Instance>> {
        let model = Arc::clone(&self.shared);
        let object = Arc::new(InstanceObject::new(&context, model.handle())?);
        let lent = LentHandle::new(Arc::clone(&object))?;
        let turn = model.backend.object.shares_threads().then(|| model.device_lock(object.device()));
        // Finalized from here on, even if initialization fails, as in the reference.
        let live = Arc::new(LiveInstance { lent, object, model });
        if let Some(initialize) = live.model.backend.entries.instance_initialize {
            // SAFETY: a handle of the function's kind, alive until the instance is finalized.
            let act = || unsafe { initialize(live.lent.handle().as_c()) };
            let whose = format_args!("model '{}'", live.model.name);
            call("TRITONBACKEND_ModelInstanceInitialize", whose, act)?;
        }
        let mut instances = self.instances.lock().unwrap_or_else(PoisonError::into_inner);
        instances.retain(|instance| instance.strong_count() > 0);
        instances.push(Arc::downgrade(&live));
        Ok(Box::new(LoadedInstance { live, turn, facts: Arc::clone(&self.facts) }))
    }

    fn capabilities(&self) -> ModelCapabilities {
        ModelCapabilities {
            creates_instances_in_parallel: self.shared.backend.attributes.parallel(),
            // Triton's interface passes the memory type of each buffer.
            reads_device_memory: true,
            // Floating-point tensors, usually the large ones, stay in place, as in the reference.
            shared_inputs: SharedInputs::Numbers,
            readiness: if self.shared.backend.entries.instance_ready.is_some() {
                ReadinessReports::WhenAsked
            } else if self.facts.health.has_failed() {
                ReadinessReports::Announced
            } else {
                ReadinessReports::Never
            },
        }
    }

    fn announce_readiness(&self, announcer: ReadinessAnnouncer) {
        self.facts.health.set_announcer(announcer);
    }

    fn memory_usage(&self) -> Vec<MemoryUsage> {
        let mut sum: Vec<MemoryUsage> = Vec::new();
        let instances = self.instances();
        let of_instances = instances.iter().flat_map(|instance| instance.object.memory_usage());
        for part in self.object.memory_usage().into_iter().chain(of_instances) {
            match sum.iter_mut().find(|known| known.memory == part.memory) {
                Some(known) => known.byte_size = known.byte_size.saturating_add(part.byte_size),
                None => sum.push(part),
            }
        }
        sum
    }

    fn ready(&self) -> Result<()> {
        let Some(ready) = self.shared.backend.entries.instance_ready else {
            return self.facts.health.check();
        };
        self.instances().into_iter().try_for_each(|instance| {
            // SAFETY: a handle of the function's kind, alive as long as `instance` is held.
            let act = || unsafe { ready(instance.lent.handle().as_c()) };
            call("TRITONBACKEND_ModelInstanceReady", format_args!("model '{}'", instance.model.name), act)
        })
    }

    fn instances_changed(&self, groups: &[ModelInstanceGroup]) {
        self.object.set_instance_groups(groups);
    }

    fn preferred_groups(&self) -> Vec<ModelInstanceGroup> {
        self.shared.backend.preferred_groups()
    }

    fn custom_batching(&self) -> Option<Arc<dyn CustomBatching>> {
        let batcher = self.batcher.as_ref()?;
        Some(Arc::new(Batching(Arc::clone(batcher))))
    }
}

impl Shared {
    fn handle(&self) -> Handle<ModelObject> {
        self.lent.handle()
    }

    fn device_lock(&self, device: Device) -> Arc<Mutex<()>> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(devices.entry(device).or_default())
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let Some(finalize) = self.backend.entries.model_finalize else { return };
        // SAFETY: the handle is alive; no instance of the model is left, since each holds it.
        let act = || unsafe { finalize(self.handle().as_c()) };
        let whose = format_args!("model '{}'", self.name);
        if let Err(error) = call("TRITONBACKEND_ModelFinalize", whose, act) {
            tracing::warn!("model '{}' failed to finalize: {error}", self.name);
        }
    }
}

/// An instance until it is finalized. Its owner may call its backend.
struct LiveInstance {
    // Dropped in this order: the handle after the last call.
    lent: LentHandle<InstanceObject>,
    object: Arc<InstanceObject>,
    model: Arc<Shared>,
}

struct LoadedInstance {
    live: Arc<LiveInstance>,
    /// Locked to execute, if instances share a thread.
    turn: Option<Arc<Mutex<()>>>,
    /// Facts shared by the model's requests.
    facts: Arc<Facts>,
}

impl Instance for LoadedInstance {
    fn execute(&mut self, batch: Batch) {
        self.live.object.set_monitor(batch.monitor());
        let mut requests = Vec::new();
        for request in batch.into_requests() {
            request.responder().await_report();
            match RequestObject::give(request, Arc::clone(&self.facts)) {
                Ok(handle) => requests.push(handle),
                // Dropping the request has answered it.
                Err(error) => {
                    tracing::error!("lost a request to model '{}': {error}", self.live.model.name)
                }
            }
        }
        let mut pointers: Vec<_> = requests.iter().map(|request| request.as_c()).collect();
        let Ok(count) = u32::try_from(pointers.len()) else { return };
        if count == 0 {
            return;
        }
        let turn = self.turn.as_ref().map(|turn| turn.lock().unwrap_or_else(PoisonError::into_inner));
        let execute = self.live.model.backend.entries.execute;
        // SAFETY: handles of the kinds that the function takes; the list lives until it returns. The backend owns the
        // requests from here on, unless it returns an error.
        let act = || unsafe { execute(self.live.lent.handle().as_c(), pointers.as_mut_ptr(), count) };
        let whose = format_args!("model '{}'", self.live.model.name);
        let outcome = call("TRITONBACKEND_ModelInstanceExecute", whose, act);
        drop(turn);
        if let Err(error) = outcome {
            self.facts.health.note(&error);
            for request in requests {
                // A request that the backend released despite its error is answered already.
                if let Ok(request) = request.take() {
                    request.reply().finish_with(Err(error.clone()));
                }
            }
        }
    }
}

impl Drop for LiveInstance {
    fn drop(&mut self) {
        let Some(finalize) = self.model.backend.entries.instance_finalize else { return };
        // SAFETY: the handle is alive, and nothing else is called: that would hold the instance.
        let act = || unsafe { finalize(self.lent.handle().as_c()) };
        let whose = format_args!("model '{}'", self.model.name);
        if let Err(error) = call("TRITONBACKEND_ModelInstanceFinalize", whose, act) {
            tracing::warn!("an instance of model '{}' failed to finalize: {error}", self.model.name);
        }
    }
}
