//! Overrides of a load request, which replace parts of the model in the repository.

use std::path::PathBuf;

use bytes::Bytes;

/// Replaces parts of a model for one load.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The configuration, as JSON.
    pub config: Option<String>,
    /// Files of the model's folder, by their relative paths. If any are present, the repository's files are ignored.
    pub files: Vec<(PathBuf, Bytes)>,
}

impl Overrides {
    /// Whether nothing is overridden.
    pub fn is_empty(&self) -> bool {
        self.config.is_none() && self.files.is_empty()
    }
}
