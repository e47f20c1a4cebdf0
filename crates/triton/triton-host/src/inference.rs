//! An inner request under construction: the fields that a backend sets before it submits it.

pub(crate) mod callbacks;
pub(crate) mod properties;
pub(crate) mod tensors;

use std::ffi::c_char;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_backend_api::{Error, InferRequest, PeerModel, Result, block_on};
use nereid_cuda::Cuda;
use triton_sys::*;

use crate::allocator::Placement;
use crate::boundary::exports;
use crate::call::Canceller;
use crate::handle::Handle;
use crate::release::Release;

use callbacks::Callbacks;
use properties::{Levels, Properties};
use tensors::Tensors;

/// An inner request owned by its maker, who may send it again after its release.
pub(crate) struct InferenceRequest {
    fields: Mutex<Fields>,
    /// Copies to and from GPU memory.
    cuda: Option<Arc<Cuda>>,
}

/// The request's fields.
pub(crate) struct Fields {
    pub model_name: String,
    /// -1 leaves the choice to the server.
    pub model_version: i64,
    properties: Properties,
    tensors: Tensors,
    pub callbacks: Callbacks,
    /// Cancels the last inference of this request.
    pub canceller: Option<Canceller>,
}

impl InferenceRequest {
    fn new(model_name: String, model_version: i64, levels: Levels, cuda: Option<Arc<Cuda>>) -> Self {
        let fields = Mutex::new(Fields {
            model_name,
            model_version,
            properties: Properties::new(levels),
            tensors: Tensors::default(),
            callbacks: Callbacks::none(),
            canceller: None,
        });
        Self { fields, cuda }
    }

    /// The driver of the GPUs, if there is one.
    pub(crate) fn cuda(&self) -> Option<&Arc<Cuda>> {
        self.cuda.as_ref()
    }

    pub(crate) fn fields(&self) -> MutexGuard<'_, Fields> {
        // Each change is one assignment, insertion or removal.
        self.fields.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Converts C's version; -1 leaves the choice to the server.
pub(crate) fn version(version: i64) -> Result<Option<u64>> {
    match version {
        -1 => Ok(None),
        version => u64::try_from(version).map(Some).map_err(|_| {
            Error::invalid_arg(format!("{version} is not a version; -1 leaves the choice to the server"))
        }),
    }
}

impl Fields {
    /// The name and version of the requested model.
    ///
    /// # Errors
    /// `InvalidArg` if the version is not valid.
    pub(crate) fn model(&self) -> Result<(String, Option<u64>)> {
        Ok((self.model_name.clone(), version(self.model_version)?))
    }

    /// The request in the server's form, the placement of its outputs, and its release.
    pub(crate) fn build(
        &self,
        model: &dyn PeerModel,
        handle: Handle<InferenceRequest>,
        cuda: Option<&Arc<Cuda>>,
    ) -> Result<(InferRequest, Arc<Placement>, Arc<Release>)> {
        let release = self.callbacks.release(handle);
        let placement = self.callbacks.placement(&release, cuda)?;
        let raw = |contents| model.raw_input(contents);
        let (inputs, policy_contents) = self.tensors.inputs(&release, cuda, raw)?;
        let request = InferRequest {
            inputs,
            policy_contents,
            outputs: self.tensors.outputs(),
            allocator: Some(Arc::clone(&placement) as _),
            ..self.properties.to_request()
        };
        release.arm();
        Ok((request, placement, release))
    }
}

exports! {
    fn TRITONSERVER_InferenceRequestNew(
        inference_request: *mut *mut TRITONSERVER_InferenceRequest,
        server: *mut TRITONSERVER_Server,
        model_name: *const c_char,
        model_version: i64,
    ) {
        let name = model_name.read()?.into_owned();
        let server = server.get()?;
        // A model that is loaded on demand is loaded here.
        let model = block_on(server.peers()?.resolve(&name, version(model_version)?))?;
        let levels = Levels::of(model.config());
        let request = Arc::new(InferenceRequest::new(name, model_version, levels, server.cuda().cloned()));
        inference_request.give(request)?;
    }

    fn TRITONSERVER_InferenceRequestDelete(inference_request: *mut TRITONSERVER_InferenceRequest) {
        inference_request.delete()?;
    }

    fn TRITONSERVER_InferenceRequestCancel(inference_request: *mut TRITONSERVER_InferenceRequest) {
        // Cancel without a lock: the answer may arrive on this very thread.
        let canceller = inference_request.get()?.fields().canceller.clone();
        canceller.ok_or_else(|| Error::invalid_arg("the request was not sent"))?.cancel();
    }

    fn TRITONSERVER_InferenceRequestIsCancelled(
        inference_request: *mut TRITONSERVER_InferenceRequest,
        is_cancelled: *mut bool,
    ) {
        let request = inference_request.get()?;
        let fields = request.fields();
        is_cancelled.set(fields.canceller.as_ref().is_some_and(Canceller::is_cancelled))?;
    }
}
