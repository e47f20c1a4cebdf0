//! The backend `caffe2`. The ONNX engine runs its models.

use std::path::Path;
use std::sync::Arc;

use nereid_backend_api::{Backend, BackendSettings, Result};
use nereid_caffe2::NetDefBackend;

use crate::onnx_engine;

/// The backend `caffe2` on the engine that the backend `onnxruntime` uses with these settings. `directory` is where
/// backends are installed.
///
/// # Errors
/// The engine cannot be opened.
pub(crate) fn open(settings: &BackendSettings, directory: &Path) -> Result<Arc<dyn Backend>> {
    let engine = onnx_engine::open(settings, directory)?;
    let runs_on_gpus = engine.capabilities().runs_on_gpus;
    let load = Box::new(move |context, onnx, origin| engine.load_onnx(&context, onnx, origin));
    Ok(Arc::new(NetDefBackend::new(load, runs_on_gpus)))
}
