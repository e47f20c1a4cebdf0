//! The versions that releases choose.

use std::sync::Arc;

use nereid_backend_api::{CorrelationId, InferRequest, Result};
use smallvec::SmallVec;

use super::ModelTable;
use crate::model::Model;
use crate::release::Release;
use crate::spec::ModelId;

/// As many versions take part in a release without an allocation for each request.
const FEW: usize = 4;

impl ModelTable {
    /// The version that executes an inner request to a model: the requested one, or the choice of its release.
    ///
    /// # Errors
    /// See [`find`](Self::find).
    pub fn find_for(&self, id: &ModelId, version: Option<u64>, request: &InferRequest) -> Result<Arc<Model>> {
        let model = self.find_exactly(id, version)?;
        Ok(match (version, model.release()) {
            (None, Some(release)) => self.choose(model, &**release, None, request),
            _ => Arc::clone(model),
        })
    }

    /// Whether clients may continue a sequence in a model: in the requested version, or in any version of a release.
    pub fn continues_sequence(&self, id: &ModelId, version: Option<u64>, sequence: &CorrelationId) -> bool {
        let Ok(model) = self.find_exactly(id, version) else { return false };
        match (version, model.release()) {
            (None, Some(_)) => self.ready_of(&id.name).any(|it| it.id() == id && it.has_sequence(sequence)),
            _ => model.has_sequence(sequence),
        }
    }

    /// The version of a release that executes a request. `described` executes it if no version is served any more.
    pub(crate) fn choose(
        &self,
        described: &Arc<Model>,
        release: &dyn Release,
        key: Option<u64>,
        request: &InferRequest,
    ) -> Arc<Model> {
        let served = self.get(described.id()).into_iter().flat_map(|entry| entry.ready());
        let served: SmallVec<[&Arc<Model>; FEW]> = served.collect();
        let id = &request.correlation_id;
        if *id != CorrelationId::None
            && !request.sequence.start
            && let Some(holder) = served.iter().find(|model| model.has_sequence(id))
        {
            return Arc::clone(holder);
        }
        let versions: SmallVec<[u64; FEW]> = served.iter().map(|model| model.version()).collect();
        if versions.is_empty() {
            return Arc::clone(described);
        }
        let chosen = release.choose(request, key, &versions);
        let chosen = served.into_iter().find(|model| model.version() == chosen);
        Arc::clone(chosen.unwrap_or(described))
    }
}
