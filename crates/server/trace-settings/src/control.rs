//! Which requests are traced: the current settings, and sampling by them.
//!
//! A [`TraceStore`] decides where traces go, and in which form. A request is sampled once, by the face that received
//! it; while tracing is off that costs reading one flag.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use arc_swap::ArcSwap;
use nereid_backend_api::{Result, Trace, TraceLevel, TraceSink};

use crate::both::Both;
use crate::settings::{SpecifiedSettings, TraceMode, TraceSettings, TraceUpdate};

/// The trace that a client's request is part of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace's id, not all zeroes.
    pub trace_id: [u8; 16],
    /// The id of the span that the request was made in, not all zeroes.
    pub span_id: [u8; 8],
    /// The flags. The lowest is set if the client records its part.
    pub flags: u8,
    /// State of other tracing systems, passed on unchanged; may be empty.
    pub state: String,
}

/// Where traces go.
pub trait TraceStore: fmt::Debug + Send + Sync {
    /// Opens a stream for the traces of requests sampled under these settings. It is dropped when the settings have changed and
    /// its last trace is over.
    fn open(&self, settings: &TraceSettings) -> Arc<dyn TraceStream>;

    /// Stores what it has. What is traced after that is lost. It may take its time.
    fn close(&self);
}

/// Receives the traces of requests sampled under the same settings.
pub trait TraceStream: Send + Sync {
    /// Begins the trace of a request, perhaps as part of a `parent` that its client sent. With `last`, no further one follows
    /// unless the settings change, because the configured count is reached.
    ///
    /// The sampled trace receives events of the request until it is dropped.
    fn begin(&self, parent: Option<TraceParent>, last: bool) -> Arc<dyn TraceSink>;
}

/// The settings of the server and of its models as they are now.
pub struct TraceControl {
    initial: TraceSettings,
    store: Option<Arc<dyn TraceStore>>,
    /// Whether any of the settings traces anything, or a capture waits.
    on: AtomicBool,
    live: ArcSwap<Live>,
    specified: Mutex<AllSpecified>,
    /// By model. The lock is held while `on` changes.
    captures: Mutex<BTreeMap<String, Capture>>,
}

/// A capture waits for a request, whatever the settings.
struct Capture {
    sink: Arc<dyn TraceSink>,
    until: Instant,
}

#[derive(Clone, Debug, Default)]
struct AllSpecified {
    global: SpecifiedSettings,
    /// Only those that set something.
    models: BTreeMap<String, SpecifiedSettings>,
}

/// The settings that hold.
#[derive(Clone)]
struct Live {
    global: Arc<Setting>,
    /// The settings of models that have their own.
    models: BTreeMap<String, Arc<Setting>>,
}

/// Settings in force, and their counters.
struct Setting {
    settings: TraceSettings,
    drawn: Mutex<SamplerState>,
    stream: Option<Arc<dyn TraceStream>>,
}

struct SamplerState {
    /// The number of requests that took part.
    seen: u64,
    /// The number still to be traced; -1 for no limit.
    left: i32,
}

impl Live {
    fn of(&self, model: Option<&str>) -> &Arc<Setting> {
        model.and_then(|name| self.models.get(name)).unwrap_or(&self.global)
    }
}

impl Setting {
    fn new(settings: TraceSettings, store: Option<&Arc<dyn TraceStore>>) -> Arc<Self> {
        // Nothing is opened for settings that trace nothing. Only those from the start may be such with a level, and a
        // rate of 0 among them, which leaves the choice to clients.
        let wanted = !settings.level.is_off()
            && (settings.mode == TraceMode::OpenTelemetry || !settings.file.is_empty());
        let stream = store.filter(|_| wanted).map(|store| store.open(&settings));
        let drawn = Mutex::new(SamplerState { seen: 0, left: settings.count });
        Arc::new(Self { settings, drawn, stream })
    }

    fn drawn(&self) -> MutexGuard<'_, SamplerState> {
        self.drawn.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The settings, with what is left of their count.
    fn current(&self) -> TraceSettings {
        TraceSettings { count: self.drawn().left, ..self.settings.clone() }
    }

    /// The level and sink of one in this many requests, until enough were traced. A request with a parent is always traced.
    fn draw(&self, parent: Option<TraceParent>) -> Option<(TraceLevel, Arc<dyn TraceSink>)> {
        let stream = self.stream.as_ref()?;
        let rate = u64::from(self.settings.rate);
        let mut drawn = self.drawn();
        let mut hit = false;
        if rate > 0 && drawn.left != 0 {
            drawn.seen += 1;
            hit = drawn.seen.is_multiple_of(rate);
        }
        if hit && drawn.left > 0 {
            drawn.left -= 1;
        }
        if !hit && parent.is_none() {
            return None;
        }
        // While it is locked: the last one to be drawn is the last one to begin, too.
        let sink = stream.begin(parent, hit && drawn.left == 0);
        drop(drawn);
        Some((self.settings.level, sink))
    }
}

impl TraceControl {
    /// Begins with these settings for all models. Without a store nothing is traced.
    pub fn new(initial: TraceSettings, store: Option<Arc<dyn TraceStore>>) -> Self {
        let global = Setting::new(initial.clone(), store.as_ref());
        let on = AtomicBool::new(global.stream.is_some());
        let live = ArcSwap::from_pointee(Live { global, models: BTreeMap::new() });
        Self { initial, store, on, live, specified: Mutex::default(), captures: Mutex::default() }
    }

    fn captures(&self) -> MutexGuard<'_, BTreeMap<String, Capture>> {
        self.captures.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether any request may be traced, by the settings and these captures.
    fn set_on(&self, captures: &MutexGuard<'_, BTreeMap<String, Capture>>) {
        let live = self.live.load();
        let mut settings = live.models.values().chain([&live.global]);
        let on = !captures.is_empty() || settings.any(|setting| setting.stream.is_some());
        self.on.store(on, Ordering::Relaxed);
    }

    /// Traces the times of the next request of a client to a model, besides what the settings trace, unless none comes until
    /// then. A second capture of a model replaces the first.
    pub fn capture_next(&self, model: &str, sink: Arc<dyn TraceSink>, until: Instant) {
        let mut captures = self.captures();
        captures.insert(model.to_owned(), Capture { sink, until });
        self.set_on(&captures);
    }

    /// The sink of the capture that waits for a request to this model.
    fn take_capture(&self, model: &str) -> Option<Arc<dyn TraceSink>> {
        let mut captures = self.captures();
        if captures.is_empty() {
            return None;
        }
        let now = Instant::now();
        captures.retain(|_, capture| now < capture.until);
        let taken = captures.remove(model);
        self.set_on(&captures);
        taken.map(|capture| capture.sink)
    }

    /// Whether any request may be traced.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Decides whether a request to this model is traced. Calls `parent` only in modes in which clients decide, too.
    pub fn draw(&self, model: &str, parent: impl FnOnce() -> Option<TraceParent>) -> Option<Arc<Trace>> {
        if !self.is_on() {
            return None;
        }
        let live = self.live.load();
        let setting = live.of(Some(model));
        let parent = match setting.settings.mode {
            TraceMode::OpenTelemetry if setting.stream.is_some() => parent(),
            TraceMode::OpenTelemetry | TraceMode::Triton => None,
        };
        let times = TraceLevel { timestamps: true, tensors: false };
        let (level, sink) = match (setting.draw(parent), self.take_capture(model)) {
            (None, None) => return None,
            (Some(drawn), None) => drawn,
            (None, Some(capture)) => (times, capture),
            (Some((level, sink)), Some(capture)) => {
                (TraceLevel { timestamps: true, ..level }, Both::of(level, sink, capture))
            }
        };
        Some(Trace::new(level, 0, sink))
    }

    /// The settings for a model, or for all, with what is left of their count.
    pub fn settings(&self, model: Option<&str>) -> TraceSettings {
        self.live.load().of(model).current()
    }

    /// Changes the settings of a model or the general ones, restarts their sampling, and returns the result.
    ///
    /// # Errors
    /// `InvalidArg` if these settings, or those of a model that inherits them, cannot work. Nothing is changed then.
    pub fn update(&self, model: Option<&str>, update: &TraceUpdate) -> Result<TraceSettings> {
        // It is replaced as a whole, so a panic while it was locked leaves nothing half-done.
        let mut specified = self.specified.lock().unwrap_or_else(PoisonError::into_inner);
        let mut live = Live::clone(&self.live.load());
        let mut updated = specified.clone();
        let mut changed = BTreeMap::new();
        match model {
            None => {
                updated.global = with_remaining_count(updated.global, &live.global).updated(update);
                let global = updated.global.over(&self.initial);
                global.check("all models")?;
                for (name, own) in &mut updated.models {
                    *own = with_remaining_count(*own, live.of(Some(name)));
                    let settings = own.over(&global);
                    settings.check(&format!("model '{name}'"))?;
                    changed.insert(name.clone(), settings);
                }
                live.global = Setting::new(global, self.store.as_ref());
            }
            Some(name) => {
                let own = updated.models.remove(name).map(|own| with_remaining_count(own, live.of(model)));
                let own = own.unwrap_or_default().updated(update);
                live.models.remove(name);
                if own != SpecifiedSettings::default() {
                    let settings = own.over(&live.global.current());
                    settings.check(&format!("model '{name}'"))?;
                    updated.models.insert(name.to_owned(), own);
                    changed.insert(name.to_owned(), settings);
                }
            }
        }
        for (name, settings) in changed {
            live.models.insert(name, Setting::new(settings, self.store.as_ref()));
        }
        *specified = updated;
        let current = live.of(model).current();
        self.live.store(Arc::new(live));
        self.set_on(&self.captures());
        Ok(current)
    }

    /// Stores what was traced. Nothing is traced from then on. It may take its time.
    pub fn close(&self) {
        self.on.store(false, Ordering::Relaxed);
        if let Some(store) = &self.store {
            store.close();
        }
    }
}

/// The specified settings, with the rest of a specified count.
fn with_remaining_count(specified: SpecifiedSettings, live: &Setting) -> SpecifiedSettings {
    SpecifiedSettings { count: specified.count.map(|_| live.drawn().left), ..specified }
}

#[cfg(test)]
mod tests;
