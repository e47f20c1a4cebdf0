//! HTTP/2 in clear text: concurrent requests on one connection, each with its own timeout.

use std::future::poll_fn;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Method, StatusCode};
use nereid_net::io_runtime::Spawner;
use smallvec::SmallVec;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::time::{Instant, sleep};

use super::*;
use crate::reply::{Contents, Pieces};
use crate::testing::{Echo, MAX_BODY};

type AnyBody = Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>>;
type Client = SendRequest<AnyBody>;

/// A client over an in-memory connection, so that no bytes are in transit while time is paused.
async fn connected(face: Echo) -> Client {
    let (near, far) = tokio::io::duplex(1 << 16);
    let (options, shutdown) = (TransportOptions::default(), CancellationToken::new());
    let ending = AtomicBool::new(false);
    let pace = Pace::new(true, None);
    tokio::spawn(converse(
        far,
        Arc::new(Transport { router: face.into(), options, shutdown, ending }),
        pace,
        Identity::default(),
        CancellationToken::new(),
    ));
    let (client, connection) = handshake(Spawner, TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    client
}

fn whole(body: &str) -> AnyBody {
    Box::pin(Contents::Whole(Pieces::new(SmallVec::from_iter([Bytes::copy_from_slice(body.as_bytes())]))))
}

fn request(method: Method, path: &str, body: AnyBody) -> Request<AnyBody> {
    Request::builder().method(method).uri(format!("http://x{path}")).header("X-One", "1").body(body).unwrap()
}

/// The status and the body of the reply.
async fn ask(client: &mut Client, method: Method, path: &str, body: &str) -> (StatusCode, String) {
    client.ready().await.unwrap();
    let reply = client.send_request(request(method, path, whole(body))).await.unwrap();
    let (status, mut body) = (reply.status(), reply.into_body());
    let mut text = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        text.extend_from_slice(frame.unwrap().data_ref().unwrap());
    }
    (status, String::from_utf8(text).unwrap())
}

#[tokio::test]
async fn http2_behaves_like_http1() {
    let mut client = connected(Echo::default()).await;
    assert_eq!(ask(&mut client, Method::GET, "/live", "").await.0, StatusCode::OK);
    assert_eq!(ask(&mut client, Method::POST, "/echo", "7").await, (StatusCode::OK, "7".into()));
    assert!(ask(&mut client, Method::POST, "/headers", "").await.1.contains("x-one"));
    let long = " ".repeat(MAX_BODY + 1);
    assert_eq!(ask(&mut client, Method::POST, "/echo", &long).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(ask(&mut client, Method::PUT, "/live", "").await.0, StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(ask(&mut client, Method::GET, "/nowhere", "").await.0, StatusCode::NOT_FOUND);
    let (_, events) = ask(&mut client, Method::GET, "/stream", "").await;
    assert_eq!(events, "data: x\n\n".repeat(3));
}

#[tokio::test(start_paused = true)]
async fn slow_reply_does_not_delay_others() {
    let face = Echo::default();
    let release = Arc::clone(&face.release);
    let mut client = connected(face).await;
    let mut other = client.clone();
    let waiting = tokio::spawn(async move { ask(&mut other, Method::POST, "/hold", "").await });
    for _ in 1..20 {
        assert_eq!(ask(&mut client, Method::POST, "/echo", "x").await.0, StatusCode::OK);
        sleep(Duration::from_secs(60)).await;
    }
    release.notify_one();
    assert_eq!(waiting.await.unwrap().0, StatusCode::OK);
    sleep(Duration::from_secs(6 * 3600)).await;
    assert_eq!(ask(&mut client, Method::GET, "/live", "").await.0, StatusCode::OK);
}

/// A body that never ends.
struct Stalled;

impl Body for Stalled {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Pending
    }
}

#[tokio::test(start_paused = true)]
async fn stalled_body_fails_only_its_request() {
    let mut client = connected(Echo::default()).await;
    let start = Instant::now();
    let reply = client.send_request(request(Method::POST, "/echo", Box::pin(Stalled))).await.unwrap();
    assert_eq!(reply.status(), StatusCode::REQUEST_TIMEOUT);
    assert!((60..70).contains(&start.elapsed().as_secs()));
    assert_eq!(ask(&mut client, Method::POST, "/echo", "x").await.0, StatusCode::OK);
}

/// A body of pieces of 10 KiB. Says when the last one was taken.
struct Pushed {
    left: usize,
    sent: Arc<AtomicBool>,
}

impl Body for Pushed {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.left == 0 {
            self.sent.store(true, Ordering::Relaxed);
            return Poll::Ready(None);
        }
        self.left -= 1;
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[0; 10 << 10])))))
    }
}

#[tokio::test(start_paused = true)]
async fn early_refusal_discards_the_rest_of_the_body_within_limits() {
    for (method, path, pieces, status, ends) in [
        (Method::POST, "/nowhere", 1, StatusCode::NOT_FOUND, true),
        (Method::POST, "/nowhere", 90, StatusCode::NOT_FOUND, true),
        (Method::PUT, "/echo", 90, StatusCode::METHOD_NOT_ALLOWED, true),
        (Method::POST, "/echo", 90, StatusCode::PAYLOAD_TOO_LARGE, true),
        (Method::POST, "/nowhere", 100_000, StatusCode::NOT_FOUND, false),
    ] {
        let mut client = connected(Echo::default()).await;
        let sent = Arc::new(AtomicBool::new(false));
        let body = Box::pin(Pushed { left: pieces, sent: Arc::clone(&sent) });
        let reply = client.send_request(request(method, path, body)).await.unwrap();
        assert_eq!(reply.status(), status);
        assert_eq!(sent.load(Ordering::Relaxed), ends, "{path}, {pieces} pieces");
        assert_eq!(ask(&mut client, Method::POST, "/echo", "x").await.0, StatusCode::OK);
    }
}

#[tokio::test(start_paused = true)]
async fn unread_reply_times_out_without_affecting_others() {
    // The client's window, the seconds between two reads of the reply, and whether the reply arrives completely.
    for (window, pause, is_whole) in [(1000, 0, true), (1000, 60, true), (0, 60, false), (0, 0, false)] {
        let (near, far) = tokio::io::duplex(1 << 16);
        let (options, shutdown) = (TransportOptions::default(), CancellationToken::new());
        let (face, ending) = (Echo::default(), AtomicBool::new(false));
        tokio::spawn(converse(
            far,
            Arc::new(Transport { router: face.into(), options, shutdown, ending }),
            Pace::new(true, None),
            Identity::default(),
            CancellationToken::new(),
        ));
        let mut builder = hyper::client::conn::http2::Builder::new(Spawner);
        builder.initial_stream_window_size(window);
        let (mut client, connection) = builder.handshake(TokioIo::new(near)).await.unwrap();
        let connection = tokio::spawn(connection);
        let long = "x".repeat(MAX_BODY);
        let reply = client.send_request(request(Method::POST, "/echo", whole(&long))).await.unwrap();
        let mut body = reply.into_body();
        let taking = tokio::spawn(async move {
            let mut taken = 0;
            loop {
                sleep(Duration::from_secs(pause)).await;
                match poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
                    Some(Ok(frame)) => taken += frame.data_ref().map_or(0, Bytes::len),
                    Some(Err(_)) => return (taken, false),
                    None => return (taken, true),
                }
            }
        });
        while !taking.is_finished() {
            // Without a window, the client can only receive replies without a body.
            assert_eq!(ask(&mut client, Method::GET, "/live", "").await.0, StatusCode::OK);
            sleep(Duration::from_secs(30)).await;
        }
        assert_eq!(
            taking.await.unwrap(),
            (if is_whole { MAX_BODY } else { 0 }, is_whole),
            "{window}, {pause} s"
        );
        assert!(!connection.is_finished());
    }
}

/// A frame without padding.
fn frame(kind: u8, flags: u8, stream: u8, contents: &[u8]) -> Vec<u8> {
    [&[0, 0, contents.len() as u8, kind, flags, 0, 0, 0, stream], contents].concat()
}

#[tokio::test(start_paused = true)]
async fn requests_sent_with_the_acknowledgement_of_the_end_are_answered() {
    let (mut near, far) = tokio::io::duplex(1 << 16);
    let (options, shutdown) = (TransportOptions::default(), CancellationToken::new());
    let ending = AtomicBool::new(false);
    let transport = Transport { router: Echo::default().into(), options, shutdown: shutdown.clone(), ending };
    tokio::spawn(converse(
        far,
        Arc::new(transport),
        Pace::new(true, None),
        Identity::default(),
        CancellationToken::new(),
    ));
    near.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
    near.write_all(&frame(4, 0, 0, &[])).await.unwrap();
    let (mut answered, mut ended) = (Vec::new(), Vec::new());
    let mut head = [0; 9];
    while near.read_exact(&mut head).await.is_ok() {
        let mut contents = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        near.read_exact(&mut contents).await.unwrap();
        match (head[3], head[4]) {
            // The settings of the server.
            (4, 0) => {
                near.write_all(&frame(4, 1, 0, &[])).await.unwrap();
                shutdown.cancel();
            }
            // Its ping. GET, http, the path `/live` and the authority `x`, then room for the reply.
            (6, 0) => {
                near.write_all(&frame(6, 1, 0, &contents)).await.unwrap();
                near.write_all(&frame(1, 5, 1, b"\x82\x86\x04\x05/live\x01\x01x")).await.unwrap();
                near.write_all(&frame(8, 0, 1, &[0, 0, 0, 5])).await.unwrap();
            }
            // A head. The status 200 stands first.
            (1, _) => answered.push(contents[0]),
            (7, _) => ended.push(contents[..8].to_vec()),
            _ => {}
        }
    }
    assert_eq!(answered, [0x88]);
    assert_eq!(ended, [[0x7f, 0xff, 0xff, 0xff, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0, 0, 0]]);
}
