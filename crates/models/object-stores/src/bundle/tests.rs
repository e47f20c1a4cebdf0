//! Archives of the web and artifacts of a registry, on one server.

use std::cell::RefCell;
use std::collections::BTreeMap;

use nereid_core::backend_api::block_on;
use nereid_repository::ObjectKind;
use nereid_repository::check_source;
use nereid_repository::conformance::{StoreUnderTest, check_store};
use ring::digest::{SHA256, digest};
use tempfile::TempDir;

use super::*;
use crate::testing::{Fault, Server, clouds_with};
use crate::{Address, CacheOptions, Clouds};

/// The form in which the models are stored.
#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A tar file of the web.
    Archive,
    /// An artifact with a layer for each file.
    Files,
    /// An artifact with a layer for the whole folder.
    Folder,
    /// An image with a layer for each model's folder, and one of which nothing is used.
    Image,
}

const KINDS: [Kind; 4] = [Kind::Archive, Kind::Files, Kind::Folder, Kind::Image];

/// Models that are packed and sent again whenever one of their files changes.
struct Packed {
    kind: Kind,
    files: RefCell<BTreeMap<String, Vec<u8>>>,
    server: Server,
    clouds: Clouds,
    _cache: TempDir,
}

impl Packed {
    fn new(kind: Kind) -> Self {
        let cache = tempfile::tempdir().unwrap();
        let options = CacheOptions { directory: Some(cache.path().to_owned()), ..CacheOptions::default() };
        let (clouds, server) = (clouds_with(options, &[]), Server::start());
        server.put("v2/", b"{}");
        Self { kind, files: RefCell::default(), server, clouds, _cache: cache }
    }

    fn open(&self) -> Arc<dyn Store> {
        let address = self.server.address;
        let address = match self.kind {
            Kind::Archive => format!("http://{address}/bucket/models.tar"),
            Kind::Files | Kind::Folder | Kind::Image => format!("oci://{address}/team/models:v1"),
        };
        self.clouds.open(Address::parse(&address).unwrap().unwrap()).unwrap()
    }

    fn change(&self, path: &str, contents: Option<&[u8]>) {
        let mut files = self.files.borrow_mut();
        match contents {
            Some(contents) => files.insert(path.to_owned(), contents.to_owned()),
            None => files.remove(path),
        };
        let all = || files.iter().map(|(path, contents)| (path.clone(), contents.as_slice()));
        let unpack = r#", "io.deis.oras.content.unpack": "true""#;
        match self.kind {
            Kind::Archive => self.server.put("models.tar", &tar(all())),
            Kind::Files => {
                self.put_artifact(all().map(|(path, contents)| (contents.to_vec(), annotations(&path, ""))));
            }
            Kind::Folder => {
                self.put_artifact([(tar(all()), annotations("models", unpack))]);
            }
            Kind::Image => {
                let inside = || all().map(|(path, contents)| (format!("models/{path}"), contents));
                let models: BTreeSet<_> = files.keys().map(|path| path.split('/').next().unwrap()).collect();
                let of =
                    |model: &str| tar(inside().filter(|(path, _)| path.split('/').nth(1) == Some(model)));
                let layers =
                    models.into_iter().map(of).chain([tar([("etc/passwd".into(), &b"x"[..])].into_iter())]);
                self.put_artifact(layers.map(|layer| (layer, "{}".to_owned())));
            }
        }
    }

    /// Puts an artifact of layers with annotations.
    fn put_artifact(&self, layers: impl IntoIterator<Item = (Vec<u8>, String)>) {
        let describe = |(contents, annotations): (Vec<u8>, String)| {
            let digest = sha256(&contents);
            self.server.put(&format!("v2/team/models/blobs/{digest}"), &contents);
            format!(
                r#"{{"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": "{digest}",
                    "size": {}, "annotations": {annotations}}}"#,
                contents.len()
            )
        };
        let layers: Vec<_> = layers.into_iter().map(describe).collect();
        let manifest = format!(r#"{{"schemaVersion": 2, "layers": [{}]}}"#, layers.join(", "));
        self.server.put("v2/team/models/manifests/v1", manifest.as_bytes());
    }
}

fn annotations(title: &str, more: &str) -> String {
    format!(r#"{{"org.opencontainers.image.title": "{title}"{more}}}"#)
}

fn sha256(contents: &[u8]) -> String {
    format!("sha256:{}", hex(digest(&SHA256, contents).as_ref()))
}

fn tar<'a>(files: impl Iterator<Item = (String, &'a [u8])>) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, contents) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(contents.len() as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, path, contents).unwrap();
    }
    archive.into_inner().unwrap()
}

/// Waits for what is new, as loads do. Looks do not: until a newer archive is fetched, they see the older one.
#[derive(Debug)]
struct Patient(Arc<dyn Store>);

impl Patient {
    async fn prepared(&self, as_of: Instant) -> Result<&dyn Store> {
        self.0.prepare(&Progress::default(), as_of).await?;
        Ok(&*self.0)
    }
}

impl Store for Patient {
    fn location(&self) -> &str {
        self.0.location()
    }

    fn list<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Entry>> {
        Box::pin(async move { self.prepared(as_of).await?.list(folder, as_of).await })
    }

    fn stat<'a>(&'a self, folder: &'a str, as_of: Instant) -> SourceFuture<'a, Vec<Object>> {
        Box::pin(async move { self.prepared(as_of).await?.stat(folder, as_of).await })
    }

    fn fetch<'a>(&'a self, fetch: Fetch<'a>) -> SourceFuture<'a, FetchedFolder> {
        self.0.fetch(fetch)
    }
}

impl StoreUnderTest for Packed {
    type Store = Patient;

    fn store(&self) -> Patient {
        Patient(self.open())
    }

    fn put(&self, path: &str, contents: &[u8]) {
        self.change(path, Some(contents));
    }

    fn remove(&self, path: &str) {
        self.change(path, None);
    }
}

#[test]
fn each_kind_is_a_store() {
    KINDS.into_iter().for_each(|kind| check_store(|| Packed::new(kind)));
}

#[test]
fn models_come_from_each_kind() {
    KINDS.into_iter().for_each(|kind| check_source(|| Packed::new(kind)));
}

#[test]
fn the_older_contents_are_shown_as_soon_as_a_fetch_of_newer_ones_begins() {
    for kind in KINDS {
        let packed = Packed::new(kind);
        packed.put("m/1/model", &[1; 1000]);
        let store = packed.open();
        let sizes = || {
            let objects = block_on(store.stat("m", Instant::now())).unwrap();
            let size = |object: Object| match object.kind {
                ObjectKind::File { size, .. } => Some(size),
                ObjectKind::Folder => None,
            };
            objects.into_iter().filter_map(size).collect::<Vec<_>>()
        };
        assert_eq!(sizes(), [1000], "{kind:?}");
        packed.put("m/1/model", &[2; 2000]);
        // The manifest still comes.
        packed.server.misbehave(|request| {
            let key = request.key.as_deref().unwrap_or_default();
            (key.contains("/blobs/") || key == "models.tar").then_some(Fault::StallAfter(0))
        });
        assert_eq!(sizes(), [1000], "{kind:?}");
        let [status] = packed.clouds.status().try_into().unwrap();
        assert!(
            status.fetching.is_some_and(|(fetched, total)| fetched == 0 && total >= 2000),
            "{kind:?}: {status:?}"
        );
        packed.server.behave();
        block_on(store.prepare(&Progress::default(), Instant::now())).unwrap();
        assert_eq!(sizes(), [2000], "{kind:?}");
        assert!(packed.clouds.status()[0].fetching.is_none());
    }
}
