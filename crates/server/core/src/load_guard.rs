//! Notifies sources of the fate of the files that a model is loaded from.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use nereid_backend_api::{Error, Result};

/// A source's reactions to the progress of a load. Each is called at most once, on a thread that may block, and
/// never with a lock held: first [`loaded`](Self::loaded) or [`failed`](Self::failed), after `loaded` also
/// [`unloading`](Self::unloading), and [`dropped`](Self::dropped) at the end in any case.
pub trait LoadHooks: Send + Sync {
    /// All versions to be served are loaded, and in the model table.
    fn loaded(&self) {}

    /// The load failed. For an ensemble, which may still be loaded later, the first outcome counts.
    fn failed(&self, _error: &Error) {}

    /// No version loaded from these files is in the model table any more. Requests in progress are still answered.
    fn unloading(&self) {}

    /// Nothing uses the files any more.
    fn dropped(&self) {}
}

/// Holds the files of a load, and reports what becomes of it. Every version that was loaded from the files has a clone;
/// when the last one goes, the files may go. The default guards nothing.
#[derive(Clone, Default)]
pub struct LoadGuard(Option<Arc<GuardState>>);

struct GuardState {
    hooks: Box<dyn LoadHooks>,
    /// How many versions loaded from the files are in the model table.
    served: AtomicUsize,
    reported: AtomicU8,
}

const OUTCOME: u8 = 1;
const LOADED: u8 = 2;
const UNLOADING: u8 = 4;

impl LoadGuard {
    /// Reports to these hooks.
    pub fn new(hooks: impl LoadHooks + 'static) -> Self {
        let (served, reported) = (AtomicUsize::new(0), AtomicU8::new(0));
        Self(Some(Arc::new(GuardState { hooks: Box::new(hooks), served, reported })))
    }

    /// How the load has ended.
    pub(crate) fn report(&self, outcome: &Result<()>) {
        let Some(guarded) = self.0.as_ref().filter(|guarded| guarded.is_first(OUTCOME)) else { return };
        match outcome {
            Ok(()) => {
                guarded.reported.fetch_or(LOADED, Ordering::AcqRel);
                guarded.hooks.loaded();
            }
            Err(error) => guarded.hooks.failed(error),
        }
    }

    /// A version loaded from the files goes into the model table.
    pub(crate) fn serve(&self) {
        if let Some(guarded) = &self.0 {
            guarded.served.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// One was taken out of it.
    pub(crate) fn withdraw(&self) {
        if let Some(guarded) = &self.0
            && guarded.served.fetch_sub(1, Ordering::AcqRel) == 1
        {
            guarded.unloading();
        }
    }
}

impl GuardState {
    fn is_first(&self, report: u8) -> bool {
        self.reported.fetch_or(report, Ordering::AcqRel) & report == 0
    }

    fn unloading(&self) {
        if self.reported.load(Ordering::Acquire) & LOADED != 0 && self.is_first(UNLOADING) {
            self.hooks.unloading();
        }
    }
}

impl Drop for GuardState {
    fn drop(&mut self) {
        // Not called yet if the load changed nothing or the server has ended.
        self.unloading();
        self.hooks.dropped();
    }
}

impl fmt::Debug for LoadGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoadGuard").field("guards", &self.0.is_some()).finish()
    }
}
