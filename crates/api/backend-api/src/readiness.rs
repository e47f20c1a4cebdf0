//! How the server learns whether a loaded model is ready.

use std::fmt;
use std::sync::Arc;

/// Whether a model reports its readiness, and how the server learns of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadinessReports {
    /// No reports: the model counts as ready, and is never polled.
    #[default]
    Never,
    /// [`Model::ready`](crate::Model::ready) reports it, and the model announces each change.
    Announced,
    /// [`Model::ready`](crate::Model::ready) reports it, without announcements: the server polls it while a client
    /// watches.
    WhenAsked,
}

/// Announces to the server that a model's readiness has changed.
#[derive(Clone)]
pub struct ReadinessAnnouncer(Arc<dyn Fn() + Send + Sync>);

impl ReadinessAnnouncer {
    /// An announcer that calls `changed`, which must not block.
    pub fn new(changed: impl Fn() + Send + Sync + 'static) -> Self {
        Self(Arc::new(changed))
    }

    /// Announces that [`Model::ready`](crate::Model::ready) has a new result. Any thread may call this.
    pub fn changed(&self) {
        (self.0)();
    }
}

impl fmt::Debug for ReadinessAnnouncer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadinessAnnouncer").finish_non_exhaustive()
    }
}
