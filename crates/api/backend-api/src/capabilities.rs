//! Capabilities of backends and models, as data.

use nereid_model_config::DataType;

use crate::ReadinessReports;

/// Capabilities of a backend, independent of the model. Everything is off by default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackendCapabilities {
    /// The backend [completes](crate::Model::completed_config) configurations if allowed. Without it, a configuration
    /// is either complete or invalid, which can be checked without loading the model.
    pub completes_config: bool,
    /// Instances can run on GPUs. A model whose configuration does not choose runs on all GPUs of the machine.
    pub runs_on_gpus: bool,
    /// Models run in separate processes, and cannot harm the server's process.
    pub is_isolated: bool,
}

/// The inputs that a model takes in memory that other processes may write at any time, such as a client's shared memory.
///
/// Code that checks a value and reads it again later must not see two values: an index that was within its bounds when it
/// was checked, for example. Libraries that sort numbers rely on them, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SharedInputs {
    /// None: the server copies them. For libraries that may read an input several times.
    #[default]
    Copied,
    /// Floating-point numbers. The server copies integers and BOOL, which may be indices, lengths or conditions.
    Numbers,
    /// All: each byte is read once, or no value of it is relied upon.
    InPlace,
}

impl SharedInputs {
    /// Whether an input of this type may stay where it is.
    pub fn takes(self, data_type: DataType) -> bool {
        match self {
            Self::Copied => false,
            Self::Numbers => {
                matches!(data_type, DataType::Fp16 | DataType::Bf16 | DataType::Fp32 | DataType::Fp64)
            }
            Self::InPlace => true,
        }
    }
}

/// What a loaded model can do. Everything is off by default. Read once, when the model is loaded, but for `readiness`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ModelCapabilities {
    /// Instances may be created on several threads concurrently, which saves time if creation is slow.
    pub creates_instances_in_parallel: bool,
    /// Instances accept inputs in device memory. For other models, the server first copies such inputs to host
    /// memory.
    pub reads_device_memory: bool,
    /// Inputs that instances take in memory that other processes may write. The server copies all others first.
    pub shared_inputs: SharedInputs,
    /// How the server learns whether the model is ready. It may change while the model is loaded.
    pub readiness: ReadinessReports,
}
