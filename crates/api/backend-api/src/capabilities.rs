//! What backends and their models can do, as data.

use crate::ReadinessReports;

/// What a backend can do, whichever model it loads. Everything is off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendCapabilities {
    /// Its models [complete](crate::Model::completed_config) configurations where they may. Without it, a configuration
    /// is either complete or invalid, and nothing has to be loaded to find out.
    pub completes_config: bool,
    /// Instances of its models can run on GPUs. A model whose configuration does not choose then runs on all GPUs of the
    /// machine.
    pub runs_on_gpus: bool,
    /// Its models run in processes of their own, and cannot harm the server's.
    pub runs_apart: bool,
}

/// What a loaded model can do. Everything is off by default. Read once, when the model is loaded, but for `readiness`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelCapabilities {
    /// Its instances may be created on several threads at once, which saves time where creating one takes long.
    pub creates_instances_in_parallel: bool,
    /// Its instances take inputs in device memory as they are. For those that do not, the server copies such inputs to
    /// host memory first.
    pub reads_device_memory: bool,
    /// How the server learns whether the model is ready. It may change while the model is loaded.
    pub readiness: ReadinessReports,
}
