//! Connections in memory, under paused time: how long they last, and what ends them.

use std::collections::BTreeMap;

use bytes::Bytes;
use h2::client::{self, SendRequest};
use h2::{Ping, PingPong, Reason, RecvStream};
use http::{HeaderMap, Request};
use nereid_core::{Server, ServerOptions};
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

mod draining;
mod resets;
mod slow_clients;

use super::*;
use crate::GrpcOptions;
use crate::proto::ModelInferResponse;
use crate::testing::{Serving, echo, number};

const MINUTE: Duration = Duration::from_secs(60);

/// A health status as a message: SERVING and NOT_SERVING.
const READY: &[u8] = &[0, 0, 0, 0, 2, 8, 1];
const NOT_READY: &[u8] = &[0, 0, 0, 0, 2, 8, 2];

/// A connection to a server without models, and its outcome.
struct Connection {
    requests: SendRequest<Bytes>,
    pings: PingPong,
    /// The result of the client's side of the connection.
    ended: JoinHandle<Result<(), h2::Error>>,
    /// The server's side.
    served: JoinHandle<()>,
    server: Arc<Server>,
    shutdown: CancellationToken,
}

fn server() -> Arc<Server> {
    Server::new(ServerOptions::default(), BTreeMap::new(), Arc::new(BTreeMap::new()))
}

/// The client's end of a served connection.
fn served(
    options: TransportOptions,
    server: &Arc<Server>,
    shutdown: &CancellationToken,
) -> (DuplexStream, JoinHandle<()>) {
    served_with_room(1 << 16, options, server, shutdown)
}

/// Like `served`, with a pipe of this capacity.
fn served_with_room(
    room: usize,
    options: TransportOptions,
    server: &Arc<Server>,
    shutdown: &CancellationToken,
) -> (DuplexStream, JoinHandle<()>) {
    let (near, far) = duplex(room);
    let calls = Calls::new(Arc::clone(server), GrpcOptions::default(), shutdown.clone());
    (near, tokio::spawn(serve_connection(far, calls, options, Arc::default(), shutdown.clone())))
}

async fn connected(options: TransportOptions) -> Connection {
    let (server, shutdown) = (server(), CancellationToken::new());
    server.start(None).unwrap();
    let (near, served) = served(options, &server, &shutdown);
    let (requests, mut connection) = client::handshake(near).await.unwrap();
    let pings = connection.ping_pong().unwrap();
    Connection { requests, pings, ended: tokio::spawn(connection), served, server, shutdown }
}

impl Connection {
    /// The headers and the stream of messages that a call with an empty message is answered with.
    async fn call(&mut self, path: &str) -> Result<(HeaderMap, RecvStream), h2::Error> {
        let request = Request::post(format!("http://x{path}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())
            .unwrap();
        let mut requests = self.requests.clone().ready().await?;
        let (answer, mut body) = requests.send_request(request, false)?;
        body.send_data(Bytes::from_static(&[0; 5]), true)?;
        let (head, body) = answer.await?.into_parts();
        Ok((head.headers, body))
    }

    /// Opens a call that stays open as long as the connection.
    async fn watch(&mut self) -> RecvStream {
        let (_, mut statuses) = self.call("/grpc.health.v1.Health/Watch").await.unwrap();
        assert_eq!(next(&mut statuses).await.unwrap(), READY);
        statuses
    }

    /// Whether a short call is answered.
    async fn answers(&mut self) -> bool {
        let Ok((_, mut body)) = self.call("/grpc.health.v1.Health/Check").await else { return false };
        next(&mut body).await.is_ok_and(|message| message == READY)
    }

    /// Sends a ping and waits for its answer.
    async fn ping(&mut self) -> Result<(), h2::Error> {
        self.pings.ping(Ping::opaque()).await.map(drop)
    }

    /// The reason with which the server ended the connection.
    async fn reason(self) -> Option<Reason> {
        self.ended.await.unwrap().err().and_then(|error| error.reason())
    }
}

async fn next(body: &mut RecvStream) -> Result<Bytes, h2::Error> {
    body.data().await.unwrap_or_else(|| Ok(Bytes::new()))
}

/// Options with these rules for pings.
fn limited(rules: PingRules) -> TransportOptions {
    TransportOptions { pings: Some(rules), ..TransportOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn pings_are_unlimited_without_rules() {
    let mut connection = connected(TransportOptions::default()).await;
    for _ in 0..1000 {
        connection.ping().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_client_that_pings_too_often_gets_a_goaway() {
    let mut connection = connected(limited(PingRules::default())).await;
    for _ in 0..3 {
        connection.ping().await.unwrap();
    }
    assert!(connection.ping().await.is_err());
    assert_eq!(connection.reason().await, Some(Reason::ENHANCE_YOUR_CALM));
}

#[tokio::test(start_paused = true)]
async fn client_with_open_call_may_ping_every_five_minutes() {
    let mut connection = connected(limited(PingRules::default())).await;
    let _call = connection.watch().await;
    for _ in 0..20 {
        connection.ping().await.unwrap();
        sleep(5 * MINUTE).await;
    }
    assert!(connection.answers().await);
}

#[tokio::test(start_paused = true)]
async fn client_without_calls_may_ping_only_if_permitted() {
    let mut connection = connected(limited(PingRules::default())).await;
    assert!(connection.answers().await, "a call that is over counts no longer");
    let mut pings = 0;
    while connection.ping().await.is_ok() {
        pings += 1;
        sleep(5 * MINUTE).await;
    }
    assert_eq!(pings, 3);
    let mut connection = connected(limited(PingRules { without_calls: true, ..PingRules::default() })).await;
    for _ in 0..20 {
        connection.ping().await.unwrap();
        sleep(5 * MINUTE).await;
    }
}

#[tokio::test(start_paused = true)]
async fn client_receiving_answers_may_ping_freely() {
    let mut connection = connected(limited(PingRules::default())).await;
    for _ in 0..20 {
        connection.ping().await.unwrap();
        assert!(connection.answers().await);
    }
}

#[tokio::test(start_paused = true)]
async fn unanswered_keepalive_ping_closes_the_connection() {
    let options = TransportOptions {
        keepalive_time: Some(MINUTE),
        keepalive_timeout: Duration::from_secs(5),
        ..TransportOptions::default()
    };
    let (mut near, served) = served(options, &server(), &CancellationToken::new());
    // A client's preface, its settings, and the acknowledgement of the server's.
    near.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0\0\0\0\x04\x01\0\0\0\0")
        .await
        .unwrap();
    let start = Instant::now();
    let mut sent = Vec::new();
    near.read_to_end(&mut sent).await.unwrap();
    assert_eq!(start.elapsed().as_secs(), 65);
    served.await.unwrap();
    // A client that answers pings stays connected.
    let mut connection = connected(options).await;
    sleep(60 * MINUTE).await;
    assert!(connection.answers().await);
}

#[tokio::test(start_paused = true)]
async fn silent_connection_is_closed_after_the_first_frame_timeout() {
    for beginning in [b"".as_slice(), b"PRI * HTTP/2.0\r\n"] {
        let (mut near, served) = served(TransportOptions::default(), &server(), &CancellationToken::new());
        near.write_all(beginning).await.unwrap();
        let start = Instant::now();
        served.await.unwrap();
        assert_eq!(start.elapsed(), FIRST_FRAME_TIMEOUT);
    }
    let mut connection = connected(TransportOptions::default()).await;
    sleep(2 * FIRST_FRAME_TIMEOUT).await;
    assert!(connection.answers().await);
}

#[tokio::test]
async fn non_http2_client_is_rejected() {
    let (mut near, served) = served(TransportOptions::default(), &server(), &CancellationToken::new());
    near.write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    timeout(MINUTE, served).await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn connection_past_max_age_drains_its_calls() {
    let options = TransportOptions { max_age: Some(MINUTE), ..TransportOptions::default() };
    let mut connection = connected(options).await;
    let mut call = connection.watch().await;
    sleep(Duration::from_secs(53)).await;
    assert!(connection.answers().await);
    sleep(Duration::from_secs(14)).await;
    assert!(!connection.answers().await);
    sleep(60 * MINUTE).await;
    connection.server.begin_shutdown();
    assert_eq!(next(&mut call).await.unwrap(), NOT_READY);
    drop(call);
    connection.served.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn connection_past_max_age_is_closed_after_the_grace_period() {
    let options = TransportOptions {
        max_age: Some(MINUTE),
        max_age_grace: Some(Duration::from_secs(10)),
        ..TransportOptions::default()
    };
    let mut connection = connected(options).await;
    let mut call = connection.watch().await;
    let start = Instant::now();
    assert!(next(&mut call).await.is_err());
    assert!((63..=77).contains(&start.elapsed().as_secs()), "{:?}", start.elapsed());
    connection.served.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn non_inference_answers_may_be_delayed() {
    for delay in [None, Some(Duration::from_secs(2)), Some(MINUTE)] {
        let mut connection = connected(TransportOptions { delay, ..TransportOptions::default() }).await;
        for (call, is_delayed) in [
            ("ServerLive", true),
            ("ModelMetadata", true),
            ("ServerMetadata", true),
            ("ModelInfer", false),
            ("ModelStreamInfer", false),
        ] {
            let start = Instant::now();
            let answer = connection.call(&format!("/inference.GRPCInferenceService/{call}")).await;
            assert!(answer.is_ok(), "{call}");
            let expected = delay.filter(|_| is_delayed).unwrap_or_default();
            assert_eq!(start.elapsed().as_secs(), expected.as_secs(), "{call}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn shutdown_notifies_watchers_and_closes_connections() {
    let mut connection = connected(TransportOptions::default()).await;
    let mut call = connection.watch().await;
    connection.server.begin_shutdown();
    connection.shutdown.cancel();
    assert_eq!(next(&mut call).await.unwrap(), NOT_READY);
    assert_eq!(next(&mut call).await.unwrap(), "");
    let trailers = call.trailers().await.unwrap().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
    assert_eq!(connection.ended.await.unwrap().map_err(|error| error.to_string()), Ok(()));
    connection.served.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn shutdown_does_not_wait_for_idle_clients() {
    const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = [PREFACE, b"\0\0\0\x04\0\0\0\0\0"].concat();
    let half_a_frame = [&settings, b"\0\0\x30\x01\x04".as_slice()].concat();
    // Bytes sent before, pipe capacity for unread answers, and seconds until the connection is closed.
    for (sent, room, seconds) in [
        (b"".as_slice(), 1024, 0..=1),
        (b"PRI * HT", 1024, 0..=1),
        (PREFACE, 1024, 0..=1),
        (&settings, 1024, 5..=10),
        (&half_a_frame, 1024, 5..=10),
        // Perhaps they still read it.
        (&settings, 50, 299..=310),
    ] {
        let (server, shutdown) = (server(), CancellationToken::new());
        let (mut near, served) = served_with_room(room, TransportOptions::default(), &server, &shutdown);
        near.write_all(sent).await.unwrap();
        sleep(Duration::from_millis(10)).await;
        shutdown.cancel();
        let start = Instant::now();
        served.await.unwrap();
        assert!(seconds.contains(&start.elapsed().as_secs()), "{sent:?}, {room}: {:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn reflection_stream_ends_at_shutdown() {
    let connection = connected(TransportOptions::default()).await;
    for version in ["v1", "v1alpha"] {
        let request = Request::post(format!(
            "http://x/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo"
        ))
        .header("content-type", "application/grpc")
        .body(())
        .unwrap();
        let mut requests = connection.requests.clone().ready().await.unwrap();
        let (answer, mut body) = requests.send_request(request, false).unwrap();
        // The request field that lists the services.
        body.send_data(Bytes::from_static(&[0, 0, 0, 0, 2, 0x3a, 0]), false).unwrap();
        let mut body = answer.await.unwrap().into_body();
        let services = next(&mut body).await.unwrap();
        let text = String::from_utf8_lossy(&services);
        for service in ["inference.GRPCInferenceService", "grpc.health.v1.Health"] {
            assert!(text.contains(service), "{text}");
        }
        if version == "v1alpha" {
            connection.shutdown.cancel();
            assert_eq!(next(&mut body).await.unwrap(), "");
            assert_eq!(body.trailers().await.unwrap().unwrap()["grpc-status"], "14");
        }
    }
    connection.served.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn watchers_receive_each_health_change() {
    let (server, shutdown) = (server(), CancellationToken::new());
    let (near, served) = served(TransportOptions::default(), &server, &shutdown);
    let (requests, mut connection) = client::handshake(near).await.unwrap();
    let pings = connection.ping_pong().unwrap();
    let ended = tokio::spawn(connection);
    let mut connection = Connection { requests, pings, ended, served, server, shutdown };
    let (_, mut statuses) = connection.call("/grpc.health.v1.Health/Watch").await.unwrap();
    assert_eq!(next(&mut statuses).await.unwrap(), NOT_READY);
    connection.server.start(None).unwrap();
    assert_eq!(next(&mut statuses).await.unwrap(), READY);
    connection.server.begin_shutdown();
    assert_eq!(next(&mut statuses).await.unwrap(), NOT_READY);
}

#[test]
fn max_ages_are_jittered_by_at_most_a_tenth() {
    let ages: Vec<_> = (0..100).map(|_| with_jitter(MINUTE)).collect();
    assert!(ages.iter().all(|age| (54.0..=66.0).contains(&age.as_secs_f64())));
    assert!(ages.iter().any(|age| *age != ages[0]));
}

#[tokio::test]
async fn large_tensor_round_trips_unchanged() {
    const BYTES: &str = r#"
        input { name: "IN" data_type: TYPE_UINT8 dims: [ -1 ] }
        output { name: "OUT" data_type: TYPE_UINT8 dims: [ -1 ] }
    "#;
    let serving = Serving::new(BYTES, echo);
    let (near, far) = duplex(1 << 16);
    let options = TransportOptions::default();
    tokio::spawn(serve_connection(
        far,
        serving.calls.clone(),
        options,
        Arc::default(),
        serving.shutdown.clone(),
    ));
    let (mut requests, connection) = client::handshake(near).await.unwrap();
    tokio::spawn(connection);

    let contents: Bytes = (0..1 << 20).map(|index: u32| (index / 251) as u8).collect();
    let mut message = number("m", "large", 0);
    message.inputs[0].datatype = "UINT8".into();
    message.inputs[0].shape = vec![1 << 20];
    message.raw_input_contents = vec![contents.clone()];
    for _ in 0..2 {
        let mut body = vec![0];
        body.extend((message.encoded_len() as u32).to_be_bytes());
        message.encode(&mut body).unwrap();
        let request = Request::post("http://x/inference.GRPCInferenceService/ModelInfer");
        let request = request.header("content-type", "application/grpc").body(()).unwrap();
        let (answer, mut sender) = requests.send_request(request, false).unwrap();
        sender.send_data(body.into(), true).unwrap();
        let mut answer = answer.await.unwrap().into_body();
        let mut received = Vec::new();
        while let Some(data) = answer.data().await {
            let data = data.unwrap();
            answer.flow_control().release_capacity(data.len()).unwrap();
            received.extend_from_slice(&data);
        }
        assert_eq!(answer.trailers().await.unwrap().unwrap()["grpc-status"], "0");
        let response = ModelInferResponse::decode(&received[5..]).unwrap();
        assert_eq!((response.id.as_str(), &response.outputs[0].shape[..]), ("large", &[1 << 20][..]));
        assert!(response.raw_output_contents == [contents.clone()]);
        requests = requests.ready().await.unwrap();
    }
}
