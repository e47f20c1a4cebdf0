//! A trace reports the properties of its level, and its end exactly once.

use nereid_model_config::DataType;

use super::*;

/// Records the reports.
#[derive(Default)]
struct Heard(Mutex<Vec<String>>);

impl Heard {
    fn add(&self, what: String) {
        self.0.lock().unwrap().push(what);
    }

    fn all(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl TraceSink for Heard {
    fn activity(&self, trace: &Arc<Trace>, activity: Activity<'_>, _: Instant) {
        self.add(format!("{} {}", if trace.parent() == 0 { "root" } else { "child" }, activity.name()));
    }

    fn tensor(&self, _: &Arc<Trace>, activity: TensorActivity, tensor: &Tensor) {
        self.add(format!("{} {}", activity.name(), tensor.name));
    }

    fn stamp(&self, _: &Trace, name: &'static str, _: Instant) {
        self.add(name.into());
    }

    fn ended(&self, _: &Arc<Trace>) {
        self.add("ended".into());
    }

    fn derived(self: Arc<Self>) -> Arc<dyn TraceSink> {
        self
    }
}

fn tell(trace: &Arc<Trace>) {
    let tensor = Tensor::new("IN", DataType::Int8, [1], vec![1]);
    trace.report(Activity::QueueStart, Instant::now());
    trace.report_tensors(TensorActivity::QueueInput, &[tensor]);
    trace.stamp("SENT", Instant::now());
}

#[test]
fn only_activities_of_the_level_are_recorded() {
    for (timestamps, tensors, expected) in [
        (true, false, &["root QUEUE_START", "SENT"][..]),
        (false, true, &["TENSOR_QUEUE_INPUT IN"]),
        (false, false, &[]),
    ] {
        let heard = Arc::new(Heard::default());
        tell(&Trace::new(TraceLevel { timestamps, tensors }, 0, heard.clone()));
        assert_eq!(heard.all(), expected);
    }
}

#[test]
fn request_ends_once_and_trace_ends_with_its_last_share() {
    let heard = Arc::new(Heard::default());
    let level = TraceLevel { timestamps: true, tensors: false };
    let mut request = RequestTrace::new(Trace::new(level, 0, heard.clone()));
    let subject = TraceSubject {
        model_name: "m".into(),
        model_version: 2,
        request_id: "7".into(),
        ..TraceSubject::default()
    };
    request.begin(subject.clone(), Instant::now());
    let share = request.share();
    drop(request);
    assert_eq!(heard.all(), ["root REQUEST_START", "root REQUEST_END"]);
    assert_eq!(share.trace().subject(), Some(&subject));
    drop(share);
    assert_eq!(heard.all(), ["ended"]);
    // A request that the server refused neither began nor ended, but its trace ends.
    drop(RequestTrace::new(Trace::new(level, 0, heard.clone())));
    assert_eq!(heard.all(), ["ended"]);
}

#[test]
fn child_trace_reports_to_the_same_sink() {
    let heard = Arc::new(Heard::default());
    let level = TraceLevel { timestamps: true, tensors: false };
    let parent = RequestTrace::new(Trace::new(level, 0, heard.clone()));
    let child = parent.child();
    assert_eq!(child.trace().parent(), parent.trace().id());
    assert_ne!(child.trace().id(), parent.trace().id());
    child.trace().report(Activity::Custom("MINE"), Instant::now());
    assert_eq!(heard.all(), ["child MINE"]);
}

#[test]
fn levels_have_names() {
    let level = |timestamps, tensors| TraceLevel { timestamps, tensors };
    for (names, expected) in [
        (&["OFF"][..], Some(level(false, false))),
        (&["TIMESTAMPS"], Some(level(true, false))),
        (&["TENSORS", "other"], Some(level(false, true))),
        (&["TIMESTAMPS", "TENSORS"], Some(level(true, true))),
        (&["other"], None),
        (&[], None),
    ] {
        assert_eq!(TraceLevel::named(names).unwrap(), expected, "{names:?}");
    }
    assert!(TraceLevel::named(&["OFF", "TENSORS"]).is_err());
    assert_eq!(level(false, false).names(), ["OFF"]);
    assert_eq!(level(true, true).names(), ["TIMESTAMPS", "TENSORS"]);
}
