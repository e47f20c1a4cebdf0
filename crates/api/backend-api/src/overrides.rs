//! What a load request gives in place of what the repository has.

use std::path::PathBuf;

use bytes::Bytes;

/// Replaces parts of a model for one load.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    /// The configuration, as JSON.
    pub config: Option<String>,
    /// Files of the model's folder, by their paths in it. With any, only these count.
    pub files: Vec<(PathBuf, Bytes)>,
}

impl Overrides {
    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.config.is_none() && self.files.is_empty()
    }
}
