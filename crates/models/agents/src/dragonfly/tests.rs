//! A proxy with scripted answers.

use std::future::pending;

use bytes::Bytes;
use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::Builder;
use tokio::task::JoinHandle;

use super::*;

/// Answers one request with this text, and returns the request.
async fn proxy(answer: Vec<u8>) -> (String, JoinHandle<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let request = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).await.unwrap();
            head.push(byte[0]);
        }
        // The client may close the connection early.
        let _ = stream.write_all(&answer).await;
        String::from_utf8(head).unwrap()
    });
    (address, request)
}

fn route(proxy: &str, more: &[(&str, &str)]) -> Arc<dyn Route> {
    let mut parameters = vec![("proxy".to_owned(), proxy.to_owned())];
    parameters.extend(more.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    DragonflyRoutes::new(MetricRegistry::default()).route(&parameters, |_| None).unwrap()
}

fn object(url: &str, size: u64, range: Option<std::ops::Range<u64>>) -> RoutedObject {
    RoutedObject { url: url.to_owned(), etag: Some("e".to_owned()), size, range }
}

async fn read(route: &dyn Route, object: RoutedObject) -> std::result::Result<Vec<u8>, String> {
    let mut answer = route.get(object).await.map_err(|error| error.to_string())?;
    let mut read = Vec::new();
    while let Some(bytes) = answer.body.next().await {
        let bytes: Bytes = bytes.map_err(|error| error.to_string())?;
        read.extend_from_slice(&bytes);
    }
    Ok(read)
}

fn answer(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let length = body.len();
    let head = format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n{headers}\r\n");
    [head.as_bytes(), body].concat()
}

#[tokio::test]
async fn the_proxy_is_asked_for_the_whole_address_with_dragonflys_headers() {
    for (url, host) in [
        ("http://bucket.example:9000/b/m/1/x%20y?X-Amz-Date=1&X-Amz-Signature=s", "bucket.example:9000"),
        ("https://bucket.example/b/x?sig=a%2Bb", "bucket.example"),
    ] {
        let (address, request) = proxy(answer("200 OK", "etag: \"e\"\r\n", b"hello")).await;
        let route = route(&address, &[("filter", "X-Amz-Date,X-Amz-Signature")]);
        assert_eq!(read(&*route, object(url, 5, None)).await.unwrap(), b"hello");
        let request = request.await.unwrap();
        let lines: Vec<_> = request.lines().collect();
        assert_eq!(lines[0], format!("GET {url} HTTP/1.1"));
        let plain = url.split('?').next().unwrap();
        for line in [
            &format!("host: {host}"),
            "x-dragonfly-use-p2p: true",
            "x-dragonfly-filter: X-Amz-Date&X-Amz-Signature",
            "x-dragonfly-filtered-query-params: X-Amz-Date,X-Amz-Signature",
            &format!("x-dragonfly-content-for-calculating-task-id: {plain}#e"),
        ] {
            assert!(lines.contains(&line), "{line}: {request}");
        }
        assert!(!request.contains("range:"), "{request}");
    }
}

#[tokio::test]
async fn failed_fetch_through_the_proxy_is_an_error() {
    let range = || Some(2..4);
    for (bytes, range, expected) in [
        (answer("503 Service Unavailable", "", b""), None, "answers with HTTP status 503"),
        (
            answer("403 Forbidden", "x-dragonfly-error-type: backend\r\n", b""),
            None,
            "answers with HTTP status 403, an error of the backend",
        ),
        (answer("206 Partial Content", "", b"ab"), None, "answers with HTTP status 206"),
        (
            answer("206 Partial Content", "content-range: bytes 0-1/9\r\n", b"ab"),
            range(),
            "brings the range 'bytes 0-1/9' in place of 2-3",
        ),
        (b"what?".to_vec(), None, "invalid HTTP"),
        (Vec::new(), None, "connection closed"),
    ] {
        let (address, _request) = proxy(bytes).await;
        let error = read(&*route(&address, &[]), object("http://h/x", 9, range)).await.unwrap_err();
        assert!(error.contains(expected), "{expected}: {error}");
    }
    let (address, _request) = proxy(answer("200 OK", "", b"")).await;
    let error = read(&*route(&address, &[]), object("no address", 9, None)).await.unwrap_err();
    assert!(error.contains("the object's address"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_proxy_that_is_away_is_left_alone_for_a_while() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let away = format!("http://{address}");
    let (patient, strict) = (route(&away, &[]), route(&away, &[("fallback", "false")]));
    assert!(patient.may_fall_back() && !strict.may_fall_back());
    for route in [&patient, &strict] {
        assert!(read(&**route, object("http://h/x", 5, None)).await.unwrap_err().contains("refused"));
    }
    // The proxy is back, but only the route without a fallback tries it.
    let listener = TcpListener::bind(address).await.unwrap();
    let serving = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            stream.write_all(&answer("200 OK", "", b"hello")).await.unwrap();
            tokio::spawn(async move {
                let _stream = stream;
                pending::<()>().await;
            });
        }
    });
    assert!(read(&*patient, object("http://h/x", 5, None)).await.unwrap_err().contains("refused"));
    assert_eq!(read(&*strict, object("http://h/x", 5, None)).await.unwrap(), b"hello");
    tokio::time::advance(proxy::UNREACHABLE).await;
    assert_eq!(read(&*patient, object("http://h/x", 5, None)).await.unwrap(), b"hello");
    serving.abort();
}

/// A proxy that is silent once its connection is made, or after this many bytes of its answer, is not tried again by
/// routes that have buckets to fall back on.
#[tokio::test(start_paused = true)]
async fn silent_proxy_holds_up_one_fetch_only() {
    for sent in [
        None,
        Some("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n"),
        Some("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhe"),
    ] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let serving = tokio::spawn(async move {
            let mut streams = Vec::new();
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                stream.write_all(sent.unwrap_or_default().as_bytes()).await.unwrap();
                streams.push(stream);
            }
        });
        let (patient, strict) = (route(&address, &[]), route(&address, &[("fallback", "false")]));
        for (route, expected) in [(&patient, [60, 0, 0]), (&strict, [60, 60, 60])] {
            let mut waited = Vec::new();
            for _ in 0..3 {
                let began = tokio::time::Instant::now();
                let error = read(&**route, object("http://h/x", 5, None)).await.unwrap_err();
                assert!(error.contains("60 seconds"), "{error}");
                waited.push(began.elapsed().as_secs());
            }
            assert_eq!(waited, expected, "{sent:?}");
        }
        // Later it is tried again.
        tokio::time::advance(proxy::SILENT).await;
        let began = tokio::time::Instant::now();
        read(&*patient, object("http://h/x", 5, None)).await.unwrap_err();
        assert_eq!(began.elapsed().as_secs(), 60);
        serving.abort();
    }
}

#[test]
fn routes_of_the_same_settings_are_one() {
    let routes = DragonflyRoutes::new(MetricRegistry::default());
    let of = |proxy: &str| {
        let parameters = [("proxy".to_owned(), proxy.to_owned())];
        routes.route(&parameters, |_| None).unwrap()
    };
    let (first, again, other) = (of("http://a:1"), of("http://a:1"), of("http://b:1"));
    assert!(Arc::ptr_eq(&first, &again) && !Arc::ptr_eq(&first, &other));
    drop((first, again));
    drop(of("http://c:1"));
    assert_eq!(lock(&routes.routes).len(), 2);
}

proptest! {
    /// A range arrives complete from proxies with and without support for ranges.
    #[test]
    fn ranges_come_from_any_proxy(size in 1..3000usize, from in 0..3000usize, length in 1..3000usize, knows in any::<bool>()) {
        let (from, end) = (from % size, (from % size + length).min(size));
        let whole: Vec<u8> = (0..size).map(|index| (index % 251) as u8).collect();
        let expected = whole[from..end].to_vec();
        let bytes = match knows {
            true => {
                let headers = format!("content-range: bytes {from}-{}/{size}\r\n", end - 1);
                answer("206 Partial Content", &headers, &expected)
            }
            false => answer("200 OK", "", &whole),
        };
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let (read, request) = runtime.block_on(async {
            let (address, request) = proxy(bytes).await;
            let asked = object("http://h/x", size as u64, Some(from as u64..end as u64));
            (read(&*route(&address, &[]), asked).await, request.await.unwrap())
        });
        prop_assert_eq!(read.unwrap(), expected);
        let wanted = format!("range: bytes={from}-{}\r\n", end - 1);
        prop_assert!(request.contains(&wanted), "{}", request);
    }
}
