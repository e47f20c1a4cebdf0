//! How the server learns whether a loaded model is ready.

use std::fmt;
use std::sync::Arc;

/// Whether a model reports its readiness, and how changes of it become known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadinessReports {
    /// It reports nothing: it counts as ready and is not asked.
    #[default]
    Never,
    /// [`Model::ready`](crate::Model::ready) says, and the model announces each change of the answer.
    Announced,
    /// [`Model::ready`](crate::Model::ready) says, and that is all: the server polls it while somebody watches.
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

    /// [`Model::ready`](crate::Model::ready) answers differently from now on. Any thread may call this.
    pub fn changed(&self) {
        (self.0)();
    }
}

impl fmt::Debug for ReadinessAnnouncer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadinessAnnouncer").finish_non_exhaustive()
    }
}
