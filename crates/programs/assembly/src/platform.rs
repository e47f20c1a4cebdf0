//! What a machine offers to models: its GPUs, memory to borrow, and the installed backends.

use std::sync::Arc;

use nereid_cuda::Pools;
use nereid_repository::ReadOptions;

use crate::backends::{self, BackendsConfig, InstalledBackends};
use crate::error::StartError;
use crate::gpus::{Gpus, GpusConfig};

/// Where backends are, and which GPUs are used.
#[derive(Clone, Debug, Default)]
pub struct PlatformConfig {
    /// The backends.
    pub backends: BackendsConfig,
    /// The GPUs.
    pub gpus: GpusConfig,
}

/// What the machine offers.
pub struct Platform {
    /// Its GPUs.
    pub gpus: Gpus,
    /// The memory that backends may borrow.
    pub pools: Arc<Pools>,
    /// The installed backends.
    pub backends: InstalledBackends,
}

impl Platform {
    /// Finds the GPUs and registers the backends. `complete` is whether backends may complete configurations.
    ///
    /// # Errors
    /// The configured driver library cannot be loaded, or the backends cannot be set up.
    pub fn find(config: &PlatformConfig, complete: bool) -> Result<Self, StartError> {
        let gpus = Gpus::find(&config.gpus)?;
        let pools = Arc::new(gpus.pools(&config.gpus.pools));
        let backends = InstalledBackends::new(config, complete, &gpus, Arc::clone(&pools));
        Ok(Self { gpus, pools, backends: backends.map_err(StartError::Backends)? })
    }

    /// How model folders are read on this machine.
    pub fn reading(&self, options: ReadOptions) -> ReadOptions {
        ReadOptions { gpus: backends::gpus(&self.gpus.numbers, &self.backends.registry), ..options }
    }
}
