//! Replies are the same with and without hyper.

use std::time::Duration;

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::testing::{Admin, Echo, Serving, serving, serving_with};
use crate::{Router, TransportOptions};

const LAST: &[u8] = b"GET /live HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";

/// Not plain, so that hyper has the connection afterwards.
const UNUSUAL: &[u8] = b"HEAD /live HTTP/1.1\r\nHost: x\r\n\r\n";

fn faces() -> Serving {
    serving(Router::from(Echo::default()).and(Admin::restricted()))
}

/// Sends pieces over a connection of its own, and returns all replies without their dates.
async fn replies(serving: &Serving, pieces: &[Vec<u8>], by_hyper: bool) -> String {
    let mut stream = serving.connect().await;
    if by_hyper {
        stream.write_all(UNUSUAL).await.unwrap();
        let mut reply = Vec::new();
        while !reply.ends_with(b"\r\n\r\n") {
            stream.read_buf(&mut reply).await.unwrap();
        }
    }
    let (mut reading, mut writing) = stream.into_split();
    let writes = async {
        for piece in pieces {
            // A server that has refused a request may have closed the connection.
            if writing.write_all(piece).await.is_err() {
                break;
            }
            for _ in 0..20 {
                yield_now().await;
            }
        }
    };
    let mut received = Vec::new();
    let reads = async {
        let _ = reading.read_to_end(&mut received).await;
    };
    timeout(Duration::from_secs(20), async { tokio::join!(writes, reads) })
        .await
        .expect("the server answers");
    let text = String::from_utf8_lossy(&received);
    text.split_inclusive("\r\n").filter(|line| !line.starts_with("date: ")).collect()
}

async fn check(serving: &Serving, pieces: &[Vec<u8>]) -> String {
    let expected = replies(serving, pieces, true).await;
    let sent: Vec<_> = pieces.iter().map(|piece| String::from_utf8_lossy(piece)).collect();
    assert_eq!(replies(serving, pieces, false).await, expected, "{sent:?}");
    expected
}

fn request(method: &str, path: &str, headers: &[&str], body: &[u8]) -> Vec<u8> {
    let headers: String = headers.iter().map(|header| format!("{header}\r\n")).collect();
    let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

#[tokio::test]
async fn replies_are_those_of_hyper() {
    let serving = faces();
    for (request, statuses) in [
        (request("GET", "/live", &[], b""), "200 200"),
        (request("GET", "/live?x=1", &["Content-Length: 3"], b"abc"), "200 200"),
        (request("GET", "/nowhere", &[], b""), "404 200"),
        (request("POST", "/nowhere", &["Content-Length: 3"], b"abc"), "404 200"),
        (request("GET", "/echo", &[], b""), "405 200"),
        (request("POST", "/live", &["content-length: 0"], b""), "200 200"),
        (request("GET", "/pages/a/versions/1", &[], b""), "403 200"),
        (request("GET", "/pages/a/versions/1", &["Key: v"], b""), "200 200"),
        (request("GET", "/stream", &[], b""), "200 200"),
        (request("GET", "/stream", &["Connection: close"], b""), "200"),
        (request("POST", "/echo", &["Content-Length: 3"], b"abc"), "200 200"),
        (request("POST", "/echo", &["Content-Length: 3", "Accept-Encoding: gzip"], b"abc"), "200 200"),
        (request("POST", "/echo", &["Content-Length: 3", "Connection: Keep-Alive"], b"abc"), "200 200"),
        (request("POST", "/echo", &["Content-Length: 3", "connection: CLOSE"], b"abc"), "200"),
        (request("POST", "/echo", &["Content-Length: 4096"], &[b'x'; 4096]), "200 200"),
        (request("POST", "/echo", &["Content-Length: 4097"], &[b'x'; 4097]), "413 200"),
        (request("POST", "/echo", &["Transfer-Encoding: chunked"], b"1\r\na\r\n0\r\n\r\n"), "200 200"),
        (request("POST", "/echo", &["Content-Length: 3", "Expect: 100-continue"], b"abc"), "100 200 200"),
        (request("POST", "/echo", &["Content-Length: 3", "Content-Length: 4"], b"abc"), ""),
        (request("POST", "/echo", &["Content-Length: x"], b"abc"), ""),
        (request("POST", "/headers", &["X-Ab: 1", "x-AB: 2", "Content-Length: 0"], b""), "200 200"),
        (b"GET  /live HTTP/1.1\r\n\r\n".to_vec(), "400"),
        (b"GET /live HTTP/1.0\r\nHost: x\r\n\r\n".to_vec(), "200"),
        (b"\r\nGET /live HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(), "200 200"),
        (b"GET /live HTTP/1.1\nHost: x\n\n".to_vec(), "200 200"),
    ] {
        let replies = check(&serving, &[request.clone(), LAST.to_vec()]).await;
        let seen: Vec<_> = replies.split("HTTP/1.").skip(1).map(|reply| &reply[2..5]).collect();
        if !statuses.is_empty() {
            assert_eq!(seen.join(" "), statuses, "{}: {replies}", String::from_utf8_lossy(&request));
        }
    }
}

#[tokio::test]
async fn two_thousand_requests_at_once_are_answered_in_order() {
    let serving = faces();
    let body = |index: usize| format!("{index:>width$}", width = index % 7);
    let requests = (0..2000).map(|index| {
        let body = body(index);
        request("POST", "/echo", &[&format!("Content-Length: {}", body.len())], body.as_bytes())
    });
    let sent: Vec<u8> = requests.flatten().chain(LAST.iter().copied()).collect();
    let replies = check(&serving, &[sent]).await;
    let bodies: Vec<_> = replies.split("\r\n\r\n").skip(1).take(2000).collect();
    for (index, reply) in bodies.iter().enumerate() {
        assert!(reply.starts_with(&body(index)), "{index}: {reply}");
    }
}

#[tokio::test]
async fn names_of_headers_are_spelled_as_sent_in_every_request() {
    let serving = faces();
    let requests = ["X-Ab", "x-AB", "x-ab", "X-aB", "x-AB"]
        .map(|name| request("POST", "/headers", &[&format!("{name}: 1"), "Content-Length: 0"], b""));
    for pieces in [vec![requests.concat(), LAST.to_vec()], [requests.to_vec(), vec![LAST.to_vec()]].concat()]
    {
        let replies = replies(&serving, &pieces, false).await;
        let names: Vec<_> = replies.match_indices("Host ").map(|(at, _)| &replies[at + 5..at + 9]).collect();
        assert_eq!(names, ["X-Ab", "x-AB", "x-ab", "X-aB", "x-AB"], "{replies}");
    }
}

#[tokio::test]
async fn client_that_leaves_gives_up_its_request() {
    let options = TransportOptions { max_connections: Some(1), ..TransportOptions::default() };
    let face = Echo::default();
    let held = face.held.clone();
    let serving = serving_with(face, options);
    // The rest of the head or of the body arrives later, or another request has arrived already.
    for (first, second) in [("", ""), ("POST /ho", "ld"), ("POST /hold", " HTTP/1.1\r\n")] {
        let mut stream = serving.connect().await;
        let whole = "POST /hold HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab";
        stream.write_all(first.as_bytes()).await.unwrap();
        yield_now().await;
        stream.write_all(second.as_bytes()).await.unwrap();
        stream.write_all(&whole.as_bytes()[first.len() + second.len()..]).await.unwrap();
        held.notified().await;
        drop(stream);
        // The only slot is free again, although the request was never released.
        assert_eq!(status_of_live(serving.connect().await).await, "200");
    }
}

async fn status_of_live(mut stream: TcpStream) -> String {
    stream.write_all(LAST).await.unwrap();
    let mut reply = String::new();
    timeout(Duration::from_secs(20), stream.read_to_string(&mut reply)).await.unwrap().unwrap();
    reply[9..12].to_owned()
}

/// A request in one of many spellings, valid or not.
fn requests() -> impl Strategy<Value = Vec<u8>> {
    let method = prop_oneof![
        4 => Just("POST"),
        4 => Just("GET"),
        1 => prop::sample::select(vec!["HEAD", "PUT", "OPTIONS", "get", "CONNECT"]),
    ];
    let paths =
        ["/live", "/echo", "/stream", "/pages/a/versions/1", "/x", "*", "http://x/live", "/a b", "/%zz"];
    let names = [
        "Content-Length",
        "Key",
        "connection",
        "X",
        "Transfer-Encoding",
        "upgrade",
        "Accept-Encoding",
        "bad name",
    ];
    let values = [
        "0",
        "3",
        "+3",
        "3, 3",
        "keep-alive",
        "close",
        "gzip",
        "chunked",
        "100-continue",
        "v",
        "",
        "\u{e9}",
        "a\tb",
    ];
    let header = (prop::sample::select(names.to_vec()), prop::sample::select(values.to_vec()));
    let headers = prop::collection::vec(header, 0..4);
    let length = prop_oneof![8 => 0..40_usize, 1 => 4090..4100_usize, 1 => 16_000..40_000_usize];
    (method, prop::sample::select(paths.to_vec()), headers, length, any::<bool>()).prop_map(
        |(method, path, headers, length, is_announced)| {
            // With an unread body that arrives later than its head, hyper closes the connection.
            let is_read = method == "POST";
            let is_announced = is_announced && is_read;
            let headers = headers.iter().filter(|(name, _)| is_read || *name != "Content-Length");
            let mut lines: Vec<_> = headers.map(|(name, value)| format!("{name}: {value}")).collect();
            if is_announced {
                lines.push(format!("content-length: {length}"));
            }
            let lines: Vec<_> = lines.iter().map(String::as_str).collect();
            request(method, path, &lines, &vec![b'x'; if is_announced { length } else { 0 }])
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_requests_in_random_pieces_have_hypers_replies(
        requests in prop::collection::vec(requests(), 1..5),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..5),
    ) {
        let sent: Vec<u8> = requests.concat();
        let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(sent.len())).collect();
        cuts.sort_unstable();
        let mut pieces = Vec::new();
        let mut start = 0;
        for cut in cuts.into_iter().chain([sent.len()]) {
            pieces.push(sent[start..cut].to_vec());
            start = cut;
        }
        pieces.push(LAST.to_vec());
        Runtime::new().unwrap().block_on(async { check(&faces(), &pieces).await; });
    }
}
