//! Connections on real sockets, with time that passes only when nothing else can happen.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep};

use super::*;
use crate::testing::{Serving, empty_server, http_options, request, serve, server};

async fn serving() -> Serving {
    serve(empty_server(), http_options()).await
}

async fn is_live(stream: &mut TcpStream) -> bool {
    if stream.write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n").await.is_err() {
        return false;
    }
    let mut answer = [0; 1024];
    let length = stream.read(&mut answer).await.unwrap_or(0);
    answer[..length].starts_with(b"HTTP/1.1 200 ")
}

/// How long the connection stays open after these bytes, if at all closed by the other side.
async fn closed_after(bytes: &[u8]) -> Duration {
    let mut stream = serving().await.connect().await;
    stream.write_all(bytes).await.unwrap();
    let start = Instant::now();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_stays_open_for_hours() {
    let mut stream = serving().await.connect().await;
    assert!(is_live(&mut stream).await);
    sleep(Duration::from_secs(6 * 3600)).await;
    assert!(is_live(&mut stream).await);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_stops_within_a_head_or_a_body_is_given_up() {
    for request in [
        b"GET /v2/health/li".as_slice(),
        b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{}",
    ] {
        let waited = closed_after(request).await;
        assert!((60..=80).contains(&waited.as_secs()), "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_head_that_trickles_is_given_up_all_the_same() {
    let (mut reader, mut writer) = serving().await.connect().await.into_split();
    let start = Instant::now();
    let trickle = tokio::spawn(async move {
        while writer.write_all(b"G").await.is_ok() {
            sleep(Duration::from_secs(5)).await;
        }
    });
    let mut answer = Vec::new();
    let _ = reader.read_to_end(&mut answer).await;
    assert!(start.elapsed() < Duration::from_secs(90), "{:?}", start.elapsed());
    trickle.abort();
}

#[tokio::test(start_paused = true)]
async fn shutdown_closes_idle_connections_and_takes_no_new_ones() {
    let Serving { address, shutdown, serving } = serving().await;
    let mut idle = TcpStream::connect(address).await.unwrap();
    assert!(is_live(&mut idle).await);
    shutdown.cancel();
    serving.await.unwrap();
    assert!(!is_live(&mut idle).await);
    assert!(TcpStream::connect(address).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_request_that_waits_behind_a_slow_one_is_not_given_up() {
    let config = r#"input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }"#;
    let held = std::sync::Mutex::new(Vec::new());
    let served =
        serve(server(config, move |request| held.lock().unwrap().push(request)), http_options()).await;
    let mut stream = served.connect().await;
    let body = r#"{"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1], "data": [7]}]}"#;
    stream.write_all(request("POST", "/v2/models/m/infer", "", body).as_bytes()).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    stream.write_all(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 1024];
    let waited = tokio::time::timeout(Duration::from_secs(3600), stream.read(&mut answer)).await;
    assert!(waited.is_err(), "the connection was closed");
}

#[tokio::test(start_paused = true)]
async fn a_first_byte_like_that_of_http2_may_begin_a_request_of_http1() {
    let mut stream = serving().await.connect().await;
    for piece in [b"P".as_slice(), b"RI", b" /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n"] {
        stream.write_all(piece).await.unwrap();
        sleep(Duration::from_secs(1)).await;
    }
    let mut answer = [0; 1024];
    let length = stream.read(&mut answer).await.unwrap();
    assert!(answer[..length].starts_with(b"HTTP/1.1 405 "));
    assert!(is_live(&mut stream).await);
}
