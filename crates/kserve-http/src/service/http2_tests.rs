//! HTTP/2 in clear text: many requests over one connection, each watched over by itself.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Method, StatusCode};
use smallvec::SmallVec;
use tokio::time::{Instant, sleep};

use super::*;
use crate::HeaderPattern;
use crate::reply::{Contents, Pieces};
use crate::testing::{echo, http_options, server};

const CONFIG: &str = r#"
    input { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] }
    output { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] }
"#;
const INFER: &str = "/v2/models/m/infer";

type Client = SendRequest<Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>>>;

/// A client over a connection in memory, on which nothing is under way unseen while time is paused.
async fn connected(server: Arc<Server>, options: HttpOptions) -> Client {
    let (near, far) = tokio::io::duplex(1 << 16);
    tokio::spawn(converse(far, Arc::new(Face { server, options }), CancellationToken::new()));
    let (client, connection) = handshake(TokioExecutor::new(), TokioIo::new(near)).await.unwrap();
    tokio::spawn(connection);
    client
}

fn whole(body: &str) -> Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>> {
    Box::pin(Contents::Whole(Pieces::new(SmallVec::from_iter([Bytes::copy_from_slice(body.as_bytes())]))))
}

fn request(
    method: Method,
    path: &str,
    body: Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>>,
) -> Request<Pin<Box<dyn Body<Data = Bytes, Error = Infallible> + Send>>> {
    Request::builder().method(method).uri(format!("http://x{path}")).header("X-One", "1").body(body).unwrap()
}

/// The status and the body of the answer.
async fn asked(client: &mut Client, method: Method, path: &str, body: &str) -> (StatusCode, String) {
    client.ready().await.unwrap();
    let answer = client.send_request(request(method, path, whole(body))).await.unwrap();
    let (status, mut body) = (answer.status(), answer.into_body());
    let mut text = Vec::new();
    while let Some(frame) = poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await {
        text.extend_from_slice(frame.unwrap().data_ref().unwrap());
    }
    (status, String::from_utf8(text).unwrap())
}

fn infer(value: i32) -> String {
    format!(r#"{{"inputs": [{{"name": "IN", "datatype": "INT32", "shape": [1], "data": [{value}]}}]}}"#)
}

#[tokio::test]
async fn it_does_what_http_1_does() {
    let options =
        HttpOptions { forwarded_headers: Some(HeaderPattern::new("x-one").unwrap()), ..http_options() };
    let mut client = connected(server(CONFIG, echo), options).await;
    assert_eq!(asked(&mut client, Method::GET, "/v2/health/live", "").await.0, StatusCode::OK);
    let (status, answer) = asked(&mut client, Method::POST, INFER, &infer(7)).await;
    assert_eq!(status, StatusCode::OK);
    assert!(answer.contains(r#""data":[7]"#) && answer.contains(r#""x-one":"1""#), "{answer}");
    let long = " ".repeat(http_options().max_body_size + 1);
    assert_eq!(asked(&mut client, Method::POST, INFER, &long).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(asked(&mut client, Method::PUT, "/v2", "").await.0, StatusCode::METHOD_NOT_ALLOWED);
    let (_, event) = asked(&mut client, Method::POST, "/v2/models/m/generate_stream", r#"{"IN": 3}"#).await;
    assert!(event.starts_with("data: {") && event.ends_with("\n\n"), "{event}");
}

#[tokio::test(start_paused = true)]
async fn a_slow_answer_holds_up_no_other_and_an_idle_connection_stays() {
    let held = Arc::new(Mutex::new(Vec::new()));
    let keep = Arc::clone(&held);
    let slow = move |request: nereid_core::backend_api::Request| {
        let first = request.inputs[0].contiguous().unwrap()[0] == 0;
        if first { keep.lock().unwrap().push(request) } else { echo(request) }
    };
    let mut client = connected(server(CONFIG, slow), http_options()).await;
    let mut other = client.clone();
    let waiting = tokio::spawn(async move { asked(&mut other, Method::POST, INFER, &infer(0)).await });
    for value in 1..20 {
        assert_eq!(asked(&mut client, Method::POST, INFER, &infer(value)).await.0, StatusCode::OK);
        sleep(Duration::from_secs(60)).await;
    }
    held.lock().unwrap().drain(..).for_each(echo);
    assert_eq!(waiting.await.unwrap().0, StatusCode::OK);
    sleep(Duration::from_secs(6 * 3600)).await;
    assert_eq!(asked(&mut client, Method::GET, "/v2/health/live", "").await.0, StatusCode::OK);
}

/// A body that never comes to its end.
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
async fn a_body_that_stops_is_given_up_and_nothing_else() {
    let mut client = connected(server(CONFIG, echo), http_options()).await;
    let start = Instant::now();
    let answer = client.send_request(request(Method::POST, INFER, Box::pin(Stalled))).await.unwrap();
    assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
    assert!((60..70).contains(&start.elapsed().as_secs()));
    assert_eq!(asked(&mut client, Method::POST, INFER, &infer(1)).await.0, StatusCode::OK);
}
