//! Which traces go into which file, and in which form.

use std::fs;
use std::path::Path;

use nereid_backend_api::{DataType, RequestTrace, TraceLevel, TraceSubject};
use serde_json::{Value, json};

use super::*;

const ALL: TraceLevel = TraceLevel { timestamps: true, tensors: true };

fn settings(log_frequency: u32) -> TraceSettings {
    TraceSettings { level: ALL, log_frequency, ..TraceSettings::default() }
}

/// Traces one request with this id.
fn trace(stream: &Arc<dyn TraceStream>, id: &str, last: bool) {
    let mut request = RequestTrace::new(Trace::new(ALL, 0, stream.begin(None, last)));
    let subject = TraceSubject {
        model_name: "m".into(),
        model_version: 3,
        request_id: id.into(),
        ..TraceSubject::default()
    };
    request.begin(subject, Instant::now());
}

fn objects(path: &Path) -> Vec<Value> {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// The ids of the requests in a file.
fn ids(path: &Path) -> Vec<String> {
    let id = |object: &Value| object["request_id"].as_str().map(str::to_owned);
    objects(path).iter().filter_map(id).collect()
}

#[test]
fn trace_has_the_references_format() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    let files = TraceFiles::new(&path);
    let stream = files.open(&settings(0));
    let root = Trace::new(ALL, 0, stream.begin(None, false));
    let at = Instant::now();
    root.stamp("HTTP_RECV_START", at);
    let mut request = RequestTrace::new(Arc::clone(&root));
    let subject = |model: &str, id: &str| TraceSubject {
        model_name: model.into(),
        model_version: 3,
        request_id: id.into(),
        ..TraceSubject::default()
    };
    request.begin(subject("m", "say \"a\"\n"), at);
    let strings = b"\x02\0\0\0a\"\x01\0\0\0\n".to_vec();
    let tensor = Tensor::new("IN", DataType::Bytes, [1, 2], strings);
    root.report_tensors(TensorActivity::QueueInput, &[tensor]);
    let mut child = request.child();
    child.begin(subject("inner", ""), at);
    let (parent_id, child_id) = (root.id(), child.trace().id());
    root.report(Activity::Custom("MINE"), at);
    drop((child, request, root, stream));
    files.close();
    let ns = clock::monotonic(at);
    let mut objects = objects(&path);
    for object in &mut objects {
        if object["timestamps"][0]["name"] == "REQUEST_END" {
            object["timestamps"][0]["ns"] = json!("later");
        }
    }
    let stamp = |id: u64, name: &str| json!({"id": id, "timestamps": [{"name": name, "ns": ns}]});
    let end = |id: u64| json!({"id": id, "timestamps": [{"name": "REQUEST_END", "ns": "later"}]});
    let tensor = json!({"name": "IN", "data": "\"a\"\",\"\n\"", "shape": "1,2", "dtype": "BYTES"});
    let expected = [
        stamp(parent_id, "HTTP_RECV_START"),
        json!({"id": parent_id, "model_name": "m", "model_version": 3, "request_id": "say \"a\"\n"}),
        stamp(parent_id, "REQUEST_START"),
        json!({"id": parent_id, "activity": "TENSOR_QUEUE_INPUT", "tensor": tensor}),
        stamp(parent_id, "MINE"),
        end(parent_id),
        json!({"id": child_id, "model_name": "inner", "model_version": 3, "parent_id": parent_id}),
        stamp(child_id, "REQUEST_START"),
        end(child_id),
    ];
    assert_eq!(objects, expected);
}

#[test]
fn log_frequency_limits_traces_per_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    let files = TraceFiles::new(&path);
    let stream = files.open(&settings(2));
    ["a", "b", "c", "d", "e"].iter().for_each(|id| trace(&stream, id, false));
    drop(stream);
    files.close();
    assert!(!path.exists());
    let numbered = |number: u32| ids(&folder.path().join(format!("t.json.{number}")));
    assert_eq!([numbered(0), numbered(1), numbered(2)], [vec!["a", "b"], vec!["c", "d"], vec!["e"]]);
}

#[test]
fn reached_count_is_written_to_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    let files = TraceFiles::new(&path);
    let stream = files.open(&settings(0));
    let unfinished = Trace::new(ALL, 0, stream.begin(None, false));
    trace(&stream, "a", true);
    unfinished.stamp("LATE", Instant::now());
    drop(unfinished);
    let other = files.open(&settings(0));
    trace(&other, "b", false);
    trace(&other, "c", false);
    drop((stream, other));
    files.close();
    assert_eq!(ids(&folder.path().join("t.json.0")), ["a"]);
    assert_eq!(objects(&folder.path().join("t.json.0")).last().unwrap()["timestamps"][0]["name"], "LATE");
    assert_eq!(ids(&path), ["b", "c"]);
}

#[test]
fn streams_that_end_one_after_the_other_share_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    fs::write(&path, "of an earlier run").unwrap();
    let files = TraceFiles::new(&path);
    for id in ["a", "b"] {
        trace(&files.open(&settings(0)), id, false);
    }
    // A trace that is still open when the server ends is written, too.
    let open = files.open(&settings(0));
    trace(&open, "c", false);
    files.close();
    assert_eq!(ids(&path), ["a", "b", "c"]);
    trace(&open, "after the end", false);
    files.close();
    assert_eq!(ids(&path), ["a", "b", "c"]);
}

#[test]
fn large_buffers_are_written_early_and_once() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("t.json");
    let files = TraceFiles::new(&path);
    let (main, numbered) = (files.open(&settings(0)), files.open(&settings(3)));
    let long = "x".repeat(600_000);
    for name in ["1", "2", "3", "4"] {
        trace(&main, &format!("{name}{long}"), name == "4");
        trace(&numbered, &format!("{name}{long}"), false);
    }
    drop((main, numbered));
    files.close();
    let firsts = |path: &Path| ids(path).iter().map(|id| id[..1].to_owned()).collect::<String>();
    assert_eq!(firsts(&path), "1234");
    assert_eq!(firsts(&folder.path().join("t.json.0")), "123");
    assert_eq!(firsts(&folder.path().join("t.json.1")), "4");
}

#[test]
fn missing_folder_does_not_delay_shutdown() {
    let files = TraceFiles::new("/proc/none/t.json");
    let stream = files.open(&settings(1));
    trace(&stream, "a", false);
    files.close();
}
