//! Files as browsers request them: media types, compression, revalidation, and links that never change.

use super::*;
use crate::testing::{Echo, Serving, serving, status};
use crate::{Router, reply};

const SCRIPT: &[u8] = &[b'a'; 4000];

fn pages() -> Pages {
    let fallback = || reply::bytes(StatusCode::NOT_FOUND, "text/html", "no such page");
    let properties = Properties { prefix: "/console/", fallback, ..Properties::default() };
    Pages::new(
        properties,
        &[
            ("/console/", b"<p>hello</p>"),
            ("/console/app.js", SCRIPT),
            ("/console/logo.png", b"\x89PNG"),
            ("/console/data.bin", b"x"),
        ],
    )
}

fn site() -> Serving {
    serving(Router::from(Echo::default()).and(pages()))
}

/// The value of a header in a reply.
fn header<'a>(reply: &'a [u8], name: &str) -> Option<&'a str> {
    let end = reply.windows(4).position(|window| window == b"\r\n\r\n").unwrap();
    let head = std::str::from_utf8(&reply[..end]).unwrap();
    head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
}

#[tokio::test]
async fn files_have_the_media_types_of_their_names() {
    let site = site();
    for (path, media_type, body) in [
        ("/console/", "text/html; charset=utf-8", "<p>hello</p>"),
        ("/console/app.js", "text/javascript; charset=utf-8", std::str::from_utf8(SCRIPT).unwrap()),
        ("/console/data.bin", "application/octet-stream", "x"),
    ] {
        let page = site.ask_text("GET", path, "", "").await;
        assert_eq!(header(page.as_bytes(), "content-type"), Some(media_type), "{path}");
        assert_eq!(header(page.as_bytes(), "x-content-type-options"), Some("nosniff"));
        assert_eq!(header(page.as_bytes(), "cache-control"), Some("no-cache"));
        assert!(page.ends_with(&format!("\r\n\r\n{body}")), "{path}");
    }
    let image = site.ask("GET", "/console/logo.png", "", b"").await;
    assert_eq!(header(&image, "content-type"), Some("image/png"));
}

#[tokio::test]
async fn known_content_is_not_sent_again() {
    let site = site();
    for encoding in ["", "Accept-Encoding: gzip\r\n"] {
        let page = site.ask("GET", "/console/app.js", encoding, b"").await;
        let tag = header(&page, "etag").unwrap().to_owned();
        for known in [tag.clone(), format!("\"x\", {tag}"), format!("W/{tag}"), "*".to_owned()] {
            let headers = format!("{encoding}If-None-Match: {known}\r\n");
            let again = site.ask_text("GET", "/console/app.js", &headers, "").await;
            assert_eq!(status(&again), "304", "{known}");
            assert!(again.ends_with("\r\n\r\n"), "{again}");
            assert_eq!(header(again.as_bytes(), "etag"), Some(tag.as_str()));
        }
        let other = format!("{encoding}If-None-Match: \"x\"\r\n");
        assert!(site.ask("GET", "/console/app.js", &other, b"").await.starts_with(b"HTTP/1.1 200 "));
    }
}

#[tokio::test]
async fn long_files_are_compressed_for_clients_that_accept_it() {
    let site = site();
    let page = site.ask("GET", "/console/app.js", "Accept-Encoding: gzip\r\n", b"").await;
    assert_eq!(header(&page, "content-encoding"), Some("gzip"));
    assert!(page.len() < SCRIPT.len() / 2);
    let short = site.ask("GET", "/console/data.bin", "Accept-Encoding: gzip\r\n", b"").await;
    assert_eq!(header(&short, "content-encoding"), None);
}

#[tokio::test]
async fn links_with_the_hash_may_be_cached_for_ever() {
    let link = pages().link("/console/app.js").unwrap();
    assert_eq!(pages().link("/console/gone.js"), None);
    let site = site();
    let pinned = site.ask("GET", &link, "", b"").await;
    assert_eq!(header(&pinned, "cache-control"), Some("public, max-age=31536000, immutable"));
    let stale = site.ask("GET", "/console/app.js?v=0123456789abcdef", "", b"").await;
    assert_eq!(header(&stale, "cache-control"), Some("no-cache"));
}

#[tokio::test]
async fn unknown_paths_get_the_reply_of_their_prefix() {
    let site = site();
    assert!(site.ask_text("GET", "/console/gone", "", "").await.ends_with("no such page"));
    assert!(site.ask_text("GET", "/gone", "", "").await.ends_with(r#"{"error":"Not Found"}"#));
    let wrong = site.ask_text("POST", "/console/app.js", "", "").await;
    assert_eq!((status(&wrong), header(wrong.as_bytes(), "allow")), ("405", Some("GET, HEAD")));
    let head = site.ask_text("HEAD", "/console/app.js", "", "").await;
    assert_eq!((status(&head), header(head.as_bytes(), "content-length")), ("200", Some("4000")));
    assert!(head.ends_with("\r\n\r\n"));
}
