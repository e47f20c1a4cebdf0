//! The machine's resources for models: GPUs, memory pools, and installed backends.

use std::sync::Arc;

use nereid_cuda::Pools;
use nereid_repository::ReadOptions;

use crate::backends::{self, BackendsConfig, InstalledBackends};
use crate::error::StartError;
use crate::gpus::{Gpus, GpusConfig};

/// Location of the backends, and the GPUs to use.
#[derive(Clone, Debug, Default)]
pub struct PlatformConfig {
    /// The backends.
    pub backends: BackendsConfig,
    /// The GPUs.
    pub gpus: GpusConfig,
}

/// The machine's resources.
pub struct Platform {
    /// The machine's GPUs.
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

    /// The options for reading model folders on this machine.
    pub fn reading(&self, options: ReadOptions) -> ReadOptions {
        ReadOptions { gpus: backends::gpus(&self.gpus.numbers, &self.backends.registry), ..options }
    }
}
