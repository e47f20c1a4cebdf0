//! Files as browsers request them: media types, compression, revalidation, and a folder that never changes.

use std::io::Write as _;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::*;
use crate::testing::{Echo, Serving, serving, status};
use crate::{Router, reply};

const SCRIPT: &[u8] = &[b'a'; 4000];

fn packed(name: &'static str, plain: &[u8]) -> PackedFile {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
    encoder.write_all(plain).unwrap();
    PackedFile { name, gzip: encoder.finish().unwrap().leak() }
}

fn pages_with(script: &[u8]) -> Pages {
    let fallback = || reply::bytes(StatusCode::NOT_FOUND, "text/html", "no such page");
    let properties = Properties { prefix: "/console/", fallback, ..Properties::default() };
    let page = packed("index.html", b"<script src={folder}/app.js>");
    let files =
        [page, packed("app.js", script), packed("logo.png", b"\x89PNG"), packed("parts/data.bin", b"x")];
    Pages::new(properties, "/", "index.html", &files)
}

fn pages() -> Pages {
    pages_with(SCRIPT)
}

/// The path of a file.
fn path(name: &str) -> String {
    let pages = pages();
    let found = pages.paths().find(|path| path.ends_with(name)).map(str::to_owned);
    found.unwrap()
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
    let page = format!("<script src={}>", path("app.js"));
    for (path, media_type, caching, body) in [
        ("/".to_owned(), "text/html; charset=utf-8", "no-cache", page.as_bytes()),
        (path("app.js"), "text/javascript; charset=utf-8", FOREVER, SCRIPT),
        (path("logo.png"), "image/png", FOREVER, b"\x89PNG"),
        (path("parts/data.bin"), "application/octet-stream", FOREVER, b"x"),
    ] {
        let file = site.ask("GET", &path, "", b"").await;
        assert_eq!(header(&file, "content-type"), Some(media_type), "{path}");
        assert_eq!(header(&file, "x-content-type-options"), Some("nosniff"));
        assert_eq!(header(&file, "cache-control"), Some(caching));
        let policy = header(&file, "content-security-policy").unwrap();
        assert!(policy.starts_with("default-src 'self'; ") && !policy.contains("unsafe"), "{policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{policy}");
        assert!(file.ends_with(&[b"\r\n\r\n", body].concat()), "{path}");
    }
}

const FOREVER: &str = "public, max-age=31536000, immutable";

#[tokio::test]
async fn known_content_is_not_sent_again() {
    let site = site();
    for (path, encoding) in
        [("/".to_owned(), ""), (path("app.js"), ""), (path("app.js"), "Accept-Encoding: gzip\r\n")]
    {
        let page = site.ask("GET", &path, encoding, b"").await;
        let tag = header(&page, "etag").unwrap().to_owned();
        for known in [tag.clone(), format!("\"x\", {tag}"), format!("W/{tag}"), "*".to_owned()] {
            let headers = format!("{encoding}If-None-Match: {known}\r\n");
            let again = site.ask_text("GET", &path, &headers, "").await;
            assert_eq!(status(&again), "304", "{known}");
            assert!(again.ends_with("\r\n\r\n"), "{again}");
            assert_eq!(header(again.as_bytes(), "etag"), Some(tag.as_str()));
        }
        let other = format!("{encoding}If-None-Match: \"x\"\r\n");
        assert!(site.ask("GET", &path, &other, b"").await.starts_with(b"HTTP/1.1 200 "));
    }
}

#[tokio::test]
async fn files_are_sent_compressed_to_clients_that_accept_it() {
    let site = site();
    let page = site.ask("GET", &path("app.js"), "Accept-Encoding: gzip\r\n", b"").await;
    assert_eq!(header(&page, "content-encoding"), Some("gzip"));
    assert!(page.len() < SCRIPT.len() / 2);
    let plain = site.ask("GET", &path("app.js"), "Accept-Encoding: br\r\n", b"").await;
    assert_eq!(header(&plain, "content-encoding"), None);
}

#[test]
fn changed_file_changes_the_folder_of_all() {
    let other = pages_with(b"b");
    let paths: Vec<_> = other.paths().collect();
    assert_eq!(paths.len(), 4);
    for path in pages().paths().filter(|path| *path != "/") {
        assert!(!paths.contains(&path), "{path}");
    }
}

#[tokio::test]
async fn unknown_paths_get_the_reply_of_their_prefix() {
    let site = site();
    assert!(site.ask_text("GET", "/console/gone", "", "").await.ends_with("no such page"));
    assert!(site.ask_text("GET", "/gone", "", "").await.ends_with(r#"{"error":"Not Found"}"#));
    let wrong = site.ask_text("POST", &path("app.js"), "", "").await;
    assert_eq!((status(&wrong), header(wrong.as_bytes(), "allow")), ("405", Some("GET, HEAD")));
    let head = site.ask_text("HEAD", &path("app.js"), "", "").await;
    assert_eq!((status(&head), header(head.as_bytes(), "content-length")), ("200", Some("4000")));
    assert!(head.ends_with("\r\n\r\n"));
}
