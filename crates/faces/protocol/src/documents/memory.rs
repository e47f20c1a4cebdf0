//! The memory of a model in the index and in the console.

use std::time::{Duration, UNIX_EPOCH};

use nereid_core::{GpuMemory, ModelMemory};
use serde::Serialize;

/// The memory of a version, in bytes. Absent fields are omitted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MemoryDocument {
    /// Measured in the server's process.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server: Option<u64>,
    /// Measured in processes that the server started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub processes: Option<u64>,
    /// The part of the memory budget that the version takes, or would take if it were loaded.
    pub budget: u64,
    /// The origin of `budget`: `declared`, `measured`, `recorded` (in an earlier run of the server) or `files`.
    pub basis: &'static str,
    /// The time of the measurement in milliseconds since the Unix epoch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured_at: Option<u64>,
    /// Memory of GPUs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub gpus: Vec<GpuMemoryDocument>,
}

/// The memory of a GPU that a version takes, or would take.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct GpuMemoryDocument {
    /// The number of the GPU.
    pub gpu: i32,
    /// Reported by the backend, or else measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub measured: Option<u64>,
    /// The part of the GPU's memory budget, in bytes.
    pub budget: u64,
}

impl From<ModelMemory> for MemoryDocument {
    fn from(ModelMemory { measured, budget, basis, gpus }: ModelMemory) -> Self {
        let millis = |age: Duration| u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        Self {
            server: measured.map(|measured| measured.server),
            processes: measured.map(|measured| measured.processes),
            budget,
            basis: basis.name(),
            measured_at: measured.map(|measured| measured.at.duration_since(UNIX_EPOCH).map_or(0, millis)),
            gpus: gpus.into_iter().map(GpuMemoryDocument::from).collect(),
        }
    }
}

impl From<GpuMemory> for GpuMemoryDocument {
    fn from(GpuMemory { gpu, measured, budget }: GpuMemory) -> Self {
        Self { gpu, measured, budget }
    }
}

#[cfg(test)]
mod tests {
    use nereid_core::{MeasuredMemory, MemoryBasis};

    use super::*;

    #[test]
    fn what_is_unknown_is_omitted() {
        let estimated =
            ModelMemory { measured: None, budget: 7, basis: MemoryBasis::Files, gpus: Vec::new() };
        let at = UNIX_EPOCH + Duration::from_millis(1500);
        let measured = MeasuredMemory { server: 3, processes: 4, at };
        for (memory, expected) in [
            (estimated.clone(), r#"{"budget":7,"basis":"files"}"#),
            (
                ModelMemory {
                    measured: Some(measured),
                    basis: MemoryBasis::Recorded,
                    gpus: vec![
                        GpuMemory { gpu: 1, measured: None, budget: 9 },
                        GpuMemory { gpu: 2, measured: Some(7), budget: 8 },
                    ],
                    ..estimated
                },
                r#"{"server":3,"processes":4,"budget":7,"basis":"recorded","measured_at":1500,"gpus":[{"gpu":1,"budget":9},{"gpu":2,"measured":7,"budget":8}]}"#,
            ),
        ] {
            assert_eq!(serde_json::to_string(&MemoryDocument::from(memory)).unwrap(), expected);
        }
    }
}
