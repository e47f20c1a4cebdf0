//! Errors of GPUs and their driver.

/// Why a GPU cannot be used, or an operation on it failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// The driver library is missing or is something else.
    #[error("cannot load NVIDIA's driver library '{library}': {reason}")]
    NotLoaded {
        /// The name or path that was searched.
        library: String,
        /// What the system says.
        reason: String,
    },
    /// A function of the driver failed.
    #[error("{call} failed with {name}: {text}")]
    Call {
        /// Which.
        call: &'static str,
        /// The driver's number for what went wrong.
        code: i32,
        /// The driver's name for it.
        name: String,
        /// The driver's words for it.
        text: String,
    },
    /// A GPU was named that is not there.
    #[error("no GPU {device}: the driver reports {count}, numbered from 0")]
    NoDevice {
        /// The number that was requested.
        device: i64,
        /// How many there are.
        count: usize,
    },
    /// The request exceeds the available memory.
    #[error("{asked} bytes requested from memory of {available} bytes")]
    TooLong {
        /// Bytes asked for.
        asked: u64,
        /// Total bytes.
        available: u64,
    },
    /// An address of no memory that this is about.
    #[error("{length} bytes at {address:#x} are outside their allocation on GPU {device}")]
    Outside {
        /// Where it begins.
        address: u64,
        /// In bytes.
        length: usize,
        /// The GPU.
        device: i64,
    },
    /// Memory is said to be a GPU's, but there is no driver.
    #[error("the memory of GPU {device} cannot be used: this server has no driver for it")]
    NoDriver {
        /// The GPU.
        device: i64,
    },
}
