//! Statuses and headers of whole requests, as the reference answers them.

use std::sync::{Arc, mpsc};
use std::time::Duration;

use nereid_core::backend_api::Error;
use nereid_core::{
    Choice, ModelRequest, ModelTable, ScopedName, ServerOptions, VersionChooser, VersionChoosers,
};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;

use crate::HttpOptions;
use crate::testing::{Serving, echo, http_options, options, serve, server, server_with};

const CONFIG: &str = r#"
    input { name: "IN0" data_type: TYPE_INT32 dims: [ -1 ] optional: true }
    input { name: "IN1" data_type: TYPE_STRING dims: [ -1 ] optional: true }
    input { name: "IN2" data_type: TYPE_FP64 dims: [ -1 ] optional: true }
    output { name: "OUT0" data_type: TYPE_INT32 dims: [ -1 ] }
    output { name: "OUT1" data_type: TYPE_STRING dims: [ -1 ] }
    output { name: "OUT2" data_type: TYPE_FP64 dims: [ -1 ] }
"#;
const ONE: &str = r#"{"name":"IN0","datatype":"INT32","shape":[1],"data":[7]}"#;

async fn serving() -> Serving {
    serve(server(CONFIG, echo), http_options()).await
}

/// A request of these inputs, and what else it has.
fn body(inputs: &str, rest: &str) -> String {
    format!(r#"{{"inputs":[{inputs}]{rest}}}"#)
}

async fn status(serving: &Serving, body: impl AsRef<[u8]>) -> u16 {
    let answer = serving.send("POST", "/v2/models/m/infer", "", body.as_ref()).await;
    String::from_utf8_lossy(&answer[9..12]).parse().unwrap()
}

/// Fails requests with a header.
struct FailByHeader;

impl VersionChooser for FailByHeader {
    fn choose(&self, request: &ModelRequest, models: &ModelTable) -> Choice {
        Choice::Version(match request.head.get("x-fail") {
            Some(value) => Err(Error::unavailable(format!("failed by {value}"))),
            None => models.find(ScopedName::everywhere(&request.name), request.version).cloned(),
        })
    }
}

#[tokio::test]
async fn version_choosers_see_the_headers_of_every_inference() {
    let mut versions = VersionChoosers::default();
    versions.set("m", Arc::new(FailByHeader));
    let options = ServerOptions { versions, ..options() };
    let serving = serve(server_with(options, CONFIG, echo), http_options()).await;
    let infer = body(ONE, "");
    for (call, body) in [("infer", infer.as_str()), ("generate", "{}"), ("generate_stream", "{}")] {
        for version in ["", "/versions/1"] {
            let path = format!("/v2/models/m{version}/{call}");
            let answer = serving.ask("POST", &path, "X-Fail: caf\u{e9}\r\n", body).await;
            assert!(answer.starts_with("HTTP/1.1 503"), "{path}: {answer}");
            assert!(answer.contains("failed by caf\u{e9}"), "{path}: {answer}");
            let answer = serving.ask("POST", &path, "X-Other: 1\r\n", body).await;
            assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        }
    }
}

#[tokio::test]
async fn elements_that_do_not_fit_the_shape_have_the_code_of_their_type() {
    let serving = serving().await;
    for (name, data_type, element, expected) in
        [("IN0", "INT32", "1", 500), ("IN1", "BYTES", "\"a\"", 400), ("IN2", "FP64", "1.5", 500)]
    {
        for shape in 0..4 {
            for count in 0..5 {
                let data = vec![element; count].join(",");
                let input = format!(
                    r#"{{"name":"{name}","datatype":"{data_type}","shape":[{shape}],"data":[{data}]}}"#
                );
                // The data of an empty tensor is ignored.
                let expected = if shape == count || shape == 0 { 200 } else { expected };
                assert_eq!(status(&serving, body(&input, "")).await, expected, "{input}");
            }
        }
    }
}

#[tokio::test]
async fn byte_order_mark_is_skipped_once_at_the_beginning() {
    let serving = serving().await;
    for (mark, expected) in
        [("", 200), ("\u{feff}", 200), ("\u{feff} ", 200), (" \u{feff}", 500), ("\u{feff}\u{feff}", 500)]
    {
        assert_eq!(status(&serving, format!("{mark}{}", body(ONE, ""))).await, expected, "{mark:?}");
        let generate = serving.post("/v2/models/m/generate", &format!(r#"{mark}{{"IN0": 7}}"#)).await;
        assert!(generate.starts_with(&format!("HTTP/1.1 {expected} ")), "{mark:?}: {generate}");
    }
    // A mark before JSON whose data is read late, because the type follows it.
    let late = body(r#"{"name":"IN0","data":[7],"datatype":"INT32","shape":[1]}"#, "");
    assert_eq!(status(&serving, format!("\u{feff}{late}")).await, 200);
}

#[tokio::test]
async fn text_that_is_not_utf_8_is_refused_with_400_wherever_it_counts() {
    let serving = serving().await;
    for bad in [b"\xff".as_slice(), b"\xc3", b"\xed\xa0\x80", b"a\xf0\x9f"] {
        for (before, after) in [
            (r#"{"inputs":[{"name":""#, r#"","datatype":"INT32","shape":[1],"data":[1]}]}"#),
            (r#"{"inputs":[{"name":"IN0","datatype":""#, r#"","shape":[1],"data":[1]}]}"#),
            (r#"{"inputs":[{"name":"IN1","datatype":"BYTES","shape":[1],"data":[""#, r#""]}]}"#),
            (r#"{"inputs":[],"outputs":[{"name":""#, r#""}]}"#),
            (r#"{"inputs":[],"parameters":{""#, r#"":1}}"#),
            (r#"{"inputs":[],"parameters":{"a":""#, r#""}}"#),
            (r#"{"inputs":[],"id":""#, r#""}"#),
        ] {
            let body = [before.as_bytes(), bad, after.as_bytes()].concat();
            assert_eq!(status(&serving, &body).await, 400, "{}", body.escape_ascii());
        }
    }
    let surrogate = r#"{"inputs":[],"id":"\ud800"}"#;
    assert_eq!(status(&serving, surrogate).await, 500);
}

#[tokio::test]
async fn numbers_too_large_for_64_bits_are_refused_wherever_they_are() {
    let serving = serving().await;
    for (number, expected) in [
        ("1e400", 500),
        ("-1e400", 500),
        ("1e308", 200),
        ("1e-400", 200),
        ("Infinity", 200),
        ("-Infinity", 200),
        ("NaN", 200),
        ("Inf", 200),
        ("-Inf", 200),
        ("-NaN", 200),
        ("Info", 500),
        ("+Inf", 500),
        ("-Na", 500),
        ("123456789012345678901234567890", 200),
    ] {
        let input = format!(r#"{{"name":"IN2","datatype":"FP64","shape":[1],"data":[{number}]}}"#);
        assert_eq!(status(&serving, body(&input, "")).await, expected, "{number}");
        let parameter = format!(r#","parameters":{{"x":{number}}}"#);
        assert_eq!(status(&serving, body(ONE, &parameter)).await, expected, "{number}");
    }
}

#[tokio::test]
async fn infinity_spellings_parse_with_the_type_before_or_after() {
    let serving = serving().await;
    let words = "[Inf, -Inf, Infinity, NaN, -NaN]";
    let expected = r#""data":[Infinity,-Infinity,Infinity,NaN,NaN]"#;
    for input in [
        format!(r#"{{"name":"IN2","datatype":"FP64","shape":[5],"data":{words}}}"#),
        format!(r#"{{"data":{words},"name":"IN2","datatype":"FP64","shape":[5]}}"#),
    ] {
        let request = body(&input, r#","id":"Inf and -NaN""#);
        let answer = serving.post("/v2/models/m/infer", &request).await;
        assert!(answer.contains(expected) && answer.contains("\"Inf and -NaN\""), "{input}: {answer}");
    }
    let answer = serving.post("/v2/models/m/generate", &format!(r#"{{"IN2": {words}}}"#)).await;
    assert!(answer.contains("\"OUT2\":[Infinity,-Infinity,Infinity,NaN,NaN]"), "{answer}");
}

#[tokio::test]
async fn deep_nesting_is_refused_with_400_wherever_it_is() {
    let limits = HttpOptions { max_input_size: 1 << 20, max_body_size: 1 << 20, ..http_options() };
    let serving = serve(server(CONFIG, echo), limits).await;
    for depth in [300, 1500] {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
            let nested = format!("{}1{}", open.repeat(depth), close.repeat(depth));
            for rest in [format!(r#","x":{nested}"#), format!(r#","parameters":{{"x":{nested}}}"#)] {
                assert_eq!(status(&serving, body(ONE, &rest)).await, 400, "{depth} {open}");
            }
            let input = format!(r#"{{"name":"IN0","datatype":"INT32","shape":[1],"data":[7],"x":{nested}}}"#);
            assert_eq!(status(&serving, body(&input, "")).await, 400, "{depth} {open}");
            let generate = format!(r#"{{"IN0":7,"x":{nested}}}"#);
            let answer = serving.post("/v2/models/m/generate", &generate).await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{depth} {open}: {answer}");
        }
    }
}

#[tokio::test]
async fn region_combined_with_data_is_refused_before_lookup() {
    let serving = serving().await;
    const REGION: &str = "shared_memory_region";
    const SIZE: &str = "shared_memory_byte_size";
    for (region, alone) in [
        (format!(r#""{REGION}":"none","{SIZE}":4"#), 404),
        (format!(r#""{REGION}":"none","{SIZE}":0"#), 404),
        (format!(r#""{REGION}":"none""#), 404),
        (format!(r#""{REGION}":"","{SIZE}":4"#), 404),
        (format!(r#""{REGION}":3,"{SIZE}":4"#), 500),
        (format!(r#""{REGION}":null,"{SIZE}":4"#), 500),
        (format!(r#""{REGION}":"none","{SIZE}":"4""#), 500),
        (format!(r#""{REGION}":"none","{SIZE}":-4"#), 500),
        (format!(r#""{SIZE}":[],"{REGION}":"none""#), 500),
    ] {
        let output = |more: &str| {
            body(ONE, &format!(r#","outputs":[{{"name":"OUT0","parameters":{{{region}{more}}}}}]"#))
        };
        for (more, expected) in [
            ("", alone),
            (r#","binary_data":false"#, alone),
            (r#","binary_data":true"#, 400),
            (r#","classification":0"#, 400),
            (r#","classification":1"#, 400),
        ] {
            assert_eq!(status(&serving, output(more)).await, expected, "{}", output(more));
        }
        let input = |data: &str, more: &str| {
            body(
                &format!(
                    r#"{{"name":"IN0","datatype":"INT32","shape":[1]{data},"parameters":{{{region}{more}}}}}"#
                ),
                "",
            )
        };
        for (data, more, expected) in [
            ("", "", alone),
            (r#","data":[1]"#, "", 400),
            ("", r#","binary_data_size":4"#, 400),
            (r#","data":[1]"#, r#","binary_data_size":4"#, 400),
        ] {
            assert_eq!(status(&serving, input(data, more)).await, expected, "{}", input(data, more));
        }
    }
}

#[tokio::test]
async fn an_output_requested_twice_is_refused_in_every_form() {
    let serving = serving().await;
    for (first, second) in [
        ("", ""),
        ("", r#","parameters":{"binary_data":true}"#),
        (r#","parameters":{"classification":1}"#, ""),
    ] {
        let outputs = format!(r#","outputs":[{{"name":"OUT0"{first}}},{{"name":"OUT0"{second}}}]"#);
        assert_eq!(status(&serving, body(ONE, &outputs)).await, 400, "{outputs}");
    }
}

#[tokio::test]
async fn reply_without_binary_data_is_plain_json() {
    let serving = serving().await;
    let binary = |name: &str| format!(r#"{{"name":"{name}","parameters":{{"binary_data":true}}}}"#);
    let zero = r#"{"name":"IN1","datatype":"BYTES","shape":[0],"data":[]}"#;
    let none = r#"{"name":"IN0","datatype":"INT32","shape":[0],"data":[]}"#;
    let all = r#","parameters":{"binary_data_output":true}"#;
    let cases = [
        (none.to_owned(), all.to_owned(), false),
        (zero.to_owned(), all.to_owned(), false),
        (format!("{none},{zero}"), all.to_owned(), false),
        (format!("{ONE},{zero}"), all.to_owned(), true),
        (ONE.to_owned(), all.to_owned(), true),
        (format!("{ONE},{zero}"), format!(r#","outputs":[{{"name":"OUT0"}},{}]"#, binary("OUT1")), false),
        (format!("{ONE},{zero}"), format!(r#","outputs":[{},{{"name":"OUT1"}}]"#, binary("OUT0")), true),
    ];
    for (inputs, rest, has_bytes) in cases {
        let answer = serving.post("/v2/models/m/infer", &body(&inputs, &rest)).await;
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        assert_eq!(answer.contains("application/octet-stream"), has_bytes, "{answer}");
        assert_eq!(answer.contains("application/json"), !has_bytes, "{answer}");
        assert_eq!(answer.contains("inference-header-content-length: "), has_bytes, "{answer}");
    }
}

#[tokio::test]
async fn empty_body_is_an_empty_raw_tensor_for_models_with_raw_input() {
    let one = |data_type: &str, dims: &str| {
        format!(
            "input {{ name: \"IN0\" data_type: {data_type} dims: {dims} }} output {{ name: \"OUT0\" data_type: {data_type} dims: {dims} }}"
        )
    };
    for (config, expected) in [
        (one("TYPE_INT32", "[ -1 ]"), 200),
        (format!("max_batch_size: 4 {}", one("TYPE_FP32", "[ -1 ]")), 200),
        (one("TYPE_INT32", "[ 2 ]"), 400),
        (one("TYPE_STRING", "[ -1 ]"), 400),
        (CONFIG.to_owned(), 400),
    ] {
        let serving = serve(server(&config, echo), http_options()).await;
        for headers in ["", "Inference-Header-Content-Length: 0\r\n"] {
            let answer = serving.ask("POST", "/v2/models/m/infer", headers, "").await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {expected} ")), "{config} {headers}: {answer}");
        }
        let answer = serving.post("/v2/models/m/generate", "").await;
        assert!(answer.starts_with("HTTP/1.1 500 "), "{answer}");
    }
}

/// Each request below has one long computation: only long work may use the runtime's blocking thread, which is occupied.
#[test]
fn connections_are_served_while_another_request_waits_for_long_work() {
    const COUNT: usize = 100_000;
    let numbers = vec!["7"; COUNT].join(",");
    let raw = [7_u8, 0, 0, 0].repeat(COUNT);
    let json_in = |rest: &str| {
        body(&format!(r#"{{"name":"IN0","datatype":"INT32","shape":[{COUNT}],"data":[{numbers}]}}"#), rest)
    };
    let raw_in = |rest: &str| {
        let size = raw.len();
        let input = format!(
            r#"{{"name":"IN0","datatype":"INT32","shape":[{COUNT}],"parameters":{{"binary_data_size":{size}}}}}"#
        );
        let json = body(&input, rest);
        let header = format!("Inference-Header-Content-Length: {}\r\n", json.len());
        (header, [json.as_bytes(), &raw].concat())
    };
    let binary_out = r#","parameters":{"binary_data_output":true}"#;
    let classes = r#","outputs":[{"name":"OUT0","parameters":{"binary_data":true,"classification":2}}]"#;
    let generate = format!(r#"{{"IN0":[{numbers}]}}"#);
    let (json_out, classified, compressed) = (raw_in(""), raw_in(classes), raw_in(binary_out));
    let cases = [
        ("infer", String::new(), json_in(binary_out).into_bytes()),
        ("infer", json_out.0, json_out.1),
        ("infer", classified.0, classified.1),
        ("infer", format!("{}Accept-Encoding: gzip\r\n", compressed.0), compressed.1),
        ("generate", String::new(), generate.clone().into_bytes()),
        ("generate_stream", String::new(), generate.into_bytes()),
    ];
    let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let limits = HttpOptions { max_input_size: 1 << 20, max_body_size: 1 << 20, ..http_options() };
        let serving = Arc::new(serve(server(CONFIG, echo), limits).await);
        for (route, headers, body) in cases {
            let (open, gate) = mpsc::channel::<()>();
            let occupied = spawn_blocking(move || gate.recv());
            let client = Arc::clone(&serving);
            let path = format!("/v2/models/m/{route}");
            let label = format!("{route} {headers}");
            let answer = tokio::spawn(async move { client.send("POST", &path, &headers, &body).await });
            for _ in 0..50 {
                let health = serving.ask("GET", "/v2/health/live", "", "").await;
                assert!(health.starts_with("HTTP/1.1 200 "), "{label}: {health}");
            }
            assert!(!answer.is_finished(), "{label} was answered by an I/O thread");
            open.send(()).unwrap();
            occupied.await.unwrap().unwrap();
            let answer = answer.await.unwrap();
            assert!(answer.starts_with(b"HTTP/1.1 200 "), "{label}: {}", answer[..200].escape_ascii());
        }
    });
}

/// Fails requests with the time that they may wait.
struct FailByTimeLimit;

impl VersionChooser for FailByTimeLimit {
    fn choose(&self, request: &ModelRequest, _: &ModelTable) -> Choice {
        let limit = request.deadline().map(|deadline| deadline - request.arrived);
        let error = Error::unavailable(format!("waits {limit:?}"));
        Choice::Version(Err(error.with_retry_after(Duration::from_millis(1500))))
    }
}

#[tokio::test]
async fn requests_wait_for_their_models_as_long_as_their_timeout_and_are_told_when_to_try_again() {
    let mut versions = VersionChoosers::default();
    versions.set("m", Arc::new(FailByTimeLimit));
    let options = ServerOptions { versions, ..options() };
    let serving = serve(server_with(options, CONFIG, echo), http_options()).await;
    for (rest, expected) in [
        ("", "None"),
        (r#","parameters":{}"#, "None"),
        (r#","parameters":{"timeout":0}"#, "None"),
        (r#","parameters":{"timeout":-1}"#, "None"),
        (r#","parameters":{"timeout":"5"}"#, "None"),
        (r#","parameters":{"priority":1,"timeout":2500000}"#, "Some(2.5s)"),
    ] {
        for tail in ["", "\u{0}\u{1}tensor"] {
            let json = body(ONE, rest);
            let header = format!("Inference-Header-Content-Length: {}\r\n", json.len());
            let answer = serving.ask("POST", "/v2/models/m/infer", &header, &format!("{json}{tail}")).await;
            assert!(answer.starts_with("HTTP/1.1 503"), "{rest}: {answer}");
            assert!(answer.contains(&format!("waits {expected}")), "{rest}: {answer}");
            assert!(answer.to_ascii_lowercase().contains("\r\nretry-after: 2\r\n"), "{rest}: {answer}");
        }
    }
}
