//! Evicts models that have had no requests for some time.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use nereid_core::Server;
use nereid_scheduling::timer::{Alarm, Ring, Timer};

use crate::rooms::Rooms;

/// The time between two searches for idle models.
pub(crate) const IDLE_CHECK: Duration =
    if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(1) };

/// Looks for idle models now and then.
pub(crate) struct Idleness {
    rooms: Arc<Rooms>,
    server: OnceLock<Weak<Server>>,
    alarm: OnceLock<Alarm>,
    /// Whether there is a time limit for any model.
    is_on: AtomicBool,
}

impl Idleness {
    pub(crate) fn new(rooms: Arc<Rooms>, timer: &Timer) -> Arc<Self> {
        let (server, alarm) = (OnceLock::new(), OnceLock::new());
        let idleness = Arc::new(Self { rooms, server, alarm, is_on: AtomicBool::new(false) });
        let target = Arc::downgrade(&idleness);
        let _ = idleness.alarm.set(timer.alarm(target));
        idleness
    }

    pub(crate) fn attach(&self, server: &Arc<Server>) {
        let _ = self.server.set(Arc::downgrade(server));
    }

    /// Looks for idle models from now on.
    pub(crate) fn start(&self) {
        if !self.is_on.swap(true, Ordering::Relaxed) {
            self.set_alarm();
        }
    }

    fn set_alarm(&self) {
        if let Some(alarm) = self.alarm.get() {
            alarm.set(Instant::now() + IDLE_CHECK);
        }
    }
}

impl Ring for Idleness {
    fn ring(&self) {
        // Before the models of the server, and after its end, there is nothing to unload.
        if let Some(server) = self.server.get().and_then(Weak::upgrade) {
            for name in self.rooms.idle(&server, Instant::now()) {
                match server.evict_model(&name) {
                    Ok(names) => {
                        names.iter().for_each(|name| tracing::info!("'{name}' leaves the memory: it is idle"))
                    }
                    Err(error) => tracing::debug!("{error}"),
                }
            }
        }
        self.set_alarm();
    }
}
