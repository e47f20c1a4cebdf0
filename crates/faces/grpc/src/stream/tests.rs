//! Streams as clients use them: the order of answers, errors, decoupled models, the ends of a stream.

use std::sync::mpsc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::stream::iter;
use nereid_core::backend_api::Request as BackendRequest;
use nereid_core::{
    Choice, ModelRequest, ModelTable, ScopedName, ServerOptions, VersionChooser, VersionChoosers,
};
use tokio::runtime::Builder;
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tonic::codec::CompressionEncoding;
use tonic::{Code, Request as Call};

use super::*;
use crate::proto::infer_parameter::ParameterChoice;
use crate::proto::model_infer_request::InferRequestedOutputTensor;
use crate::proto::{InferTensorContents, ModelStreamInferResponse, ServerLiveRequest};
use crate::testing::{NUMBER, Serving, echo, echoed, input_number, number, parameter};
use crate::{Compression, GrpcOptions};

const DECOUPLED: &str = "model_transaction_policy { decoupled: true }";

/// Facts of a message: its error, id, version, number, and whether it is the last.
type Summary = (String, String, String, Option<i32>, Option<bool>);

fn summary(message: ModelStreamInferResponse) -> Summary {
    let response = message.infer_response.unwrap();
    let last =
        response.parameters.get("triton_final_response").map(|parameter| match parameter.parameter_choice {
            Some(ParameterChoice::BoolParam(last)) => last,
            ref other => panic!("{other:?}"),
        });
    let number = response.raw_output_contents.first();
    let number = number.map(|bytes| i32::from_le_bytes(bytes[..].try_into().unwrap()));
    (message.error_message, response.id, response.model_version, number, last)
}

/// All answers to these requests, and the final status.
async fn serve_connection(serving: &Serving, call: Call<Vec<ModelInferRequest>>) -> (Vec<Summary>, Code) {
    let call = call.map(iter);
    let mut answers = serving.client().model_stream_infer(call).await.unwrap().into_inner();
    let mut seen = Vec::new();
    loop {
        match answers.message().await {
            Ok(Some(message)) => seen.push(summary(message)),
            Ok(None) => return (seen, Code::Ok),
            Err(status) => return (seen, status.code()),
        }
    }
}

fn answered(id: &str, number: i32, last: bool) -> Summary {
    (String::new(), id.into(), "1".into(), Some(number), Some(last))
}

/// The summary of a response without outputs: its request's id, an error or none.
fn bare(error: &str, id: &str, last: bool) -> Summary {
    (error.into(), id.into(), String::new(), None, Some(last))
}

/// A server with `m`, whose negative numbers fail, and decoupled `d`, see [`decoupled`]. The requests to `slow` wait
/// until one to `m` has been answered.
fn serving() -> Serving {
    let (answer, answers) = mpsc::channel();
    let answers = std::sync::Mutex::new(answers);
    let configs =
        [("m", NUMBER.to_owned()), ("slow", NUMBER.to_owned()), ("d", format!("{NUMBER} {DECOUPLED}"))];
    Serving::of_models(&configs, GrpcOptions::default(), move |request| match request.model_name() {
        "d" => decoupled(request),
        "slow" => {
            answers.lock().unwrap().recv_timeout(Duration::from_secs(20)).unwrap();
            echo(request);
        }
        _ if input_number(&request) < 0 => request.answer(Err(Error::invalid_arg("negative"))),
        _ => {
            echo(request);
            answer.send(()).unwrap();
        }
    })
}

/// Sends as many responses as its input's value, then ends; -1: one, flagged as the last; -2: an error, then the end;
/// -3: a response, then an error as the last.
fn decoupled(request: BackendRequest) {
    let response = echoed(&request);
    let responder = request.responder();
    match input_number(&request) {
        -1 => responder.finish_with(Ok(response)),
        -2 => {
            responder.send(Err(Error::unavailable("boom")));
            responder.finish();
        }
        -3 => {
            responder.send(Ok(response));
            responder.finish_with(Err(Error::unavailable("boom")));
        }
        count => {
            (0..count).for_each(|_| responder.send(Ok(response.clone())));
            responder.finish();
        }
    }
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
async fn version_choosers_see_the_metadata_of_calls_and_streams() {
    let mut versions = VersionChoosers::default();
    versions.set("m", Arc::new(FailByHeader));
    let options = ServerOptions { versions, ..ServerOptions::default() };
    let models = [("m", NUMBER.to_owned())];
    let serving = Serving::with_server_options(&models, GrpcOptions::default(), options, echo);
    for (key, expected) in [("x-fail", "failed by me"), ("x-other", "")] {
        let mut call = Call::new(number("m", "a", 1));
        call.metadata_mut().insert(key, "me".parse().unwrap());
        let outcome = serving.client().model_infer(call).await;
        assert_eq!(outcome.map_or_else(|status| status.message().to_owned(), |_| String::new()), expected);
        let mut call = Call::new(vec![number("m", "a", 1), number("m", "b", 2)]);
        call.metadata_mut().insert(key, "me".parse().unwrap());
        let (seen, code) = serve_connection(&serving, call).await;
        let errors: Vec<_> = seen.into_iter().map(|answer| answer.0).collect();
        assert_eq!((errors, code), (vec![expected.to_owned(); 2], Code::Ok));
    }
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
async fn requests_wait_for_their_models_until_their_deadline_or_timeout() {
    let mut versions = VersionChoosers::default();
    versions.set("m", Arc::new(FailByTimeLimit));
    let options = ServerOptions { versions, ..ServerOptions::default() };
    let models = [("m", NUMBER.to_owned())];
    let serving = Serving::with_server_options(&models, GrpcOptions::default(), options, echo);
    for (deadline, timeout, expected) in [
        (None, None, "waits None"),
        (None, Some(0), "waits None"),
        (None, Some(-1), "waits None"),
        (None, Some(2_500_000), "waits Some(2.5s)"),
        (Some(600), None, "waits Some(600s)"),
        (Some(600), Some(2_500_000), "waits Some(2.5s)"),
        (Some(600), Some(3_600_000_000), "waits Some(600s)"),
    ] {
        let mut message = number("m", "a", 1);
        let timeout =
            timeout.map(|micros| ("timeout".to_owned(), parameter(ParameterChoice::Int64Param(micros))));
        message.parameters.extend(timeout);
        let mut call = Call::new(message.clone());
        let mut stream = Call::new(vec![message]);
        if let Some(seconds) = deadline {
            call.set_timeout(Duration::from_secs(seconds));
            stream.set_timeout(Duration::from_secs(seconds));
        }
        let status = serving.client().model_infer(call).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unavailable, expected));
        assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "2000");
        let (seen, _) = serve_connection(&serving, stream).await;
        assert_eq!(seen[0].0, expected);
    }
}

#[tokio::test]
async fn ordinary_models_answer_in_request_order() {
    let requests =
        vec![number("slow", "a", 1), number("m", "b", 2), number("nosuch", "c", 3), number("m", "d", 4)];
    let (mut seen, code) = serve_connection(&serving(), Call::new(requests)).await;
    let refused = seen.remove(2);
    assert_eq!(
        (seen, code),
        (vec![answered("a", 1, true), answered("b", 2, true), answered("d", 4, true)], Code::Ok)
    );
    assert!(refused.0.contains("'nosuch'"), "{refused:?}");
    assert_eq!((refused.1, refused.3, refused.4), ("c".into(), None, None));
}

#[tokio::test]
async fn only_the_first_response_of_an_ordinary_model_is_sent() {
    let configs = [("m", NUMBER.to_owned())];
    let serving = Serving::of_models(&configs, GrpcOptions::default(), decoupled);
    for (count, expected) in [
        (-1, answered("a", -1, true)),
        (1, answered("a", 1, true)),
        (2, answered("a", 2, true)),
        (3000, answered("a", 3000, true)),
        (-3, answered("a", -3, true)),
        (-2, bare("boom", "a", true)),
        (0, bare("model 'm' returned no answer, but exactly one was expected", "a", true)),
    ] {
        let requests = vec![number("m", "a", count), number("m", "b", 1)];
        let expected = vec![expected, answered("b", 1, true)];
        assert_eq!(serve_connection(&serving, Call::new(requests)).await, (expected, Code::Ok), "{count}");
        let mut client = serving.client();
        let outcome = client.model_infer(number("m", "a", count)).await;
        let code = outcome.map_or_else(|status| status.code(), |_| Code::Ok);
        let expected = match count {
            -1 | 1 => Code::Ok,
            -2 => Code::Unavailable,
            _ => Code::Internal,
        };
        assert_eq!(code, expected, "{count}");
    }
}

#[tokio::test]
async fn error_is_sent_in_the_stream_without_ending_it() {
    let requests = vec![number("m", "a", -1), number("m", "b", 2)];
    let expected = vec![bare("negative", "a", true), answered("b", 2, true)];
    assert_eq!(serve_connection(&serving(), Call::new(requests)).await, (expected, Code::Ok));
}

#[tokio::test]
async fn error_ends_the_stream_if_the_client_opts_in() {
    let call = |requests, value: &'static str| {
        let mut call = Call::new(requests);
        call.metadata_mut().insert(END_AT_ERROR, value.parse().unwrap());
        call
    };
    let requests = || vec![number("m", "a", 1), number("m", "b", -1), number("m", "c", 2)];
    let serving = serving();
    let (seen, code) = serve_connection(&serving, call(requests(), "true")).await;
    assert_eq!((seen, code), (vec![answered("a", 1, true)], Code::InvalidArgument));
    let (seen, code) = serve_connection(&serving, call(requests(), "false")).await;
    assert_eq!((seen.len(), code), (3, Code::Ok));
    // A request that is refused before execution is still answered in the stream.
    let (seen, code) =
        serve_connection(&serving, call(vec![number("x", "a", 1), number("m", "b", 1)], "true")).await;
    assert_eq!((seen.len(), code), (2, Code::Ok));
}

#[tokio::test]
async fn a_decoupled_model_answers_any_number_of_times() {
    let serving = serving();
    for (count, expected) in [
        (0, vec![]),
        (2, vec![answered("r", 2, false), answered("r", 2, false)]),
        (-1, vec![answered("r", -1, true)]),
        (-2, vec![bare("boom", "r", false)]),
        (-3, vec![answered("r", -3, false), bare("boom", "r", true)]),
    ] {
        let seen = serve_connection(&serving, Call::new(vec![number("d", "r", count)])).await;
        assert_eq!(seen, (expected.clone(), Code::Ok), "{count}");

        let mut request = number("d", "r", count);
        let yes = parameter(ParameterChoice::BoolParam(true));
        request.parameters.insert("triton_enable_empty_final_response".into(), yes);
        let mut expected = expected;
        if expected.last().is_none_or(|last| last.4 == Some(false)) {
            expected.push(bare("", "r", true));
        }
        let seen = serve_connection(&serving, Call::new(vec![request])).await;
        assert_eq!(seen, (expected, Code::Ok), "{count} with an empty final response");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn decoupled_responses_overtake_ordinary_ones() {
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let configs = [("m", NUMBER.to_owned()), ("d", format!("{NUMBER} {DECOUPLED}"))];
    let serving = Serving::of_models(&configs, GrpcOptions::default(), move |request| {
        if request.model_name() == "d" {
            return decoupled(request);
        }
        released.lock().unwrap().recv().unwrap();
        echo(request);
    });
    let mut wrong = number("d", "wrong", 1);
    wrong.inputs[0].datatype = "FP32".into();
    let requests = vec![number("m", "first", 1), number("d", "quick", -1), wrong, number("m", "last", 3)];
    let mut answers = serving.client().model_stream_infer(iter(requests)).await.unwrap().into_inner();
    let mut next = async || summary(answers.message().await.unwrap().unwrap()).1;
    let mut quick = [next().await, next().await];
    quick.sort();
    assert_eq!(quick, ["quick", "wrong"]);
    for id in ["first", "last"] {
        release.send(()).unwrap();
        assert_eq!(next().await, id);
    }
    assert!(answers.message().await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn dropped_stream_cancels_its_requests() {
    let (began, begins) = mpsc::channel();
    let (ended, ends) = mpsc::channel();
    let serving = Serving::new(&format!("{NUMBER} {DECOUPLED}"), move |request: BackendRequest| {
        began.send(()).unwrap();
        while !request.responder().is_cancelled() {
            std::thread::yield_now();
        }
        ended.send(()).unwrap();
        request.responder().finish();
    });
    let requests =
        iter(vec![number("m", "a", 1), number("m", "b", 1)]).chain(futures_util::stream::pending());
    let mut client = serving.client();
    let reading = tokio::spawn(async move {
        let mut answers = client.model_stream_infer(requests).await.unwrap().into_inner();
        answers.message().await
    });
    begins.recv().unwrap();
    let model = serving.server.model(ScopedName::everywhere("m"), None).unwrap();
    while model.pending() < 1 {
        tokio::task::yield_now().await;
    }
    reading.abort();
    assert!(reading.await.unwrap_err().is_cancelled());
    ends.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(model.pending(), 0);
    assert!(begins.try_recv().is_err(), "what was queued is not executed");
}

#[tokio::test]
async fn a_stream_ends_at_its_deadline() {
    let serving = Serving::new(NUMBER, echo);
    let requests = iter(vec![number("m", "a", 1)]).chain(futures_util::stream::pending());
    let mut call = Call::new(requests);
    // Long enough for the first answer.
    call.set_timeout(Duration::from_secs(1));
    let mut answers = serving.client().model_stream_infer(call).await.unwrap().into_inner();
    assert_eq!(summary(answers.message().await.unwrap().unwrap()), answered("a", 1, true));
    assert_eq!(answers.message().await.unwrap_err().code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn shutdown_ends_stream_after_pending_answers() {
    let serving = Serving::new(NUMBER, echo);
    let requests = iter(vec![number("m", "a", 1)]).chain(futures_util::stream::pending());
    let mut answers = serving.client().model_stream_infer(requests).await.unwrap().into_inner();
    assert!(answers.message().await.unwrap().is_some());
    serving.shutdown.cancel();
    let end = timeout(Duration::from_secs(20), answers.message()).await.unwrap();
    assert_eq!(end.unwrap_err().code(), Code::Unavailable);
}

/// A client that reads slowly loses responses only with an error in their place: it never takes the end of a stream for
/// the end of the responses.
#[tokio::test]
async fn responses_beyond_the_limit_of_unread_ones_end_with_an_error() {
    for (count, max_unread, is_complete) in
        [(2, 4096, true), (1000, 1 << 20, true), (1000, 0, true), (1000, 100, false), (20_000, 4000, false)]
    {
        for ends_at_error in [false, true] {
            let case = format!("{count} responses, {max_unread} bytes, status: {ends_at_error}");
            let (done, finished) = mpsc::channel();
            let configs = [("d", format!("{NUMBER} {DECOUPLED}"))];
            let server = ServerOptions { max_unread, ..ServerOptions::default() };
            let serving =
                Serving::with_server_options(&configs, GrpcOptions::default(), server, move |request| {
                    decoupled(request);
                    done.send(()).unwrap();
                });
            let mut call = Call::new(iter(vec![number("d", "r", count)]));
            call.metadata_mut().insert(END_AT_ERROR, ends_at_error.to_string().parse().unwrap());
            let mut answers = serving.client().model_stream_infer(call).await.unwrap().into_inner();
            let mut message = answers.message().await;
            // The client reads on when the model has sent everything.
            finished.recv().unwrap();
            let (mut seen, mut error, mut code) = (0, String::new(), Code::Ok);
            loop {
                match message {
                    Ok(Some(message)) if message.error_message.is_empty() => seen += 1,
                    Ok(Some(message)) => error = message.error_message,
                    Ok(None) => break,
                    Err(status) => {
                        code = status.code();
                        break;
                    }
                }
                message = answers.message().await;
            }
            assert_eq!(seen == count, is_complete, "{case}: {seen}");
            assert_eq!(error.is_empty(), is_complete || ends_at_error, "{case}: {error}");
            let expected = if is_complete || !ends_at_error { Code::Ok } else { Code::Unavailable };
            assert_eq!(code, expected, "{case}");
        }
    }
}

/// Sends `count` requests to a model that answers none until the stream accepts no more. Expects the stream to accept
/// `expected` of them, and to answer all in the end.
async fn flood(config: &str, count: i32, size: usize, expected: usize) {
    let (release, released) = mpsc::channel::<()>();
    let released = std::sync::Mutex::new(released);
    let serving = Serving::new(config, move |request: BackendRequest| {
        // Blocks until the other end is dropped.
        let _ = released.lock().unwrap().recv();
        echo(request);
    });
    let contents = Bytes::from(vec![0; size]);
    let requests = iter((0..count).map(move |value| {
        let mut request = number("m", &value.to_string(), 0);
        request.inputs[0].shape = vec![(size / 4) as i64];
        request.raw_input_contents = vec![contents.clone()];
        request
    }));
    let mut client = serving.client();
    let reading = tokio::spawn(async move {
        let mut answers = client.model_stream_infer(requests).await.unwrap().into_inner();
        let mut seen = 0;
        while let Some(message) = answers.message().await.unwrap() {
            assert_eq!(message.infer_response.unwrap().id, seen.to_string());
            seen += 1;
        }
        seen
    });
    let model = serving.server.model(ScopedName::everywhere("m"), None).unwrap();
    // The model is executing one of them.
    while model.pending() < expected - 1 {
        tokio::task::yield_now().await;
    }
    for _ in 0..1000 {
        tokio::task::yield_now().await;
        assert_eq!(model.pending(), expected - 1, "no more are taken in");
    }
    drop(release);
    assert_eq!(reading.await.unwrap(), count);
}

#[tokio::test(flavor = "multi_thread")]
async fn small_requests_queue_at_the_model_not_in_the_connection() {
    flood(NUMBER, 10_000, 4, 10_000).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn flood_of_large_requests_is_held_back_by_the_byte_limit() {
    let size = 2 << 20;
    let taken_in = load::MAX_BYTES.div_ceil(size + load::REQUEST_BYTES);
    flood(&NUMBER.replace("dims: [ 1 ]", "dims: [ -1 ]"), 150, size, taken_in).await;
}

/// Typed contents of many elements, classes of a large output and its compression take long: only long work may use the
/// runtime's blocking thread, which is occupied.
#[test]
fn calls_are_answered_while_another_call_waits_for_long_work() {
    const COUNT: i64 = 100_000;
    let config = r#"
        input { name: "IN" data_type: TYPE_INT32 dims: [ -1 ] }
        output { name: "OUT" data_type: TYPE_INT32 dims: [ -1 ] }
    "#;
    let mut typed = number("m", "a", 0);
    typed.inputs[0].shape = vec![COUNT];
    let mut classified = typed.clone();
    let mut compressed = typed.clone();
    typed.raw_input_contents.clear();
    let contents = InferTensorContents { int_contents: (0..COUNT as i32).collect(), ..Default::default() };
    typed.inputs[0].contents = Some(contents);
    classified.raw_input_contents = vec![(0..COUNT as i32).flat_map(i32::to_le_bytes).collect()];
    compressed.raw_input_contents.clone_from(&classified.raw_input_contents);
    classified.outputs = vec![InferRequestedOutputTensor {
        name: "OUT".into(),
        parameters: [("classification".into(), parameter(ParameterChoice::Int64Param(2)))].into(),
    }];
    let runtime = Builder::new_current_thread().enable_all().max_blocking_threads(1).build().unwrap();
    runtime.block_on(async {
        let options = GrpcOptions { compression: Compression::Any, ..GrpcOptions::default() };
        let serving = Serving::of_models(&[("m", config.into())], options, echo);
        let plain = serving.client();
        let compressing = |format| serving.client().accept_compressed(format);
        let last = (COUNT - 1).to_le_bytes()[..4].to_vec();
        for (request, client, expected) in [
            (typed, plain.clone(), last.clone()),
            (classified, plain, b"\x0b\0\0\x0099999:99999\x0b\0\0\x0099998:99998".to_vec()),
            (compressed.clone(), compressing(CompressionEncoding::Gzip), last.clone()),
            (compressed, compressing(CompressionEncoding::Deflate), last),
        ] {
            let (open, gate) = mpsc::channel::<()>();
            let occupied = spawn_blocking(move || gate.recv());
            let (mut unary, mut stream) = (client.clone(), client);
            let answer = tokio::spawn({
                let request = request.clone();
                async move { unary.model_infer(request).await.unwrap().into_inner() }
            });
            let streamed = tokio::spawn(async move {
                let mut answers = stream.model_stream_infer(iter([request])).await.unwrap().into_inner();
                answers.message().await.unwrap().unwrap().infer_response.unwrap()
            });
            for _ in 0..50 {
                serving.client().server_live(ServerLiveRequest {}).await.unwrap();
                sleep(Duration::from_millis(2)).await;
            }
            assert!(!answer.is_finished() && !streamed.is_finished());
            open.send(()).unwrap();
            occupied.await.unwrap().unwrap();
            for answer in [answer.await.unwrap(), streamed.await.unwrap()] {
                assert!(answer.raw_output_contents[0].ends_with(&expected));
            }
        }
    });
}
