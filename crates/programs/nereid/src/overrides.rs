//! Parts of a model that a program replaces when it loads the model.

use std::path::PathBuf;

use bytes::Bytes;
use nereid_core::backend_api::{Error, Overrides, Result};
use nereid_core::model_config::{parse_text, to_json};

/// A configuration and files that replace those in the repository, until the model is unloaded or its files in the repository
/// change and it is loaded again.
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct ModelOverrides(Overrides);

impl ModelOverrides {
    /// Replaces nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Replaces the configuration by one in the text format of `config.pbtxt`.
    ///
    /// # Errors
    /// The first error of syntax, with its line and column.
    pub fn config(mut self, text: &str) -> Result<Self> {
        let config = parse_text(text).map_err(|error| {
            Error::invalid_arg(format!("the configuration, {}: {}", error.place(), error.message()))
        })?;
        self.0.config = Some(to_json(&config));
        Ok(self)
    }

    /// Replaces the configuration by one in JSON, in the format of Triton's load requests.
    pub fn config_json(mut self, json: impl Into<String>) -> Self {
        self.0.config = Some(json.into());
        self
    }

    /// Adds a file with its path in the model's folder, such as `1/model.onnx`. Any file replaces all files of the repository, and
    /// requires a configuration.
    pub fn file(mut self, path: impl Into<PathBuf>, contents: impl Into<Bytes>) -> Self {
        self.0.files.push((path.into(), contents.into()));
        self
    }
}

impl From<ModelOverrides> for Overrides {
    fn from(ModelOverrides(overrides): ModelOverrides) -> Self {
        overrides
    }
}
