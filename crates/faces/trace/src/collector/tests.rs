//! Spans as received by a collector.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread::{self, JoinHandle};

use nereid_backend_api::{RequestTrace, Trace, TraceLevel, TraceSubject};
use prost::Message;

use super::messages::{ExportTraceServiceRequest, ResourceSpans};
use super::*;

/// The head of a request, in small letters, and its body.
type Received = (String, Vec<u8>);

/// Reads one request over HTTP, and answers it; without a status, closes the connection.
fn answer(mut stream: TcpStream, status: &str) -> Received {
    let mut read = Vec::new();
    let head = loop {
        let mut piece = [0; 4096];
        let count = stream.read(&mut piece).unwrap();
        assert!(count > 0, "the request ended early");
        read.extend_from_slice(&piece[..count]);
        if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end + 4;
        }
    };
    let text = String::from_utf8(read[..head].to_vec()).unwrap().to_lowercase();
    let length = text.lines().find_map(|line| line.strip_prefix("content-length: ")).unwrap();
    let mut body = read.split_off(head);
    let received = body.len();
    body.resize(length.trim().parse().unwrap(), 0);
    stream.read_exact(&mut body[received..]).unwrap();
    if !status.is_empty() {
        write!(stream, "HTTP/1.1 {status}\r\ncontent-length: 0\r\n\r\n").unwrap();
    }
    (text, body)
}

/// A collector that accepts a number of messages.
fn collector(messages: usize) -> (String, JoinHandle<Vec<Received>>) {
    answering(vec!["200 OK"; messages])
}

/// A collector that answers its messages with these statuses.
fn answering(statuses: Vec<&'static str>) -> (String, JoinHandle<Vec<Received>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/v1/traces", listener.local_addr().unwrap());
    let take =
        move || statuses.into_iter().map(|status| answer(listener.accept().unwrap().0, status)).collect();
    (url, thread::spawn(take))
}

fn trace(stream: &Arc<dyn TraceStream>, id: &str) {
    let level = TraceLevel { timestamps: true, tensors: false };
    let mut request = RequestTrace::new(Trace::new(level, 0, stream.begin(None, false)));
    let subject = TraceSubject {
        model_name: "m".into(),
        model_version: 1,
        request_id: id.into(),
        ..TraceSubject::default()
    };
    request.begin(subject, std::time::Instant::now());
}

fn spans(body: &[u8]) -> ResourceSpans {
    let mut message = ExportTraceServiceRequest::decode(body).unwrap();
    assert_eq!(message.resource_spans.len(), 1);
    message.resource_spans.remove(0)
}

#[test]
fn spans_arrive_in_batches_with_the_servers_attributes() {
    let (url, received) = collector(2);
    let mut options = CollectorOptions { url, max_export_batch_size: 3, ..CollectorOptions::default() };
    options.resource.push(("service.name".into(), "mine".into()));
    options.resource.push(("zone".into(), "b".into()));
    let collector = Collector::new(&options).unwrap();
    let stream = collector.open(&TraceSettings::default());
    trace(&stream, "1");
    trace(&stream, "2");
    collector.close();
    let received = received.join().unwrap();
    let (head, body) = &received[0];
    assert!(head.starts_with("post /v1/traces http/1.1\r\n"), "{head}");
    assert!(head.contains("content-type: application/x-protobuf"), "{head}");
    let first = spans(body);
    let attributes = first.resource.unwrap().attributes;
    let of = |name: &str| attributes.iter().filter(|it| it.key == name).collect::<Vec<_>>();
    assert_eq!(of("service.name"), [&KeyValue::text("service.name", "mine")]);
    assert_eq!(of("zone"), [&KeyValue::text("zone", "b")]);
    let scope = &first.scope_spans[0];
    assert_eq!(scope.scope.as_ref().unwrap().name, "triton-server");
    let names = |body: &[u8]| {
        let spans = spans(body).scope_spans.remove(0).spans;
        spans.into_iter().map(|span| span.name).collect::<Vec<_>>()
    };
    assert_eq!(names(&received[0].1), ["m", "InferRequest", "m"]);
    assert_eq!(names(&received[1].1), ["InferRequest"]);
}

#[test]
fn fewer_spans_than_a_batch_are_sent_after_the_delay() {
    let (url, received) = collector(1);
    let delay = Duration::from_millis(20);
    let options = CollectorOptions { url, schedule_delay: delay, ..CollectorOptions::default() };
    let collector = Collector::new(&options).unwrap();
    trace(&collector.open(&TraceSettings::default()), "1");
    // It arrives although the collector is not closed.
    assert_eq!(received.join().unwrap().len(), 1);
    collector.close();
}

#[test]
fn unavailable_collector_does_not_delay_shutdown() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let refusing = thread::spawn(move || answer(listener.accept().unwrap().0, "503 Service Unavailable"));
    let collector =
        Collector::new(&CollectorOptions { url: url.clone(), ..CollectorOptions::default() }).unwrap();
    trace(&collector.open(&TraceSettings::default()), "1");
    collector.close();
    refusing.join().unwrap();
    // The port is free now, so connections are refused.
    let collector = Collector::new(&CollectorOptions { url, ..CollectorOptions::default() }).unwrap();
    trace(&collector.open(&TraceSettings::default()), "1");
    collector.close();
    trace(&collector.open(&TraceSettings::default()), "after the end");
}

/// The bodies that a collector receives which answers with these statuses, while two requests are traced.
fn sent(statuses: Vec<&'static str>, limit: Duration) -> Vec<Vec<u8>> {
    let (url, received) = answering(statuses);
    // Each request is two spans.
    let options = CollectorOptions { url, max_export_batch_size: 2, ..CollectorOptions::default() };
    let retry = RetryRules { first: Duration::from_millis(1), longest: Duration::from_millis(2), limit };
    let collector = Collector::with_retries(&options, retry).unwrap();
    let stream = collector.open(&TraceSettings::default());
    trace(&stream, "1");
    trace(&stream, "2");
    let received = received.join().unwrap();
    collector.close();
    received.into_iter().map(|(_, body)| body).collect()
}

#[test]
fn unavailable_collector_gets_the_same_spans_again() {
    for status in [
        "429 Too Many Requests",
        "502 Bad Gateway",
        "503 Service Unavailable",
        "503 Service Unavailable\r\nretry-after: 0",
        "504 Gateway Timeout",
        // No answer.
        "",
    ] {
        for failures in [1, 2, 5] {
            let statuses = [vec![status; failures], vec!["200 OK"; 2]].concat();
            let bodies = sent(statuses, Duration::from_secs(60));
            assert!(bodies[..=failures].iter().all(|body| *body == bodies[0]), "{status}, {failures}");
            assert_ne!(bodies[failures + 1], bodies[0], "{status}, {failures}");
        }
    }
}

#[test]
fn refused_spans_are_not_sent_again() {
    for (status, limit) in [
        ("400 Bad Request", 60),
        ("401 Unauthorized", 60),
        ("404 Not Found", 60),
        ("413 Content Too Large", 60),
        ("500 Internal Server Error", 60),
        ("503 Service Unavailable\r\nretry-after: 61", 60),
        ("503 Service Unavailable", 0),
    ] {
        let bodies = sent(vec![status, "200 OK"], Duration::from_secs(limit));
        assert_ne!(bodies[0], bodies[1], "{status}");
    }
}

#[test]
fn spans_beyond_the_queue_limit_are_dropped() {
    let (url, received) = collector(1);
    let options = CollectorOptions {
        url,
        max_queue_size: 4,
        schedule_delay: Duration::from_secs(3600),
        ..CollectorOptions::default()
    };
    let batches = Collector::new(&CollectorOptions { max_export_batch_size: 4, ..options }).unwrap();
    let stream = batches.open(&TraceSettings::default());
    // The collector reads only after all spans were recorded. Batches are sent while further spans are recorded, so the
    // number that arrives has only a lower bound.
    (0..50).for_each(|_| trace(&stream, "1"));
    let taken = received.join().unwrap();
    assert_eq!(spans(&taken[0].1).scope_spans[0].spans.len(), 4);
    batches.close();
}
