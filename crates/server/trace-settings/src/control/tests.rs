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

/// Notes the names of reports.
#[derive(Clone, Debug, Default)]
struct Noting(Arc<Mutex<Vec<String>>>);

impl Noting {
    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl TraceSink for Noting {
    fn activity(&self, _: &Arc<Trace>, activity: Activity<'_>, _: Instant) {
        self.0.lock().unwrap().push(activity.name().to_owned());
    }
    fn tensor(&self, _: &Arc<Trace>, activity: TensorActivity, _: &Tensor) {
        self.0.lock().unwrap().push(activity.name().to_owned());
    }
    fn stamp(&self, _: &Trace, name: &'static str, _: Instant) {
        self.0.lock().unwrap().push(name.to_owned());
    }
    fn derived(self: Arc<Self>) -> Arc<dyn TraceSink> {
        self
    }
}

impl TraceStore for Noting {
    fn open(&self, _: &TraceSettings) -> Arc<dyn TraceStream> {
        Arc::new(self.clone())
    }
    fn close(&self) {}
}

impl TraceStream for Noting {
    fn begin(&self, _: Option<TraceParent>, _: bool) -> Arc<dyn TraceSink> {
        Arc::new(self.clone())
    }
}

fn soon() -> Instant {
    Instant::now() + std::time::Duration::from_secs(600)
}

#[test]
fn one_request_to_the_model_is_captured_though_nothing_else_is_traced() {
    let control = plain(TraceSettings::default());
    for _ in 0..2 {
        control.capture_next("m", Arc::new(Noting::default()), soon());
        assert!(control.is_on());
        assert_eq!(drawn(&control, "other", 2).len(), 0);
        assert_eq!(drawn(&control, "m", 3), [1]);
        assert!(!control.is_on());
    }
}

#[test]
fn a_capture_outlives_changes_of_the_settings_and_not_its_time() {
    let control = plain(TraceSettings::default());
    control.capture_next("m", Arc::new(Noting::default()), soon());
    control.update(None, &rate(2)).unwrap();
    assert_eq!(drawn(&control, "m", 2), [1]);
    control.capture_next("m", Arc::new(Noting::default()), Instant::now());
    assert_eq!(drawn(&control, "other", 1).len() + drawn(&control, "m", 2).len(), 0);
    assert!(!control.is_on());
}

#[test]
fn a_captured_request_reaches_the_store_too_at_the_level_of_its_settings() {
    let tensor = Tensor::new("T", nereid_backend_api::DataType::Bool, [1], vec![1]);
    for (timestamps, tensors) in [(true, false), (false, true), (true, true)] {
        let level = TraceLevel { timestamps, tensors };
        let (store, capture) = (Noting::default(), Noting::default());
        let settings = TraceSettings { level, rate: 2, ..with_file() };
        let control = TraceControl::new(settings, Some(Arc::new(store.clone())));
        for is_drawn in [false, true] {
            control.capture_next("m", Arc::new(capture.clone()), soon());
            let trace = control.draw("m", || None).unwrap();
            for trace in [Arc::clone(&trace), trace.derive()] {
                trace.report(Activity::RequestStart, Instant::now());
                trace.stamp("STAMP", Instant::now());
                trace.report_tensors(TensorActivity::QueueInput, std::slice::from_ref(&tensor));
            }
            assert_eq!(capture.taken(), ["REQUEST_START", "STAMP", "REQUEST_START", "STAMP"]);
            let mut expected = Vec::new();
            expected.extend(timestamps.then_some(["REQUEST_START", "STAMP"]).into_iter().flatten());
            expected.extend(tensors.then_some("TENSOR_QUEUE_INPUT"));
            expected = if is_drawn { expected.repeat(2) } else { Vec::new() };
            assert_eq!(store.taken(), expected, "{level:?}");
        }
    }
}
