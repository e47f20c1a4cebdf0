//! Errors of GPUs and their driver.

/// The reason why a GPU cannot be used, or an operation on it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The driver library is missing or is not the driver.
    #[error("cannot load NVIDIA's driver library '{library}': {reason}")]
    NotLoaded {
        /// The name or path searched.
        library: String,
        /// The system's message.
        reason: String,
    },
    /// A function of the driver failed.
    #[error("{call} failed with {name}: {text}")]
    Call {
        /// The function.
        call: &'static str,
        /// The driver's error code.
        code: i32,
        /// The driver's name for the code.
        name: String,
        /// The driver's description of the code.
        text: String,
    },
    /// The GPU does not exist.
    #[error("no GPU {device}: the driver reports {count}, numbered from 0")]
    NoDevice {
        /// The requested number.
        device: i64,
        /// The number of GPUs.
        count: usize,
    },
    /// The request exceeds the available memory.
    #[error("{requested} bytes requested from memory of {available} bytes")]
    TooLong {
        /// The requested bytes.
        requested: u64,
        /// Total bytes.
        available: u64,
    },
    /// The address is not within the memory.
    #[error("{length} bytes at {address:#x} are outside their allocation on GPU {device}")]
    Outside {
        /// The start address.
        address: u64,
        /// Length in bytes.
        length: usize,
        /// The GPU.
        device: i64,
    },
    /// The memory belongs to a GPU, but no driver is loaded.
    #[error("the memory of GPU {device} cannot be used: this server has no driver for it")]
    NoDriver {
        /// The GPU.
        device: i64,
    },
}
