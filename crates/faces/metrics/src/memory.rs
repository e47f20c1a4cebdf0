//! The memory of versions, as far as the server knows it.

use nereid_core::ModelId;

use crate::text::{Labels, Text};

const MEMORY: &str = "nereid_model_memory_bytes";

/// The names of all families here.
pub(crate) const NAMES: [&str; 1] = [MEMORY];

/// Memory of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionMemory {
    /// The model.
    pub id: ModelId,
    /// The version.
    pub version: u64,
    /// Whose memory it is, or which limit it counts against.
    pub kind: &'static str,
    /// The GPU whose memory it is; `None` for the machine's.
    pub gpu: Option<i32>,
    /// Bytes.
    pub bytes: u64,
}

pub(crate) fn write(text: &mut Text, versions: &[VersionMemory]) {
    if versions.is_empty() {
        return;
    }
    text.family(MEMORY, "gauge", "Memory of a model, measured when it was loaded, in bytes");
    for VersionMemory { id, version, kind, gpu, bytes } in versions {
        let labels = Labels::default();
        let labels = if id.namespace.is_empty() { labels } else { labels.and("namespace", &id.namespace) };
        let labels = labels.and("model", &id.name).and("version", &version.to_string()).and("kind", kind);
        let labels = gpu.map_or(labels.clone(), |gpu| labels.and("gpu", &gpu.to_string()));
        text.sample(MEMORY, "", &labels, *bytes);
    }
}
