//! Several faces on one port: routes, methods, restricted groups, limits and compression.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use std::sync::Arc;

use nereid_protocol::{Access, Authentication, Authenticator, Authorizer, Denied, Principal};

use super::*;
use crate::cors::Cors;
use crate::testing::{Admin, Echo, MAX_BODY, request_head, serving, status};

#[tokio::test]
async fn first_face_with_the_route_handles_the_request() {
    let serving = serving(Router::from(Echo::default()).and(Admin::restricted()));
    let echoed = serving.ask_text("POST", "/echo", "", "body").await;
    assert!(echoed.starts_with("HTTP/1.1 200 OK\r\n") && echoed.ends_with("\r\n\r\nbody"), "{echoed}");
    let page = serving.ask_text("GET", "/pages/a%20b/versions/3", "key: v\r\n", "").await;
    assert!(page.ends_with("\r\n\r\na b 3"), "{page}");
    assert!(serving.ask_text("POST", "/live", "", "").await.ends_with("pong"));
}

#[tokio::test]
async fn other_paths_and_methods_are_refused() {
    let serving = serving(Router::from(Echo::default()).and(Admin::restricted()));
    for method in ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "BREW"] {
        let reply = serving.ask_text(method, "/live", "", "").await;
        assert_eq!(status(&reply), "405", "{method}");
        assert!(reply.contains("\r\nallow: GET, POST\r\n"), "{reply}");
        assert_eq!(status(&serving.ask_text(method, "/nowhere", "", "").await), "404", "{method}");
    }
    assert_eq!(status(&serving.ask_text("GET", "/pages/a/versions/new", "", "").await), "404");
}

#[tokio::test]
async fn errors_of_the_transport_have_the_form_of_their_face() {
    let mut face = Echo::default();
    face.properties.error_body = Some(|status, message| format!("{status}: {message}").into_bytes());
    let serving = serving(Router::from(face));
    let long = "x".repeat(MAX_BODY + 1);
    for (method, path, body, status, expected) in [
        ("DELETE", "/live", "", "405", "405 Method Not Allowed: Method Not Allowed"),
        ("GET", "/nowhere", "", "404", "404 Not Found: Not Found"),
        ("POST", "/echo", "{\"error\":\"mine\"}", "200", "{\"error\":\"mine\"}"),
        ("POST", "/echo", &long, "413", "bytes; --max-body raises it"),
    ] {
        let reply = serving.ask_text(method, path, "", body).await;
        assert_eq!(crate::testing::status(&reply), status, "{path}");
        assert!(reply.ends_with(expected), "{reply}");
    }
}

#[tokio::test]
async fn port_without_faces_has_no_routes() {
    let serving = serving(Router::default());
    assert_eq!(status(&serving.ask_text("GET", "/live", "", "").await), "404");
}

/// Takes the principal from a header, after a while.
#[derive(Debug)]
struct ByHeader;

impl Authenticator for ByHeader {
    fn authenticate<'a>(&'a self, identity: Identity, head: &'a dyn Head) -> Authentication<'a> {
        Authentication::Pending(Box::pin(async move {
            tokio::task::yield_now().await;
            match head.header("authorization") {
                Some(user) => Ok(identity.with_principal(Principal::new(String::from_utf8_lossy(user)))),
                None => Err(Denied::Unauthenticated("who are you?".to_owned())),
            }
        }))
    }
}

impl Authorizer for ByHeader {
    fn check(&self, caller: &Identity, action: Action, _: Option<&str>) -> Result<(), Denied> {
        let name = caller.principal.as_ref().map_or("", Principal::name);
        match (name, action) {
            ("ann", _) | (_, Action::Health) => Ok(()),
            _ => Err(Denied::Forbidden(format!("{name} may not"))),
        }
    }
}

#[tokio::test]
async fn authenticator_may_wait_and_its_principal_reaches_authorizer_and_face() {
    let access = Access::default().with_authenticator(Arc::new(ByHeader)).with_authorizer(Arc::new(ByHeader));
    let mut face = Echo::default();
    face.properties.access = access;
    let serving = serving(face);
    for (method, path, headers, expected, body) in [
        ("GET", "/principal", "Authorization: ann\r\n", "200", "ann"),
        ("GET", "/principal", "Authorization: bob\r\n", "403", r#"{"error":"bob may not"}"#),
        ("GET", "/live", "Authorization: bob\r\n", "200", ""),
        ("GET", "/live", "", "401", r#"{"error":"who are you?"}"#),
        ("PUT", "/principal", "Authorization: bob\r\n", "403", r#"{"error":"bob may not"}"#),
        ("PUT", "/principal", "Authorization: ann\r\n", "405", r#"{"error":"Method Not Allowed"}"#),
        ("GET", "/nowhere", "", "404", r#"{"error":"Not Found"}"#),
    ] {
        let reply = serving.ask_text(method, path, headers, "").await;
        assert_eq!(status(&reply), expected, "{method} {path} {headers}");
        assert!(reply.ends_with(&format!("\r\n\r\n{body}")), "{reply}");
    }
}

#[tokio::test]
async fn refused_request_is_answered_before_its_body_arrives() {
    let mut face = Echo::default();
    face.properties.access = Access::default().with_authenticator(Arc::new(ByHeader));
    let serving = serving(face);
    let mut stream = serving.connect().await;
    stream.write_all(request_head("POST", "/echo", "", 100).as_bytes()).await.unwrap();
    let mut reply = [0; 13];
    stream.read_exact(&mut reply).await.unwrap();
    assert_eq!(&reply, b"HTTP/1.1 401 ");
}

#[tokio::test]
async fn cors_is_configured_per_face() {
    let open = Echo::with_cors(Cors::new(vec!["*".parse().unwrap()], &[]));
    let serving = serving(Router::from(open).and(Admin::restricted()));
    let allowed = |reply: &str| reply.contains("\r\naccess-control-allow-origin: *\r\n");
    let origin = "Origin: https://example.com\r\n";
    assert!(allowed(&serving.ask_text("GET", "/live", origin, "").await));
    let page = serving.ask_text("GET", "/pages/a/versions/3", &format!("{origin}key: v\r\n"), "").await;
    assert!(status(&page) == "200" && !allowed(&page), "{page}");
}

#[tokio::test]
async fn restricted_group_requires_its_key() {
    let serving = serving(Router::from(Echo::default()).and(Admin::restricted()));
    for (method, headers, expected) in [
        ("GET", "", "403"),
        ("GET", "key: w\r\n", "403"),
        ("GET", "other: v\r\n", "403"),
        ("GET", "Key: v\r\n", "200"),
        ("PUT", "", "403"),
        ("PUT", "key: v\r\n", "405"),
    ] {
        let reply = serving.ask_text(method, "/pages/a/versions/3", headers, "").await;
        assert_eq!(status(&reply), expected, "{method} {headers}");
    }
}

#[tokio::test]
async fn each_face_limits_its_bodies() {
    let serving = serving(Router::from(Echo::default()).and(Admin::restricted()));
    let full = "x".repeat(MAX_BODY);
    assert_eq!(status(&serving.ask_text("POST", "/echo", "", &full).await), "200");
    let long = serving.ask_text("POST", "/echo", "", &format!("{full}x")).await;
    assert!(long.starts_with("HTTP/1.1 413 ") && long.contains("--max-body"), "{long}");
    assert_eq!(status(&serving.ask_text("POST", "/live", "", "x").await), "413");
    let mut stream = serving.connect().await;
    let chunked = "POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n";
    stream.write_all(format!("{chunked}{:x}\r\n{full}x\r\n", MAX_BODY + 1).as_bytes()).await.unwrap();
    let mut reply = [0; 13];
    stream.read_exact(&mut reply).await.unwrap();
    assert_eq!(&reply, b"HTTP/1.1 413 ");
}

#[tokio::test]
async fn refusal_of_a_large_body_reaches_a_client_that_is_still_sending() {
    let serving = serving(Echo::default());
    for (method, path, expected) in
        [("POST", "/nowhere", "404"), ("PUT", "/echo", "405"), ("POST", "/echo", "413")]
    {
        for mebibytes in [2, 4, 7] {
            let body = "x".repeat(mebibytes << 20);
            assert_eq!(status(&serving.ask_text(method, path, "", &body).await), expected, "{mebibytes} MiB");
        }
    }
}

#[tokio::test]
async fn bodies_are_compressed_both_ways() {
    let serving = serving(Echo::default());
    let zip = |bytes: &[u8]| {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    };
    let body = zip(b"hello");
    let plain = serving.ask("POST", "/echo", "Content-Encoding: gzip\r\n", &body).await;
    assert!(plain.ends_with(b"\r\n\r\nhello"));
    let zipped = serving.ask("POST", "/echo", "Accept-Encoding: gzip\r\n", b"hello").await;
    assert!(zipped.ends_with(&body));
    let bomb = zip(&vec![0; MAX_BODY + 1]);
    let refused = serving.ask("POST", "/echo", "Content-Encoding: gzip\r\n", &bomb).await;
    assert!(refused.starts_with(b"HTTP/1.1 400 "));
    let unknown = serving.ask_text("POST", "/echo", "Content-Encoding: br\r\n", "x").await;
    assert!(unknown.starts_with("HTTP/1.1 501 "), "{unknown}");
}

#[tokio::test]
async fn headers_are_spelled_as_written_in_every_request_of_a_connection() {
    let serving = serving(Router::from(Admin::restricted()).and(Echo::default()));
    let mut stream = serving.connect().await;
    for name in ["X-One", "x-TWO"] {
        let head = request_head("POST", "/headers", &format!("{name}: 1\r\n"), 0);
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut reply = vec![0; 4096];
        let length = stream.read(&mut reply).await.unwrap();
        let reply = String::from_utf8_lossy(&reply[..length]);
        assert!(reply.ends_with(&format!(" {name}")), "{reply}");
    }
}

#[tokio::test]
async fn expect_continue_is_answered_before_the_body() {
    let serving = serving(Echo::default());
    let mut stream = serving.connect().await;
    let head = request_head("POST", "/echo", "Expect: 100-continue\r\n", 4);
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut reply = [0; 4096];
    let length = stream.read(&mut reply).await.unwrap();
    assert!(reply[..length].starts_with(b"HTTP/1.1 100 "));
    stream.write_all(b"body").await.unwrap();
    let length = stream.read(&mut reply).await.unwrap();
    assert!(reply[..length].starts_with(b"HTTP/1.1 200 "));

    let nowhere = serving.ask_text("POST", "/nowhere", "Expect: 100-continue\r\n", "").await;
    assert!(nowhere.starts_with("HTTP/1.1 404 "), "{nowhere}");
    let mut stream = serving.connect().await;
    let head = request_head("POST", "/echo", "Expect: 100-continue\r\n", MAX_BODY + 1);
    stream.write_all(head.as_bytes()).await.unwrap();
    let length = stream.read(&mut reply).await.unwrap();
    assert!(reply[..length].starts_with(b"HTTP/1.1 413 "));
}
