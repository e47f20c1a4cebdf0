//! Connections on real sockets, with time that passes only when nothing else can happen.

use std::collections::BTreeMap;

use nereid_core::ServerOptions;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::{Instant, sleep};

use super::*;

/// A server without models on a port of its own, and a way to stop it.
async fn serving() -> (std::net::SocketAddr, CancellationToken, tokio::task::JoinHandle<()>) {
    let options = ServerOptions {
        name: "test".into(),
        version: "0".into(),
        strict_readiness: true,
        load_threads: 1,
        ..ServerOptions::default()
    };
    let server = Arc::new(Server::new(options, BTreeMap::new(), Arc::new(BTreeMap::new())));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = HttpOptions { max_input_size: 1024, max_body_size: 1024 };
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(crate::serve(listener, server, limits, shutdown.clone()));
    (address, shutdown, serving)
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
    let (address, _shutdown, _serving) = serving().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let start = Instant::now();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    start.elapsed()
}

#[tokio::test(start_paused = true)]
async fn an_idle_connection_stays_open_for_hours() {
    let (address, _shutdown, _serving) = serving().await;
    let mut stream = TcpStream::connect(address).await.unwrap();
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
    let (address, _shutdown, _serving) = serving().await;
    let (mut reader, mut writer) = TcpStream::connect(address).await.unwrap().into_split();
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
    let (address, shutdown, serving) = serving().await;
    let mut idle = TcpStream::connect(address).await.unwrap();
    assert!(is_live(&mut idle).await);
    shutdown.cancel();
    serving.await.unwrap();
    assert!(!is_live(&mut idle).await);
    assert!(TcpStream::connect(address).await.is_err());
}
