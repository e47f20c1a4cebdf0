//! The peers of a backend in a process of its own: only its metrics reach the server.

use std::sync::Arc;

use nereid_backend_api::{MetricRegistry, NoPeers, Overrides, PeerModel, Peers, Pending, Result};

/// A registry of metrics, whose values the host sends to the server.
pub(super) struct HostPeers(pub(super) MetricRegistry);

impl Peers for HostPeers {
    fn resolve(&self, model: &str, version: Option<u64>) -> Pending<Result<Arc<dyn PeerModel>>> {
        NoPeers.resolve(model, version)
    }

    fn load(&self, model: &str, overrides: Overrides) -> Pending<Result<()>> {
        NoPeers.load(model, overrides)
    }

    fn unload(&self, model: &str, dependents: bool) -> Pending<Result<()>> {
        NoPeers.unload(model, dependents)
    }

    fn ready(&self) -> Pending<Result<bool>> {
        NoPeers.ready()
    }

    fn model_ready(&self, model: &str, version: Option<u64>) -> Pending<Result<()>> {
        NoPeers.model_ready(model, version)
    }

    fn model(&self, model: &str, version: Option<u64>) -> Result<Arc<dyn PeerModel>> {
        NoPeers.model(model, version)
    }

    fn metrics(&self) -> Result<MetricRegistry> {
        Ok(self.0.clone())
    }
}
