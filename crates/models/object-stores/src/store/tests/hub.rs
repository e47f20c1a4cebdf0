//! A repository of the hub as a store, on a server of the crate's tests.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use nereid_repository::conformance::{StoreUnderTest, check_store};
use nereid_repository::{Store, check_source};
use ring::digest::{Algorithm, SHA1_FOR_LEGACY_USE_ONLY, SHA256, digest};
use tempfile::TempDir;

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};

use crate::digests::hex;
use crate::testing::{Server, clouds_with};
use crate::{Address, CacheOptions, Clouds};

/// A repository of which each change is a commit.
struct Commits {
    /// A unique name.
    name: String,
    files: RefCell<BTreeMap<String, Vec<u8>>>,
    server: Server,
    clouds: Clouds,
    _cache: TempDir,
}

impl Commits {
    fn new() -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let name = format!("owner/models-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let (cache, server) = (tempfile::tempdir().unwrap(), Server::start());
        let endpoint = format!("http://{}", server.address);
        let options = CacheOptions { directory: Some(cache.path().to_owned()), ..CacheOptions::default() };
        let clouds = clouds_with(options, &[("HF_ENDPOINT", &endpoint), ("HF_TOKEN", "the-token")]);
        Self { name, files: RefCell::default(), server, clouds, _cache: cache }
    }

    fn commit(&self) {
        let (files, name) = (self.files.borrow(), &self.name);
        let text: String = files.iter().map(|(path, contents)| format!("{path:?} {contents:?}")).collect();
        let commit = hash(&SHA1_FOR_LEGACY_USE_ONLY, text.as_bytes());
        let item = |(path, contents): (&String, &Vec<u8>)| {
            let key = format!("{name}/resolve/{commit}/{path}");
            self.server.put(&key, contents);
            let (size, blob) =
                (contents.len(), [format!("blob {}\0", contents.len()).as_bytes(), contents].concat());
            // Some files are large: they have a digest of their own.
            let lfs = format!(r#", "lfs": {{"oid": "{}", "size": {size}}}"#, hash(&SHA256, contents));
            let lfs = if size % 2 == 0 { &lfs } else { "" };
            let oid = hash(&SHA1_FOR_LEGACY_USE_ONLY, &blob);
            format!(r#"{{"type": "file", "path": "{path}", "size": {size}, "oid": "{oid}"{lfs}}}"#)
        };
        let items: Vec<_> = files.iter().map(item).collect();
        let tree = format!("[{}]", items.join(", "));
        self.server.put(
            &format!("api/models/{name}/tree/{}", utf8_percent_encode(&commit, NON_ALPHANUMERIC)),
            tree.as_bytes(),
        );
        let revision = format!(r#"{{"sha": "{commit}"}}"#);
        self.server.put(&format!("api/models/{name}/revision/main"), revision.as_bytes());
    }
}

fn hash(algorithm: &'static Algorithm, contents: &[u8]) -> String {
    hex(digest(algorithm, contents).as_ref())
}

impl StoreUnderTest for Commits {
    type Store = Arc<dyn Store>;

    fn store(&self) -> Arc<dyn Store> {
        let address = Address::parse(&format!("hf://{}", self.name)).unwrap().unwrap();
        self.clouds.open(address).unwrap()
    }

    fn put(&self, path: &str, contents: &[u8]) {
        self.files.borrow_mut().insert(path.to_owned(), contents.to_owned());
        self.commit();
    }

    fn remove(&self, path: &str) {
        self.files.borrow_mut().remove(path);
        self.commit();
    }
}

#[test]
fn a_repository_of_the_hub_is_a_store() {
    check_store(Commits::new);
}

#[test]
fn models_come_from_the_hub() {
    check_source(Commits::new);
}
