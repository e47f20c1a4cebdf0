//! The KServe documents that describe the server and its models.
//!
//! This module builds them from the server, for all protocols. Names and order are those of the protocol's JSON: HTTP
//! and the C interface serialise them unchanged; gRPC copies them into its messages.

mod index;
mod memory;
mod metadata;
mod release;
mod statistics;

pub use index::{
    IndexEntry, IndexEntryWithMemory, blocking_repository_index, repository_index,
    repository_index_with_memory,
};
pub use memory::{GpuMemoryDocument, MemoryDocument};
pub use metadata::{ModelMetadata, ServerMetadata, TensorMetadata};
pub use release::{DifferenceDocument, ReleaseDocument, ReleasedVersionDocument};
pub use statistics::{
    BatchStatistics, Durations, InferenceStatistics, MemoryUsage, ModelStatistics, ResponseStatistics,
    Statistics,
};
