//! Reads the memory of models' processes while they serve: a model that grows counts more against the budget.
//!
//! Later growth of the server's own process cannot be attributed to models.

use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use nereid_core::Server;
use nereid_scheduling::timer::{Alarm, Ring, Timer};

use crate::rooms::Rooms;

/// The time between two readings.
const PERIOD: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(5) };

/// Reads the memory of processes now and then.
pub(crate) struct Growth {
    rooms: Arc<Rooms>,
    server: OnceLock<Weak<Server>>,
    alarm: OnceLock<Alarm>,
}

impl Growth {
    pub(crate) fn new(rooms: Arc<Rooms>, timer: &Timer) -> Arc<Self> {
        let growth = Arc::new(Self { rooms, server: OnceLock::new(), alarm: OnceLock::new() });
        let target = Arc::downgrade(&growth);
        let _ = growth.alarm.set(timer.alarm(target));
        growth
    }

    /// Reads from now on what the models of a server take.
    pub(crate) fn start(&self, server: &Arc<Server>) {
        if self.server.set(Arc::downgrade(server)).is_ok() {
            self.set_alarm();
        }
    }

    fn set_alarm(&self) {
        if let Some(alarm) = self.alarm.get() {
            alarm.set(Instant::now() + PERIOD);
        }
    }
}

impl Ring for Growth {
    fn ring(&self) {
        let Some(server) = self.server.get().and_then(Weak::upgrade) else { return };
        if let Some(name) = self.rooms.follow_growth(&server, Instant::now()) {
            match server.evict_model(&name) {
                Ok(names) => self.rooms.left(names),
                Err(error) => tracing::debug!("{error}"),
            }
        }
        self.set_alarm();
    }
}
