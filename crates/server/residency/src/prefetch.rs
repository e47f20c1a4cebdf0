//! Loads models by their schedules, before their requests.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use nereid_backend_api::Result;
use nereid_core::{ModelControl, ModelTable, ScopedName, Server, VersionState};
use nereid_scheduling::timer::{Alarm, Ring};

use crate::manager::Waiting;
use crate::rooms::Rooms;
use crate::schedule::Schedule;
use crate::timetable::Timetable;

/// The time between two looks at the clock, which may be set or run on while the machine sleeps.
const CLOCK_CHECK: Duration = if cfg!(test) { Duration::from_millis(20) } else { Duration::from_secs(1) };

/// The pause where only a moment has to pass: the clock is looked at again.
const AT_ONCE: Duration = Duration::ZERO;

/// The time after a failed load until the next attempt.
const RETRY_PAUSE: Duration = Duration::from_secs(60);

/// The wall clock.
pub(crate) type Clock = Box<dyn Fn() -> Timestamp + Send + Sync>;

/// The schedules of all models, by the wall clock.
pub(crate) struct Schedules {
    timetable: Mutex<Timetable>,
    clock: Clock,
}

impl Schedules {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { timetable: Mutex::default(), clock }
    }

    fn timetable(&self) -> MutexGuard<'_, Timetable> {
        self.timetable.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the schedule of a model keeps it in memory now.
    pub(crate) fn keeps(&self, name: &str) -> bool {
        self.timetable().keeps(name, (self.clock)())
    }

    /// When a model is due next.
    #[cfg(test)]
    pub(crate) fn due_at(&self, name: &str) -> Option<Timestamp> {
        self.timetable().due_at(name)
    }

    /// When a model is loaded next.
    pub(crate) fn next(&self, name: &str) -> Option<String> {
        self.timetable().next(name, (self.clock)())
    }
}

/// Loads models that are due.
pub(crate) struct Prefetch {
    schedules: Arc<Schedules>,
    rooms: Arc<Rooms>,
    waiting: Arc<Waiting>,
    server: OnceLock<Weak<Server>>,
    alarm: OnceLock<Alarm>,
    /// Whether any model has had a schedule.
    is_on: AtomicBool,
}

impl Prefetch {
    pub(crate) fn new(schedules: Arc<Schedules>, rooms: Arc<Rooms>, waiting: Arc<Waiting>) -> Self {
        let (server, alarm) = (OnceLock::new(), OnceLock::new());
        Self { schedules, rooms, waiting, server, alarm, is_on: AtomicBool::new(false) }
    }

    /// The alarm that rings this.
    pub(crate) fn set_alarm(&self, alarm: Alarm) {
        let _ = self.alarm.set(alarm);
    }

    pub(crate) fn attach(&self, server: &Arc<Server>) {
        let _ = self.server.set(Arc::downgrade(server));
    }

    /// The configuration of a model was read.
    pub(crate) fn set(&self, name: &str, schedule: Option<Schedule>) {
        if schedule.is_none() && !self.is_on.load(Ordering::Relaxed) {
            return;
        }
        let is_set = schedule.is_some();
        let mut timetable = self.schedules.timetable();
        let has_changed = timetable.set(name, schedule, (self.schedules.clock)());
        drop(timetable);
        if is_set && has_changed {
            let next = self.schedules.next(name).unwrap_or_default();
            tracing::info!("'{name}' is loaded by its schedule, next at {next}");
        }
        if is_set && !self.is_on.swap(true, Ordering::Relaxed) {
            self.wind();
        }
    }

    fn wind(&self) {
        if let Some(alarm) = self.alarm.get() {
            alarm.set(Instant::now() + CLOCK_CHECK);
        }
    }

    fn load(self: &Arc<Self>, server: &Server, name: String) {
        let (all, now) = (ScopedName::everywhere(&name), Instant::now());
        let has_failed = self.waiting.loads().is_active(all);
        match wanted(&server.models(), all, server.options().model_control, has_failed) {
            Wanted::Yes => {}
            Wanted::No => return,
            Wanted::Unknown => return self.try_again(&name, AT_ONCE),
        }
        if server.is_stopping() {
            return;
        }
        if !self.waiting.loads().schedule(all, now) {
            return self.try_again(&name, AT_ONCE);
        }
        tracing::info!("loading '{name}' by its schedule");
        self.rooms.schedule(&name);
        let this = Arc::downgrade(self);
        let loaded = name.clone();
        server.load_on_demand(all, move |outcome| {
            if let Some(this) = this.upgrade() {
                this.loaded(&loaded, &outcome);
            }
        });
    }

    fn loaded(&self, name: &str, outcome: &Result<()>) {
        let (all, had_no_room) = (ScopedName::everywhere(name), self.rooms.unschedule(name));
        if had_no_room {
            // A request may make the room that its schedule did not.
            self.waiting.loads().give_up(all);
        } else {
            self.waiting.loads().ended(all, Instant::now(), outcome);
        }
        if let Err(error) = outcome {
            tracing::warn!("'{name}' was not loaded by its schedule: {error}");
            self.try_again(name, RETRY_PAUSE);
        }
    }

    fn try_again(&self, name: &str, pause: Duration) {
        self.schedules.timetable().retry(name, (self.schedules.clock)(), pause);
    }
}

/// Whether a schedule loads a model.
enum Wanted {
    Yes,
    /// In memory, or unloaded by a client.
    No,
    /// Not known yet, or removed.
    Unknown,
}

/// `has_failed`: whether a load on demand failed, so that another one may be tried.
fn wanted(models: &ModelTable, name: ScopedName<'_>, control: ModelControl, has_failed: bool) -> Wanted {
    let mut states = models.states_of(name).peekable();
    if states.peek().is_none() && control != ModelControl::OnDemand {
        return Wanted::Unknown;
    }
    let is_on_demand = control == ModelControl::OnDemand;
    let wanted = states.map(|state| match state {
        VersionState::Evicted => Wanted::Yes,
        VersionState::Unloaded if is_on_demand => Wanted::Yes,
        VersionState::Unavailable(_) if has_failed => Wanted::Yes,
        VersionState::Ready(_) | VersionState::Unloaded | VersionState::Unavailable(_) => Wanted::No,
        VersionState::Loading { .. } | VersionState::Unloading { .. } => Wanted::Unknown,
    });
    let first = if is_on_demand { Wanted::Yes } else { Wanted::Unknown };
    wanted.fold(first, |all, one| match (all, one) {
        (Wanted::No, _) | (_, Wanted::No) => Wanted::No,
        (Wanted::Yes, _) | (_, Wanted::Yes) => Wanted::Yes,
        (Wanted::Unknown, Wanted::Unknown) => Wanted::Unknown,
    })
}

/// Rings [`Prefetch`], which its own loads refer to.
pub(crate) struct Prefetching(pub Arc<Prefetch>);

impl Ring for Prefetching {
    fn ring(&self) {
        let this = &self.0;
        let due = this.schedules.timetable().due((this.schedules.clock)());
        // Before the models of the server, and after its end, there is nothing to load.
        if let Some(server) = this.server.get().and_then(Weak::upgrade) {
            due.into_iter().for_each(|name| this.load(&server, name));
        }
        this.wind();
    }
}

impl fmt::Debug for Schedules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.timetable().fmt(f)
    }
}
