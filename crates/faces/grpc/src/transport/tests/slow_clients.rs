//! Clients that stop reading answers or stop in the middle of a message, next to clients that do not.
//!
//! Models answer from threads that a paused clock does not control, so the clock is paused after they have answered.

use bytes::BytesMut;
use h2::client::{Builder, Connection, ResponseFuture};
use h2::{FlowControl, SendStream};
use tokio::time::{pause, resume};

use super::*;
use crate::proto::{ModelInferRequest, ModelStreamInferResponse};
use crate::testing::echoed;

/// A model that echoes any number of bytes.
const BYTES: &str = r#"
    input { name: "IN" data_type: TYPE_UINT8 dims: [ -1 ] }
    output { name: "OUT" data_type: TYPE_UINT8 dims: [ -1 ] }
"#;

/// Connects to that model, with a flow-control window of `window` bytes for each answer.
async fn connected(window: u32) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    connected_to(Serving::new(BYTES, echo), window).await
}

/// Like `connected`, to any server.
async fn connected_to(
    serving: Serving,
    window: u32,
) -> (SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>) {
    let (near, far) = duplex(1 << 20);
    tokio::spawn(serve_connection(
        far,
        serving.calls,
        TransportOptions::default(),
        Arc::default(),
        serving.shutdown,
    ));
    let mut builder = Builder::new();
    let builder = builder.initial_window_size(window).initial_connection_window_size(16 << 20);
    let (requests, connection): (_, Connection<_, Bytes>) = builder.handshake(near).await.unwrap();
    (requests, tokio::spawn(connection))
}

/// A message of this length, with its head.
fn message(length: usize) -> Bytes {
    let mut request: ModelInferRequest = number("m", "", 0);
    request.inputs[0].datatype = "UINT8".into();
    request.inputs[0].shape = vec![length as i64];
    request.raw_input_contents = vec![vec![7; length].into()];
    let mut bytes = BytesMut::from(&[0][..]);
    bytes.extend_from_slice(&(request.encoded_len() as u32).to_be_bytes());
    request.encode(&mut bytes).unwrap();
    bytes.freeze()
}

fn call(requests: &mut SendRequest<Bytes>, method: &str) -> (ResponseFuture, SendStream<Bytes>) {
    let request = Request::post(format!("http://x/inference.GRPCInferenceService/{method}"));
    let request = request.header("content-type", "application/grpc").body(()).unwrap();
    requests.send_request(request, false).unwrap()
}

/// Whether a call that involves no model is answered.
async fn answers(requests: &mut SendRequest<Bytes>) -> bool {
    let request = Request::post("http://x/grpc.health.v1.Health/Check");
    let request = request.header("content-type", "application/grpc").body(()).unwrap();
    let (answer, mut body) = requests.send_request(request, false).unwrap();
    body.send_data(Bytes::from_static(&[0; 5]), true).unwrap();
    next(&mut answer.await.unwrap().into_body()).await.is_ok_and(|message| message == READY)
}

/// Takes bytes off an answer, some at a time with a pause behind each. Returns how many there were, whether they were all,
/// and when they ended.
async fn take(mut answer: RecvStream, at_a_time: usize, pause: Duration) -> (usize, bool, Duration) {
    let (start, mut taken, mut unread) = (Instant::now(), 0, 0);
    let mut flow: FlowControl = answer.flow_control().clone();
    loop {
        match answer.data().await {
            None => return (taken, answer.trailers().await.is_ok(), start.elapsed()),
            Some(Err(_)) => return (taken, false, start.elapsed()),
            Some(Ok(data)) => {
                taken += data.len();
                unread += data.len();
                while unread >= at_a_time {
                    sleep(pause).await;
                    let _ = flow.release_capacity(at_a_time);
                    unread -= at_a_time;
                }
            }
        }
    }
}

#[tokio::test]
async fn unread_answer_times_out_without_affecting_others() {
    const LENGTH: usize = 1 << 20;
    // Bytes per read, seconds between reads, and whether the answer arrives completely.
    for (at_a_time, seconds, is_whole) in
        [(1 << 14, 0, true), (1 << 14, 30, true), (1 << 14, 400, false), (16, 1, false)]
    {
        let (mut requests, connection) = connected(1 << 14).await;
        let (answer, mut body) = call(&mut requests, "ModelInfer");
        body.send_data(message(LENGTH), true).unwrap();
        let answer = answer.await.unwrap().into_body();
        pause();
        let taking = tokio::spawn(take(answer, at_a_time, Duration::from_secs(seconds)));
        while !taking.is_finished() {
            assert!(answers(&mut requests).await);
            sleep(MINUTE).await;
        }
        let (taken, ended, after) = taking.await.unwrap();
        assert_eq!(ended, is_whole, "{at_a_time} bytes each {seconds} s: {taken} bytes after {after:?}");
        assert!(is_whole == (taken > LENGTH) && (is_whole || after < 30 * MINUTE), "{taken}, {after:?}");
        assert!(answers(&mut requests).await && !connection.is_finished());
        resume();
    }
}

#[tokio::test]
async fn answer_never_read_times_out() {
    for length in [1, 1000, 100_000] {
        let (mut requests, _connection) = connected(0).await;
        let (answer, mut body) = call(&mut requests, "ModelInfer");
        body.send_data(message(length), true).unwrap();
        let mut answer = answer.await.unwrap().into_body();
        let start = Instant::now();
        pause();
        assert!(answer.data().await.unwrap().is_err());
        assert!((299..=300).contains(&start.elapsed().as_secs()), "{length}: {:?}", start.elapsed());
        resume();
    }
}

#[tokio::test(start_paused = true)]
async fn stalled_message_fails_only_its_call() {
    // Bytes sent first, bytes sent every 20 s after that, and whether the call is answered.
    for (first, then, is_answered) in
        [(1, 0, false), (4, 1, false), (5, 0, false), (1000, 0, false), (1000, 10, false), (1000, 5000, true)]
    {
        for method in ["ModelInfer", "ModelStreamInfer"] {
            let (mut requests, connection) = connected(1 << 20).await;
            let (answer, mut body) = call(&mut requests, method);
            let mut left = message(100_000);
            body.send_data(left.split_to(first), false).unwrap();
            let sending = tokio::spawn(async move {
                while then > 0 && !left.is_empty() {
                    sleep(MINUTE / 3).await;
                    let piece = left.split_to(then.min(left.len()));
                    if body.send_data(piece, left.is_empty()).is_err() {
                        break;
                    }
                }
                std::future::pending::<()>().await;
            });
            let start = Instant::now();
            let answer = answer.await.unwrap();
            let (head, mut answer) = answer.into_parts();
            let mut length = 0;
            while let Some(Ok(data)) = answer.data().await {
                length += data.len();
                answer.flow_control().release_capacity(data.len()).unwrap();
            }
            let trailers = answer.trailers().await.ok().flatten().unwrap_or_default();
            let status = head.headers.get("grpc-status").or(trailers.get("grpc-status")).cloned();
            let what = format!("{method}: {first} bytes, then {then}");
            assert_eq!(length > 100_000, is_answered, "{what}: {status:?} after {:?}", start.elapsed());
            assert_eq!(status.unwrap(), if is_answered { "0" } else { "4" }, "{what}");
            assert!(
                is_answered || (60..90).contains(&start.elapsed().as_secs()),
                "{what}: {:?}",
                start.elapsed()
            );
            assert!(answers(&mut requests).await && !connection.is_finished());
            sending.abort();
        }
    }
}

/// The stream must neither lose responses nor end early, however small the client's window.
#[tokio::test]
async fn slow_reader_of_a_decoupled_stream_gets_every_response() {
    const RESPONSES: usize = 10_000;
    for window in [2000, 1 << 20] {
        let config = format!("{BYTES} model_transaction_policy {{ decoupled: true }}");
        let serving = Serving::new(&config, |request| {
            let response = echoed(&request);
            let responder = request.responder();
            (0..RESPONSES).for_each(|_| responder.send(Ok(response.clone())));
            responder.finish();
        });
        let (mut requests, _connection) = connected_to(serving, window).await;
        let (answer, mut body) = call(&mut requests, "ModelStreamInfer");
        body.send_data(message(3), true).unwrap();
        let mut answer = answer.await.unwrap().into_body();
        let mut received = Vec::new();
        while let Some(data) = answer.data().await {
            let data = data.unwrap();
            // The model is far ahead of the client.
            tokio::task::yield_now().await;
            answer.flow_control().release_capacity(data.len()).unwrap();
            received.extend_from_slice(&data);
        }
        let trailers = answer.trailers().await.unwrap().unwrap();
        assert_eq!(trailers["grpc-status"], "0", "window {window}");
        let (mut count, mut rest) = (0, received.as_slice());
        while let [0, a, b, c, d, left @ ..] = rest {
            let (message, left) = left.split_at(u32::from_be_bytes([*a, *b, *c, *d]) as usize);
            let message = ModelStreamInferResponse::decode(message).unwrap();
            assert_eq!(message.error_message, "");
            assert_eq!(message.infer_response.unwrap().raw_output_contents[0], [7; 3].as_slice());
            (count, rest) = (count + 1, left);
        }
        assert_eq!((count, rest.len()), (RESPONSES, 0), "window {window}");
    }
}

#[tokio::test]
async fn a_stream_may_wait_between_messages() {
    let (mut requests, _connection) = connected(1 << 20).await;
    let (answer, mut body) = call(&mut requests, "ModelStreamInfer");
    body.send_data(message(10), false).unwrap();
    let mut answer = answer.await.unwrap().into_body();
    for silence in [MINUTE, 60 * MINUTE, 600 * MINUTE] {
        assert!(answer.data().await.unwrap().is_ok());
        pause();
        sleep(silence).await;
        resume();
        body.send_data(message(10), false).unwrap();
    }
    assert!(answer.data().await.unwrap().is_ok());
}

#[tokio::test(start_paused = true)]
async fn connection_of_a_client_that_never_reads_is_closed() {
    let (mut near, served) = served(TransportOptions::default(), &server(), &CancellationToken::new());
    // A client's preface, its settings, and pings whose answers it does not read.
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec();
    for _ in 0..100_000 {
        sent.extend(b"\0\0\x08\x06\0\0\0\0\x0012345678");
    }
    let start = Instant::now();
    let _ = near.write_all(&sent).await;
    served.await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 300);
}
