//! Runs the conformance suites of stores and sources on a bucket: `store_conformance ADDRESS WRITE REMOVE [NAME:VALUE ...]`. `WRITE`
//! and `REMOVE` are a method and a URL, with `{path}` for an object's key, or `{name}` for the key as one part of a path, and go
//! with these headers. Credentials are in the environment.
//!
//! This is a program and not a test because the end-to-end tests start the bucket's server, and make it misbehave.

use std::cell::Cell;
use std::env;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use hyper::Request;
use hyper::header::CONTENT_LENGTH;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use nereid_object_stores::{Address, CacheOptions, CloudOptions, Clouds, Patience};
use nereid_repository::conformance::{StoreUnderTest, check_store};
use nereid_repository::{Store, check_source};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use tempfile::TempDir;
use tokio::runtime::Runtime;

/// Writes to the bucket, past what is tested.
struct Writer {
    runtime: Runtime,
    client: Client<HttpConnector, Full<Bytes>>,
    write: String,
    remove: String,
    headers: Vec<(String, String)>,
}

impl Writer {
    fn send(&self, what: &str, key: &str, contents: &[u8]) {
        let (method, url) = what.split_once(' ').expect("a method and a URL");
        let name = utf8_percent_encode(key, NON_ALPHANUMERIC).to_string();
        let url = url.replace("{path}", &name.replace("%2F", "/")).replace("{name}", &name);
        // Some stores insist on a length.
        let mut request = Request::builder().method(method).uri(url).header(CONTENT_LENGTH, contents.len());
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        let request = request.body(Full::new(Bytes::copy_from_slice(contents))).expect("a URL and headers");
        self.runtime.block_on(async {
            let answer = self.client.request(request).await.expect("an answer of the store");
            let status = answer.status();
            let text = answer.into_body().collect().await.expect("its body").to_bytes();
            assert!(status.is_success(), "{status} {}", String::from_utf8_lossy(&text));
        });
    }
}

/// A folder of the bucket, and what reads it.
struct Folder<'a> {
    writer: &'a Writer,
    name: String,
    address: Address,
    clouds: Clouds,
    _cache: TempDir,
}

impl StoreUnderTest for Folder<'_> {
    type Store = Arc<dyn Store>;

    fn store(&self) -> Arc<dyn Store> {
        self.clouds.open(self.address.clone()).expect("a store")
    }

    fn put(&self, path: &str, contents: &[u8]) {
        self.writer.send(&self.writer.write, &format!("{}/{path}", self.name), contents);
    }

    fn remove(&self, path: &str) {
        self.writer.send(&self.writer.remove, &format!("{}/{path}", self.name), b"");
    }
}

fn main() {
    let mut arguments = env::args().skip(1);
    let mut next = |what: &str| arguments.next().unwrap_or_else(|| panic!("{what} is missing"));
    let (address, write, remove) = (next("ADDRESS"), next("WRITE"), next("REMOVE"));
    let header = |header: String| {
        let (name, value) = header.split_once(':').expect("NAME:VALUE");
        (name.to_owned(), value.to_owned())
    };
    let writer = Writer {
        runtime: Runtime::new().expect("a runtime"),
        client: Client::builder(TokioExecutor::new()).build_http(),
        write,
        remove,
        headers: arguments.map(header).collect(),
    };
    let count = Cell::new(0);
    let make = || {
        count.set(count.get() + 1);
        let name = format!("conformance-{}", count.get());
        let cache = tempfile::tempdir().expect("a folder");
        let options = CloudOptions {
            cache: CacheOptions { directory: Some(cache.path().to_owned()), ..CacheOptions::default() },
            // Faults come at once, and often.
            patience: Patience {
                stall: Duration::from_secs(1),
                first_pause: Duration::from_millis(5),
                attempts: 10,
                ..Patience::default()
            },
            ..CloudOptions::default()
        };
        let text = format!("{address}/{name}");
        let address = Address::parse(&text).expect("an address of a cloud").expect("a valid address");
        Folder {
            writer: &writer,
            name,
            address,
            clouds: Clouds::new(options).expect("clouds"),
            _cache: cache,
        }
    };
    check_store(make);
    check_source(make);
    println!("the store conforms");
}
