//! The KServe documents: what the server says of itself and of its models.
//!
//! They are built here from the server, once. Their names and order are those of the protocol's JSON, in which HTTP and the
//! C interface write them as they are; gRPC copies them into its messages.

mod index;
mod metadata;
mod statistics;

pub use index::{IndexEntry, blocking_repository_index, repository_index};
pub use metadata::{ModelMetadata, ServerMetadata, TensorMetadata};
pub use statistics::{
    BatchStatistics, Durations, InferenceStatistics, MemoryUsage, ModelStatistics, ResponseStatistics,
    Statistics,
};
