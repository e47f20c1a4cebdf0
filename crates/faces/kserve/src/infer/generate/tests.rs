//! Requests and responses of one object each, and streams that end early on either side.

use std::sync::mpsc;
use std::time::Duration;

use nereid_core::backend_api::{CorrelationId, DataType, ParameterValue, Request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::*;
use crate::testing::{Serving, echo, http_options, request, serve, server};

const CONFIG: &str = r#"
    max_batch_size: 4
    input { name: "IN_TEXT" data_type: TYPE_STRING dims: [ 1 ] }
    input { name: "IN_LIST" data_type: TYPE_FP32 dims: [ -1 ] optional: true }
    output { name: "OUT_TEXT" data_type: TYPE_STRING dims: [ 1 ] }
    output { name: "OUT_LIST" data_type: TYPE_FP32 dims: [ -1 ] }
"#;
const DECOUPLED: &str = "model_transaction_policy { decoupled: true }";

fn signature() -> Signature {
    let config = format!("name: \"m\" {CONFIG} input {{ name: \"HALF\" data_type: TYPE_FP16 dims: [ 1 ] }}");
    Signature::new(&nereid_core::model_config::parse_text(&config).unwrap()).unwrap()
}

fn decoded(json: &str) -> Result<InferRequest> {
    decode(json.as_bytes(), &signature(), Limit { bytes: 1024, option: "--http-max-input-size" })
}

#[test]
fn members_named_like_inputs_are_inputs_and_others_are_parameters() {
    let request = decoded(
        r#"{"id": "r", "IN_TEXT": "hello", "n": 3, "parameters": {"IN_LIST": [1, 2.5], "x": true, "sequence_id": 5}}"#,
    )
    .unwrap();
    let text = &request.inputs[0];
    assert_eq!(
        (text.name.as_str(), text.data_type, &text.shape),
        ("IN_TEXT", DataType::Bytes, &[1, 1].into())
    );
    assert_eq!(&*text.contiguous().unwrap(), b"\x05\0\0\0hello");
    assert_eq!(request.inputs[1].shape, [1, 2].into());
    let parameters: Vec<_> = request.parameters.iter().collect();
    assert_eq!(
        parameters,
        [
            ("id", &ParameterValue::String("r".into())),
            ("n", &ParameterValue::Int(3)),
            ("x", &ParameterValue::Bool(true)),
            ("sequence_id", &ParameterValue::Int(5)),
        ]
    );
    assert_eq!((request.id.as_str(), request.correlation_id), ("r", CorrelationId::None));
}

#[test]
fn numbers_may_be_nan_and_infinity() {
    let request = decoded(r#"{"IN_TEXT": "", "IN_LIST": [NaN, -Infinity, 1.5]}"#).unwrap();
    let expected = [f32::NAN, f32::NEG_INFINITY, 1.5].map(f32::to_le_bytes).concat();
    assert_eq!(*request.inputs[1].contiguous().unwrap(), expected);
}

#[test]
fn requests_that_cannot_be_mapped_are_refused() {
    for (json, status) in [
        ("", 500),
        ("[]", 500),
        ("null", 500),
        ("{", 500),
        (r#"{"IN_TEXT": "a"} x"#, 500),
        (r#"{"IN_TEXT": 3}"#, 500),
        (r#"{"IN_TEXT": null}"#, 500),
        (r#"{"IN_TEXT": ["a", "b"], "IN_TEXT": "c"}"#, 400),
        (r#"{"IN_TEXT": "a", "IN_TEXT": "b"}"#, 400),
        (r#"{"HALF": 1}"#, 400),
        (r#"{"stop": ["x"]}"#, 400),
        (r#"{"stop": null}"#, 400),
        (r#"{"parameters": {"x": {"y": 1}}}"#, 400),
        (r#"{"parameters": 3}"#, 500),
        (r#"{"id": 3}"#, 500),
        (r#"{"IN_LIST": "1"}"#, 500),
    ] {
        let error = decoded(json).err().unwrap_or_else(|| panic!("{json} was accepted"));
        assert_eq!(nereid_protocol::http_status(error.code()), status, "{json}: {error}");
    }
    let list = format!("[{}1]", "1,".repeat(300));
    for long in [
        format!(r#"{{"IN_TEXT": "a", "IN_LIST": {list}}}"#),
        format!(r#"{{"IN_TEXT": "a", "parameters": {{"IN_LIST": {list}}}}}"#),
        format!(r#"{{"parameters": {{"IN_TEXT": "{}"}}, "IN_LIST": [1, 2]}}"#, "a".repeat(1015)),
    ] {
        assert!(decoded(&long).err().unwrap().message().contains("--http-max-input-size"), "{long}");
    }
}

#[test]
fn shapes_follow_from_the_number_of_elements() {
    for (dims, count, shape) in [
        (&[-1, 2][..], 6, Some(&[3, 2][..])),
        (&[-1, -1], 6, Some(&[1, 6])),
        (&[2, 3], 6, Some(&[2, 3])),
        (&[-1], 0, Some(&[0])),
        (&[], 1, Some(&[])),
        (&[2, 3], 12, None),
        (&[-1, 4], 6, None),
        (&[1], 0, None),
        (&[0], 0, Some(&[0])),
        (&[0], 3, None),
    ] {
        assert_eq!(fitted(Shape::from(dims), count), shape.map(Shape::from), "{dims:?} of {count}");
    }
}

/// A model that sends as many responses as its parameter `n`; an error for -1.
fn repeated(request: Request) {
    let response = Response {
        outputs: vec![Tensor { name: "OUT_TEXT".into(), ..request.inputs[0].clone() }],
        parameters: request.parameters.clone(),
    };
    match request.parameters.get("n") {
        Some(ParameterValue::Int(-1)) => request.answer(Err(Error::unavailable("not today"))),
        Some(ParameterValue::Int(-3)) => request.answer(Err(Error::internal("never"))),
        Some(ParameterValue::Int(-4)) => request.answer(Err(Error::not_found("nowhere"))),
        Some(ParameterValue::Int(-2)) => {
            request.responder().send(Ok(response));
            request.answer(Err(Error::unavailable("no more today")));
        }
        Some(ParameterValue::Int(n)) => {
            (0..*n).for_each(|_| request.responder().send(Ok(response.clone())));
            request.responder().finish();
        }
        _ => request.answer(Ok(response)),
    }
}

async fn serving(config: &str, script: impl Fn(Request) + Send + Sync + 'static) -> Serving {
    serve(server(config, script), http_options()).await
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[tokio::test]
async fn one_response_is_one_flat_object() {
    let serving = serving(CONFIG, echo).await;
    let answer = serving
        .post("/v2/models/m/generate", r#"{"id": "r", "IN_TEXT": "a\"", "IN_LIST": [1, 2], "n": 2}"#)
        .await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert_eq!(
        body(&answer),
        r#"{"id":"r","model_name":"m","model_version":"1","n":2,"OUT_TEXT":"a\"","OUT_LIST":[1.0,2.0]}"#
    );
}

#[tokio::test]
async fn generate_answers_no_response_several_and_errors_of_any_code_with_an_error() {
    let serving = serving(&format!("{CONFIG}{DECOUPLED}"), repeated).await;
    for (n, status, reason) in [
        (0, 200, "no response"),
        (2, 200, "several responses"),
        (3000, 200, "several responses"),
        (-2, 200, "several responses"),
        (-1, 400, "not today"),
        (-3, 400, "never"),
        (-4, 400, "nowhere"),
    ] {
        let answer = serving
            .post("/v2/models/m/versions/1/generate", &format!(r#"{{"IN_TEXT": "a", "n": {n}}}"#))
            .await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(body(&answer).starts_with("{\"error\":") && answer.contains(reason), "{answer}");
    }
}

#[tokio::test]
async fn stream_sends_an_event_per_response_with_the_first_status() {
    let serving = serving(&format!("{CONFIG}{DECOUPLED}"), repeated).await;
    let good = r#"data: {"model_name":"m","model_version":"1","n":N,"OUT_TEXT":"a"}"#;
    for (n, status, events) in [
        (0, 200, vec![]),
        (3, 200, vec![good; 3]),
        (-1, 400, vec![r#"data: {"error":"not today"}"#]),
        (-3, 400, vec![r#"data: {"error":"never"}"#]),
        (-4, 400, vec![r#"data: {"error":"nowhere"}"#]),
        (-2, 200, vec![good, r#"data: {"error":"no more today"}"#]),
    ] {
        let answer =
            serving.post("/v2/models/m/generate_stream", &format!(r#"{{"IN_TEXT": "a", "n": {n}}}"#)).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        assert!(answer.contains("content-type: text/event-stream; charset=utf-8\r\n"), "{answer}");
        let seen: Vec<_> = answer.split("\r\n").filter(|line| line.starts_with("data: ")).collect();
        let expected: Vec<_> =
            events.iter().map(|event| format!("{}\n\n", event.replace('N', &n.to_string()))).collect();
        assert_eq!(seen, expected);
    }
}

#[tokio::test]
async fn refused_request_has_the_status_of_its_error() {
    let (begun, executing) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let config = format!("{CONFIG} dynamic_batching {{ default_queue_policy {{ max_queue_size: 1 }} }}");
    let serving = serving(&config, move |request| {
        let _ = begun.send(());
        // Returns an error once the other end is dropped.
        let _ = released.lock().unwrap().recv();
        request.answer(Err(Error::unavailable("not today")));
    })
    .await;
    let ask = || serving.post("/v2/models/m/generate", r#"{"IN_TEXT": "a"}"#);
    let others = async {
        tokio::task::spawn_blocking(move || executing.recv().unwrap()).await.unwrap();
        // One of them waits, and the other finds the queue full.
        let (mut one, mut other) = (Box::pin(ask()), Box::pin(ask()));
        let refused =
            tokio::select! { answer = &mut one => answer, answer = &mut other => { other = one; answer } };
        assert!(refused.starts_with("HTTP/1.1 503 ") && refused.contains("maximum queue size"), "{refused}");
        drop(release);
        other.await
    };
    let (first, queued) = tokio::join!(ask(), others);
    for answer in [first, queued] {
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("not today"), "{answer}");
    }
}

#[tokio::test]
async fn an_error_before_the_stream_is_a_plain_reply() {
    let serving = serving(CONFIG, echo).await;
    for path in ["/v2/models/m/generate", "/v2/models/m/generate_stream"] {
        let answer = serving.post(path, "{}").await;
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("application/json"), "{answer}");
        let answer = serving.ask("POST", path, "Content-Encoding: gzip\r\n", "{}").await;
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("compressed"), "{answer}");
        let answer = serving.post(&path.replace("/m/", "/other/"), "{}").await;
        assert!(answer.starts_with("HTTP/1.1 404 "), "{answer}");
        let answer = serving.post(path, &" ".repeat(1025)).await;
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
    }
}

#[tokio::test]
async fn infer_refuses_decoupled_models() {
    let serving = serving(&format!("{CONFIG}{DECOUPLED}"), repeated).await;
    let answer = serving.post("/v2/models/m/infer", "{}").await;
    assert!(answer.starts_with("HTTP/1.1 501 ") && answer.contains("decoupled"), "{answer}");
}

#[tokio::test]
async fn a_client_that_disconnects_cancels_its_stream() {
    let (reported, cancelled) = mpsc::channel();
    let serving = serving(&format!("{CONFIG}{DECOUPLED}"), move |request: Request| {
        let answer = Response {
            outputs: vec![Tensor { name: "OUT_TEXT".into(), ..request.inputs[0].clone() }],
            ..Response::default()
        };
        let (responder, reported) = (request.into_responder(), reported.clone());
        std::thread::spawn(move || {
            for _ in 0..3000 {
                responder.send(Ok(answer.clone()));
                if responder.is_cancelled() {
                    break;
                }
                std::thread::sleep(Duration::from_millis(10));
            }
            let _ = reported.send(responder.is_cancelled());
        });
    })
    .await;
    let mut stream = serving.connect().await;
    stream
        .write_all(request("POST", "/v2/models/m/generate_stream", "", r#"{"IN_TEXT": "a"}"#).as_bytes())
        .await
        .unwrap();
    let mut some = [0; 256];
    assert!(stream.read(&mut some).await.unwrap() > 0);
    drop(stream);
    let cancelled = tokio::task::spawn_blocking(move || cancelled.recv_timeout(Duration::from_secs(30)));
    assert_eq!(cancelled.await.unwrap(), Ok(true));
}
