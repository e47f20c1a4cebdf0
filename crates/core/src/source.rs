//! Where models come from, as the server sees it.

use std::collections::BTreeMap;
use std::path::PathBuf;

use bytes::Bytes;
use nereid_backend_api::{Error, Result};

use crate::model::ModelSpec;

/// A repository, or several. What implements it knows files or buckets; the server does not.
pub trait ModelSource: Send + Sync {
    /// The names of the models that are there now, ascending.
    ///
    /// # Errors
    /// It cannot be looked at now.
    fn names(&self) -> Result<Vec<String>>;

    /// Reads a model.
    ///
    /// # Errors
    /// `NotFound` if it is not there; otherwise what is wrong with its description.
    fn read(&self, name: &str, overrides: &Overrides) -> Result<ModelSpec>;

    /// Tells whether a model has changed, without reading more than it must.
    ///
    /// # Errors
    /// `NotFound` if it is not there.
    fn fingerprint(&self, name: &str) -> Result<Fingerprint>;
}

/// What a load request gives in place of what is in the repository.
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

/// Equal for a model that has not changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fingerprint {
    /// Of its configuration.
    pub config: u64,
    /// Of its labels and whatever else concerns all versions.
    pub whole: u64,
    /// Of each version's files.
    pub versions: BTreeMap<u64, u64>,
}

/// Models that are given, and never change.
impl ModelSource for BTreeMap<String, Result<ModelSpec>> {
    fn names(&self) -> Result<Vec<String>> {
        Ok(self.keys().cloned().collect())
    }

    fn read(&self, name: &str, _: &Overrides) -> Result<ModelSpec> {
        self.get(name).cloned().unwrap_or_else(|| Err(unknown(name)))
    }

    fn fingerprint(&self, name: &str) -> Result<Fingerprint> {
        self.get(name).map(|_| Fingerprint::default()).ok_or_else(|| unknown(name))
    }
}

fn unknown(name: &str) -> Error {
    Error::not_found(format!("there is no model '{name}'"))
}
