//! Changes the number of a version's instances while it serves, as the server itself decides. The source is not read: the version
//! keeps its specification.

use std::sync::Arc;

use nereid_backend_api::{Error, Result};

use super::LifeCycle;
use crate::spec::ModelId;
use crate::table::VersionState;

impl LifeCycle {
    /// Serves a version with this number of instances. Existing ones stay as far as possible, and new ones are warmed up first.
    pub(super) fn resize(self: &Arc<Self>, id: &ModelId, version: u64, instances: usize) -> Result<()> {
        let table = self.table.load_full();
        let served = table.version(id, version).and_then(VersionState::model);
        let served =
            served.ok_or_else(|| Error::not_found(format!("'{id}' version {version} is not served")))?;
        let resized = served.resized(instances, &self.services)?;
        drop(table);
        self.replace(id, vec![(version, Some(Arc::new(resized)))]);
        Ok(())
    }
}
