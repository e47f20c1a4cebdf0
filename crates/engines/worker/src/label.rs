//! By what name a process is known, in the log and in errors. A process may be started before the instance that takes it is known.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// A name that several threads read and one may change.
#[derive(Clone, Debug)]
pub(crate) struct Label(Arc<Mutex<Arc<str>>>);

impl Label {
    pub(crate) fn new(name: &str) -> Self {
        Self(Arc::new(Mutex::new(name.into())))
    }

    pub(crate) fn get(&self) -> Arc<str> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set(&self, name: &str) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = name.into();
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.get())
    }
}
