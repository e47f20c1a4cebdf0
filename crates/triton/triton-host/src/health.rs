//! Tracks a model's health if its backend cannot report it.
//!
//! Releases of NVIDIA's Python backend without `TRITONBACKEND_ModelInstanceReady` report a Python process that has
//! ended only through the errors of its requests, and never restart it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use nereid_backend_api::{Error, ReadinessAnnouncer, Result};

/// Facts that all requests of a model share: its output names and health.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub outputs: Vec<String>,
    pub health: Health,
}

/// Whether a model's instances can serve, inferred from their backend's answers.
#[derive(Debug, Default)]
pub(crate) struct Health {
    has_failed: AtomicBool,
    /// The reason why they cannot.
    failure: Mutex<Option<Error>>,
    announcer: OnceLock<ReadinessAnnouncer>,
}

impl Health {
    pub(crate) fn of(outputs: Vec<String>) -> Facts {
        Facts { outputs, health: Self::default() }
    }

    /// Inspects an error that the backend returned for a request.
    pub(crate) fn note(&self, error: &Error) {
        if is_dead_process_error(error.message()) {
            *self.failure.lock().unwrap_or_else(PoisonError::into_inner) = Some(error.clone());
            if !self.has_failed.swap(true, Ordering::AcqRel)
                && let Some(announcer) = self.announcer.get()
            {
                announcer.changed();
            }
        }
    }

    /// Sets the announcer of failures. All announcers do the same, so the first one stays.
    pub(crate) fn set_announcer(&self, announcer: ReadinessAnnouncer) {
        let _ = self.announcer.set(announcer);
    }

    /// Whether a failure is known.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// # Errors
    /// The reason why an instance cannot serve. It is permanent: the backend does not restart the process.
    pub(crate) fn check(&self) -> Result<()> {
        let failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.clone().map_or(Ok(()), Err)
    }
}

/// Whether this is the Python backend's message for an instance whose process has ended.
fn is_dead_process_error(message: &str) -> bool {
    message.find("Stub process '").is_some_and(|start| message[start..].contains("' is not healthy"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[test]
    fn only_dead_process_errors_mark_a_model_unhealthy() {
        let dead = "Stub process 'die_0_0' is not healthy.";
        let within = format!("Failed to process the request(s) for model instance 'm': {dead}");
        for (message, fails) in [
            (dead, true),
            (within.as_str(), true),
            ("Stub process '' is not healthy", true),
            ("Failed to process the request(s): the patient is not healthy", false),
            ("' is not healthy: Stub process '", false),
            ("Stub process 'm' was started", false),
            ("", false),
        ] {
            let (health, announced) = (Health::default(), Arc::new(AtomicUsize::new(0)));
            let counter = Arc::clone(&announced);
            health.set_announcer(ReadinessAnnouncer::new(move || {
                counter.fetch_add(1, Ordering::Relaxed);
            }));
            assert!(health.check().is_ok() && !health.has_failed());
            health.note(&Error::internal(message.to_owned()));
            assert_eq!((health.has_failed(), health.check().is_err()), (fails, fails), "{message}");
            health.note(&Error::internal("another error"));
            assert_eq!(health.has_failed(), fails);
            health.note(&Error::internal(message.to_owned()));
            assert_eq!(announced.load(Ordering::Relaxed), usize::from(fails), "{message}");
        }
    }
}
