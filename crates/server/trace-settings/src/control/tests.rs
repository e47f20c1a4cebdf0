//! Which settings apply, and which requests they sample.

use std::sync::atomic::AtomicUsize;
use std::time::Instant;

use nereid_backend_api::{Activity, Tensor, TensorActivity, TraceLevel};

use super::*;
use crate::settings::Change;

/// Counts the open streams, and the traces that they began.
#[derive(Debug, Default)]
struct Counting {
    open: Arc<AtomicUsize>,
    begun: Arc<Mutex<Vec<(bool, bool)>>>,
}

struct Stream(Arc<AtomicUsize>, Arc<Mutex<Vec<(bool, bool)>>>);

struct Deaf;

impl TraceStore for Counting {
    fn open(&self, _: &TraceSettings) -> Arc<dyn TraceStream> {
        self.open.fetch_add(1, Ordering::Relaxed);
        Arc::new(Stream(Arc::clone(&self.open), Arc::clone(&self.begun)))
    }

    fn close(&self) {}
}

impl TraceStream for Stream {
    fn begin(&self, parent: Option<TraceParent>, last: bool) -> Arc<dyn TraceSink> {
        self.1.lock().unwrap().push((parent.is_some(), last));
        Arc::new(Deaf)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl TraceSink for Deaf {
    fn activity(&self, _: &Arc<Trace>, _: Activity<'_>, _: Instant) {}
    fn tensor(&self, _: &Arc<Trace>, _: TensorActivity, _: &Tensor) {}
    fn derived(self: Arc<Self>) -> Arc<dyn TraceSink> {
        self
    }
}

const ON: TraceLevel = TraceLevel { timestamps: true, tensors: false };

fn plain(settings: TraceSettings) -> TraceControl {
    TraceControl::new(settings, None)
}

fn with_file() -> TraceSettings {
    TraceSettings { file: "f".into(), ..TraceSettings::default() }
}

fn counting(settings: TraceSettings) -> (TraceControl, Arc<Counting>) {
    let store = Arc::new(Counting::default());
    (TraceControl::new(settings, Some(store.clone())), store)
}

fn rate(rate: u32) -> TraceUpdate {
    TraceUpdate { rate: Change::Set(rate), ..TraceUpdate::default() }
}

fn count(count: i32) -> TraceUpdate {
    TraceUpdate { count: Change::Set(count), ..TraceUpdate::default() }
}

const TIMESTAMPS: TraceUpdate = TraceUpdate {
    level: Change::Set(ON),
    rate: Change::Keep,
    count: Change::Keep,
    log_frequency: Change::Keep,
};

/// Which of this many requests to the model are traced.
fn drawn(control: &TraceControl, model: &str, requests: usize) -> Vec<usize> {
    (1..=requests).filter(|_| control.draw(model, || None).is_some()).collect()
}

#[test]
fn a_model_follows_the_general_settings_in_what_it_does_not_set() {
    let control = plain(TraceSettings::default());
    control.update(None, &rate(77)).unwrap();
    assert_eq!(control.settings(Some("m")).rate, 77);
    assert_eq!(control.update(Some("m"), &count(5)).unwrap().rate, 77);
    control.update(None, &rate(78)).unwrap();
    let settings = control.settings(Some("m"));
    assert_eq!((settings.rate, settings.count, control.settings(None).count), (78, 5, -1));
}

#[test]
fn cleared_trace_setting_follows_the_default_again() {
    let control = plain(TraceSettings { rate: 10, ..TraceSettings::default() });
    control.update(None, &rate(77)).unwrap();
    control.update(Some("m"), &rate(3)).unwrap();
    let clear = TraceUpdate { rate: Change::Clear, ..TraceUpdate::default() };
    assert_eq!(control.update(Some("m"), &clear).unwrap().rate, 77);
    assert!(control.live.load().models.is_empty());
    assert_eq!(control.update(None, &clear).unwrap().rate, 10);
}

#[test]
fn settings_that_cannot_trace_are_refused_unless_tracing_is_off() {
    let control = plain(TraceSettings::default());
    assert!(control.update(None, &TIMESTAMPS).unwrap_err().message().contains("no trace file"));
    control.update(None, &rate(0)).unwrap();
    let control = plain(with_file());
    control.update(None, &TIMESTAMPS).unwrap();
    assert!(control.update(None, &rate(0)).is_err());
    assert!(control.update(Some("m"), &count(0)).is_err());
    assert_eq!(control.settings(None), control.settings(Some("m")));
    assert_eq!(control.settings(None).rate, 1000);
}

#[test]
fn a_collector_takes_no_file() {
    let control = plain(TraceSettings { mode: TraceMode::OpenTelemetry, ..TraceSettings::default() });
    let settings = control.update(Some("m"), &TIMESTAMPS).unwrap();
    assert_eq!((settings.mode.name(), settings.file.as_str()), ("opentelemetry", ""));
    assert_eq!(TraceMode::named("OpenTelemetry"), Some(TraceMode::OpenTelemetry));
    assert_eq!(TraceMode::named("zipkin"), None);
}

#[test]
fn a_general_update_is_refused_that_a_model_cannot_follow() {
    let control = plain(with_file());
    control.update(Some("m"), &TIMESTAMPS).unwrap();
    assert!(control.update(None, &rate(0)).unwrap_err().message().contains("'m'"));
    assert_eq!(control.settings(None).rate, 1000);
}

#[test]
fn one_in_so_many_requests_is_drawn_until_enough_were() {
    let (control, store) = counting(TraceSettings { level: ON, rate: 3, count: 2, ..with_file() });
    assert_eq!(drawn(&control, "m", 12), [3, 6]);
    assert_eq!(control.settings(None).count, 0);
    assert_eq!(*store.begun.lock().unwrap(), [(false, false), (false, true)]);
    // A new count starts over, and the rest of it is recorded.
    control.update(None, &count(5)).unwrap();
    assert_eq!(drawn(&control, "m", 7), [3, 6]);
    assert_eq!(control.settings(None).count, 3);
    // A change to another setting does not restore a used count.
    assert_eq!(control.update(None, &rate(1)).unwrap().count, 3);
    assert_eq!(drawn(&control, "m", 5), [1, 2, 3]);
}

#[test]
fn a_count_that_is_used_up_must_be_set_before_tracing_goes_on() {
    let (control, _) = counting(TraceSettings { level: ON, rate: 1, ..with_file() });
    control.update(None, &count(1)).unwrap();
    assert_eq!(drawn(&control, "m", 3), [1]);
    assert!(control.update(None, &rate(2)).unwrap_err().message().contains("trace_count"));
    let clear = TraceUpdate { count: Change::Clear, ..rate(2) };
    assert_eq!(control.update(None, &clear).unwrap().count, -1);
    assert_eq!(drawn(&control, "m", 4), [2, 4]);
}

#[test]
fn a_model_with_settings_of_its_own_is_drawn_by_them_alone() {
    let (control, _) = counting(TraceSettings { rate: 2, ..with_file() });
    assert!(!control.is_on());
    control.update(Some("own"), &TIMESTAMPS).unwrap();
    assert!(control.is_on());
    assert_eq!(drawn(&control, "other", 4).len(), 0);
    assert_eq!(drawn(&control, "own", 4), [2, 4]);
    let off = TraceUpdate { level: Change::Set(TraceLevel::default()), ..TraceUpdate::default() };
    control.update(Some("own"), &off).unwrap();
    assert!(!control.is_on());
    assert_eq!(drawn(&control, "own", 4).len(), 0);
}

#[test]
fn a_stream_ends_with_its_settings_and_the_last_of_its_traces() {
    let (control, store) = counting(TraceSettings { level: ON, rate: 1, ..with_file() });
    let open = || store.open.load(Ordering::Relaxed);
    assert_eq!(open(), 1);
    control.update(None, &rate(2)).unwrap();
    assert_eq!(open(), 1);
    control.update(Some("m"), &rate(5)).unwrap();
    assert_eq!(open(), 2);
    let clear = TraceUpdate { rate: Change::Clear, ..TraceUpdate::default() };
    control.update(Some("m"), &clear).unwrap();
    assert_eq!(open(), 1);
}

#[test]
fn a_request_with_a_parent_is_traced_whatever_the_rate() {
    let parent = || Some(TraceParent { trace_id: [1; 16], span_id: [2; 8], flags: 1, state: String::new() });
    let settings =
        TraceSettings { level: ON, rate: 0, mode: TraceMode::OpenTelemetry, ..TraceSettings::default() };
    let (control, store) = counting(settings);
    assert!(control.draw("m", || None).is_none());
    assert!(control.draw("m", parent).is_some());
    assert_eq!(*store.begun.lock().unwrap(), [(true, false)]);
    // In the other mode, clients cannot decide.
    let (control, _) = counting(TraceSettings { level: ON, rate: 2, ..with_file() });
    assert!(control.draw("m", parent).is_none());
}

#[test]
fn settings_from_the_start_that_cannot_trace_do_not() {
    let (control, store) = counting(TraceSettings { level: ON, rate: 1, ..TraceSettings::default() });
    assert!(!control.is_on());
    assert_eq!(store.open.load(Ordering::Relaxed), 0);
    let (control, _) = counting(TraceSettings { level: ON, rate: 1, count: 0, ..with_file() });
    assert_eq!(drawn(&control, "m", 3).len(), 0);
}
