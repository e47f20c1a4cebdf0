//! Against a server that speaks S3, and misbehaves.

mod each_cloud;
mod hub;

use std::sync::atomic::{AtomicUsize, Ordering};

use nereid_core::backend_api::{ErrorCode, block_on};
use nereid_repository::check_source;
use nereid_repository::conformance::{StoreUnderTest, check_store};
use nereid_repository::{
    NextPiece, Route, RouteAnswer, RouteBody, RouteError, RouteFuture, RoutedObject, Way,
};
use tempfile::TempDir;

use super::*;
use crate::testing::{Fault, KEYS, Seen as Request, Server, clouds_with};
use crate::{CacheOptions, Clouds};

/// A repository in a bucket, with the cache of its server.
struct Fixture {
    clouds: Clouds,
    server: Server,
    cache: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let cache = tempfile::tempdir().unwrap();
        let clouds = clouds_with(kept_in(&cache), &KEYS);
        Self { clouds, server: Server::start(), cache }
    }

    fn open(&self) -> Arc<dyn Store> {
        self.clouds.open(self.server.at("models")).unwrap()
    }

    /// The files of a model once it was fetched.
    fn fetch(&self, model: &str) -> Result<Vec<(String, Vec<u8>)>> {
        fetch(&*self.open(), model)
    }

    fn cached(&self) -> Vec<std::path::PathBuf> {
        fs::read_dir(self.cache.path().join("files")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }
}

fn kept_in(folder: &TempDir) -> CacheOptions {
    CacheOptions { directory: Some(folder.path().to_owned()), ..CacheOptions::default() }
}

fn fetch(store: &dyn Store, model: &str) -> Result<Vec<(String, Vec<u8>)>> {
    let progress = Progress::default();
    let fetch = Fetch {
        folder: model,
        is_needed: &|_| true,
        progress: &progress,
        as_of: Instant::now(),
        route: None,
    };
    let fetched = block_on(store.fetch(fetch))?;
    let (done, total) = progress.bytes();
    assert_eq!(done, total);
    let objects = block_on(store.stat(model, Instant::now()))?;
    let files = objects.into_iter().filter(|object| object.kind != nereid_repository::ObjectKind::Folder);
    Ok(files.map(|file| (file.path.clone(), fs::read(fetched.path.join(file.path)).unwrap())).collect())
}

/// Bytes that are nowhere the same.
fn bytes(length: usize) -> Vec<u8> {
    (0..length as u64).map(|index| (index.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect()
}

struct UnderTest {
    fixture: Fixture,
}

impl StoreUnderTest for UnderTest {
    type Store = Arc<dyn Store>;

    fn store(&self) -> Arc<dyn Store> {
        self.fixture.open()
    }

    fn put(&self, path: &str, contents: &[u8]) {
        self.fixture.server.put(&format!("models/{path}"), contents);
    }

    fn remove(&self, path: &str) {
        self.fixture.server.remove(&format!("models/{path}"));
    }
}

#[test]
fn it_is_a_store() {
    check_store(|| UnderTest { fixture: Fixture::new() });
}

#[test]
fn models_come_from_it() {
    check_source(|| UnderTest { fixture: Fixture::new() });
}

#[test]
fn one_listing_tells_of_all_models() {
    let fixture = Fixture::new();
    for model in 0..300 {
        fixture.server.put(&format!("models/m{model}/1/model.onnx"), b"x");
    }
    fixture.server.set_page(100);
    let (store, as_of) = (fixture.open(), Instant::now());
    assert_eq!(block_on(store.list("", as_of)).unwrap().len(), 300);
    assert_eq!(fixture.server.requests().len(), 3);
    for model in 0..300 {
        let model = format!("m{model}");
        block_on(store.list(&model, as_of)).unwrap();
        block_on(store.stat(&model, as_of)).unwrap();
    }
    assert_eq!(fixture.server.requests().len(), 0);
    // Later news take one listing of the model.
    fixture.server.put("models/m7/2/model.onnx", b"x");
    let as_of = Instant::now();
    assert_eq!(block_on(store.list("m7", as_of)).unwrap().len(), 2);
    block_on(store.stat("m7", as_of)).unwrap();
    assert_eq!(fixture.server.requests().len(), 1);
    assert!(fixture.server.requests().is_empty());
}

#[test]
fn cached_file_is_not_fetched_again() {
    let fixture = Fixture::new();
    fixture.server.put("models/m/1/model.onnx", &bytes(1000));
    fixture.server.put("models/m/config.pbtxt", b"config");
    let expected = fixture.fetch("m").unwrap();
    // Another server with the same cache.
    let clouds = clouds_with(kept_in(&fixture.cache), &KEYS);
    let store = clouds.open(fixture.server.at("models")).unwrap();
    // The same contents under other names, too.
    fixture.server.put("models/m/2/model.onnx", &bytes(1000));
    fixture.server.requests();
    let mut files = fetch(&*store, "m").unwrap();
    assert!(fixture.server.requests().iter().all(|request| request.key.is_none()));
    assert_eq!(files.remove(1), ("2/model.onnx".into(), bytes(1000)));
    assert_eq!(files, expected);
    // Only what changes is fetched.
    fixture.server.put("models/m/config.pbtxt", b"newer");
    fetch(&*store, "m").unwrap();
    let keys: Vec<_> = fixture.server.requests().into_iter().filter_map(|request| request.key).collect();
    assert_eq!(keys, ["models/m/config.pbtxt"]);
}

#[test]
fn large_files_arrive_in_ranges_and_broken_ones_are_taken_up() {
    let fixture = Fixture::new();
    let contents = bytes(20 << 20);
    fixture.server.put("models/m/1/model.onnx", &contents);
    // The last range never arrives, and fails only after the others are there.
    let count = AtomicUsize::new(0);
    fixture.server.misbehave(move |request: &Request| {
        let is_last = request.range.as_deref().is_some_and(|range| range.starts_with("bytes=16777216"));
        let is_late = is_last && count.fetch_add(1, Ordering::SeqCst) >= 5;
        is_last.then_some(if is_late { Fault::Status(500, None) } else { Fault::StallAfter(0) })
    });
    let error = fixture.fetch("m").unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unavailable);
    assert!(error.message().contains("(HTTP status 500)"), "{error}");
    fixture.server.behave();
    fixture.server.requests();
    assert_eq!(fixture.fetch("m").unwrap(), [("1/model.onnx".into(), contents)]);
    let ranges: Vec<_> = fixture.server.requests().into_iter().filter_map(|request| request.range).collect();
    assert_eq!(ranges, ["bytes=16777216-20971519"]);
}

#[test]
fn a_server_that_misbehaves_for_a_while_does_no_harm() {
    let contents = bytes(3000);
    for fault in [
        Fault::Status(500, None),
        Fault::Status(503, Some(0)),
        Fault::Status(429, Some(1)),
        Fault::Reset,
        Fault::CutAfter(0),
        Fault::CutAfter(100),
        Fault::StallAfter(0),
        Fault::StallAfter(1500),
        Fault::Damage,
        Fault::Expired,
    ] {
        let fixture = Fixture::new();
        fixture.server.put("models/m/1/model.onnx", &contents);
        let (count, shown) = (AtomicUsize::new(0), fault.clone());
        // Once for a listing, and once for a file.
        fixture.server.misbehave(move |request| {
            let is_data = !matches!(fault, Fault::Damage | Fault::CutAfter(_) | Fault::StallAfter(_));
            let concerns = request.key.is_some() || is_data;
            // The same damage twice is what an ETag that is not a digest looks like.
            let times = if matches!(fault, Fault::Damage | Fault::Expired) { 1 } else { 2 };
            (concerns && count.fetch_add(1, Ordering::SeqCst) < times).then(|| fault.clone())
        });
        match fixture.fetch("m") {
            Ok(files) => assert!(files == [("1/model.onnx".into(), contents.clone())], "{shown:?}"),
            Err(error) => panic!("{shown:?}: {error}"),
        }
    }
}

#[test]
fn a_server_that_cuts_every_answer_delivers_piece_by_piece() {
    let fixture = Fixture::new();
    let contents = bytes(2000);
    fixture.server.put("models/m/1/model.onnx", &contents);
    fixture.server.misbehave(|request: &Request| request.key.is_some().then_some(Fault::CutAfter(100)));
    assert_eq!(fixture.fetch("m").unwrap(), [("1/model.onnx".into(), contents)]);
    let from = |request: Request| {
        let range = request.range?;
        range.strip_prefix("bytes=")?.split('-').next()?.parse::<usize>().ok()
    };
    let from: Vec<_> = fixture.server.requests().into_iter().filter_map(from).collect();
    assert_eq!(from, (1..20).map(|piece| piece * 100).collect::<Vec<_>>());
}

#[test]
fn a_server_that_never_recovers_is_given_up() {
    for (fault, expected) in [
        (Fault::Status(500, None), "(HTTP status 500)"),
        (Fault::Reset, "connection"),
        (Fault::StallAfter(10), "nothing arrived for 0.3 seconds"),
        (Fault::CutAfter(0), "error"),
        (Fault::Status(403, None), "SlowDown: what went wrong (HTTP status 403)"),
    ] {
        let fixture = Fixture::new();
        fixture.server.put("models/m/1/model.onnx", &bytes(3000));
        let stalls = matches!(fault, Fault::StallAfter(_));
        let count = AtomicUsize::new(0);
        let shown = fault.clone();
        fixture.server.misbehave(move |request| {
            // What arrives before the stall counts as progress, so it is the first time only.
            let fault = if stalls && count.fetch_add(1, Ordering::SeqCst) > 1 {
                Fault::StallAfter(0)
            } else {
                fault.clone()
            };
            request.key.is_some().then_some(fault)
        });
        let error = fixture.fetch("m").unwrap_err();
        assert!(error.message().contains(expected), "{shown:?}: {error}");
        assert!(error.message().contains("/bucket/models/m'"), "{error}");
        // No half model.
        assert!(fixture.cached().iter().all(|path| path.extension().is_some()), "{:?}", fixture.cached());
    }
}

#[test]
fn damage_in_transit_is_detected() {
    let fixture = Fixture::new();
    fixture.server.put("models/good/1/model.onnx", b"good");
    fixture.fetch("good").unwrap();
    fixture.server.put("models/m/1/model.onnx", &bytes(3000));
    // From a bucket that is known to have digests for ETags.
    let store = fixture.open();
    fetch(&*store, "good").unwrap();
    fixture.server.misbehave(|request: &Request| request.key.is_some().then_some(Fault::Damage));
    fixture.server.put("models/good/1/model.onnx", b"better");
    fixture.server.behave();
    fetch(&*store, "good").unwrap();
    fixture.server.misbehave(|request: &Request| request.key.is_some().then_some(Fault::Damage));
    let error = fetch(&*store, "m").unwrap_err();
    assert!(error.message().contains("what arrives of 'models/m/1/model.onnx' is damaged"), "{error}");
}

#[test]
fn etags_that_only_look_like_digests_are_no_damage() {
    let fixture = Fixture::new();
    let etag = format!("\"{}\"", "ab".repeat(16));
    fixture.server.put_as("models/m/1/model.onnx", &bytes(3000), Some(&etag));
    assert_eq!(fixture.fetch("m").unwrap()[0].1, bytes(3000));
}

#[test]
fn a_file_that_changes_after_the_listing_is_fetched_as_it_is_then() {
    let fixture = Fixture::new();
    fixture.server.put("models/m/1/model.onnx", b"before");
    let (store, as_of) = (fixture.open(), Instant::now());
    block_on(store.list("", as_of)).unwrap();
    fixture.server.put("models/m/1/model.onnx", b"afterwards");
    let progress = Progress::default();
    let fetch = Fetch { folder: "m", is_needed: &|_| true, progress: &progress, as_of, route: None };
    let fetched = block_on(store.fetch(fetch)).unwrap();
    assert_eq!(fs::read(fetched.path.join("1/model.onnx")).unwrap(), b"afterwards");
    assert!(progress.bytes().0 >= 10);
}

#[test]
fn a_cache_that_was_damaged_by_hand_heals() {
    let fixture = Fixture::new();
    let contents = bytes(3000);
    fixture.server.put("models/m/1/model.onnx", &contents);
    let damages: [fn(&Path); 4] = [
        |path| fs::write(path, b"short").unwrap(),
        |path| fs::write(path, [7; 3000]).unwrap(),
        |path| fs::remove_file(path).unwrap(),
        |path| {
            fs::remove_file(path).unwrap();
            std::os::unix::fs::symlink("/etc/passwd", path).unwrap();
        },
    ];
    for damage in damages {
        let fixture = &fixture;
        assert_eq!(fixture.fetch("m").unwrap()[0].1, contents);
        let [path] = wait_for_stamp(fixture).try_into().unwrap();
        // As an administrator could.
        let writable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
        fs::set_permissions(&path, writable).unwrap();
        damage(&path);
        assert_eq!(fixture.fetch("m").unwrap()[0].1, contents);
    }
}

/// The files of the cache, once they are synced to the disk and unlocked.
fn wait_for_stamp(fixture: &Fixture) -> Vec<std::path::PathBuf> {
    loop {
        let paths = fixture.cached();
        let is_stamped = |path: &std::path::PathBuf| {
            let modified = fs::metadata(path).unwrap().modified().unwrap();
            modified.duration_since(std::time::UNIX_EPOCH).unwrap().subsec_nanos() == 0
        };
        if paths.iter().all(is_stamped) {
            return paths;
        }
        std::thread::yield_now();
    }
}

#[test]
fn temporary_files_go_with_the_last_model_that_uses_them() {
    let (temporary, server) = (tempfile::tempdir().unwrap(), Server::start());
    let folder = temporary.path().to_str().unwrap();
    let clouds =
        clouds_with(CacheOptions::default(), &[KEYS[0], KEYS[1], ("TRITON_AWS_MOUNT_DIRECTORY", folder)]);
    server.put("models/m/1/model.onnx", &bytes(100));
    let store = clouds.open(server.at("models")).unwrap();
    let progress = Progress::default();
    let fetch = || Fetch {
        folder: "m",
        is_needed: &|_| true,
        progress: &progress,
        as_of: Instant::now(),
        route: None,
    };
    let (first, second) = (block_on(store.fetch(fetch())).unwrap(), block_on(store.fetch(fetch())).unwrap());
    assert!(first.path.starts_with(temporary.path()));
    drop(first);
    assert_eq!(fs::read(second.path.join("1/model.onnx")).unwrap(), bytes(100));
    let own = second.path.parent().unwrap().to_owned();
    drop(second);
    let left = || fs::read_dir(own.join("files")).unwrap().count();
    // The file may still be on its way to the disk.
    while left() > 0 {
        drop(block_on(store.fetch(fetch())).unwrap());
    }
    clouds.close();
    assert!(!own.exists());
    assert!(block_on(store.fetch(fetch())).is_err());
}

#[test]
fn unused_files_make_room_in_the_order_of_their_use() {
    let (folder, server) = (tempfile::tempdir().unwrap(), Server::start());
    let options = CacheOptions { byte_size: Some(2500), ..kept_in(&folder) };
    let clouds = clouds_with(options, &KEYS);
    for (index, model) in ["a", "b", "c"].into_iter().enumerate() {
        server.put(&format!("models/{model}/1/model.onnx"), &bytes(1000 + index));
    }
    let store = clouds.open(server.at("models")).unwrap();
    let sizes = || {
        let entries = fs::read_dir(folder.path().join("files")).unwrap();
        let mut sizes: Vec<_> = entries.map(|entry| entry.unwrap().metadata().unwrap().len()).collect();
        sizes.sort_unstable();
        sizes
    };
    fetch(&*store, "a").unwrap();
    fetch(&*store, "b").unwrap();
    fetch(&*store, "a").unwrap();
    fetch(&*store, "c").unwrap();
    // Files on their way to the disk stay a moment longer.
    while sizes() != [1000, 1002] {
        fetch(&*store, "a").unwrap();
        fetch(&*store, "c").unwrap();
    }
}

#[test]
fn a_file_that_is_not_on_the_disk_yet_is_good_until_the_machine_starts_again() {
    let fixture = Fixture::new();
    fixture.server.put("models/m/1/model.onnx", &bytes(3000));
    for (nanoseconds, is_good) in [(None, true), (Some(7), false)] {
        fixture.fetch("m").unwrap();
        let [path] = wait_for_stamp(&fixture).try_into().unwrap();
        let key = path.file_name().unwrap().to_str().unwrap().to_owned();
        // As a server leaves it that ends before the file is on the disk: of this start of the machine, or of another one.
        let of_this_start = crate::cache::provisional(&key).unwrap();
        let modified = match nanoseconds {
            None => of_this_start,
            Some(nanoseconds) => {
                std::time::UNIX_EPOCH
                    + std::time::Duration::new(
                        of_this_start.duration_since(std::time::UNIX_EPOCH).unwrap().as_secs(),
                        nanoseconds,
                    )
            }
        };
        fs::File::open(&path).unwrap().set_modified(modified).unwrap();
        fixture.server.requests();
        let clouds = clouds_with(kept_in(&fixture.cache), &KEYS);
        fetch(&*clouds.open(fixture.server.at("models")).unwrap(), "m").unwrap();
        assert_eq!(fixture.server.requests().iter().all(|request| request.key.is_none()), is_good);
        // It is stamped in the end.
        wait_for_stamp(&fixture);
    }
}

#[test]
fn files_of_models_that_are_loaded_stay_whatever_the_limit() {
    let (folder, server) = (tempfile::tempdir().unwrap(), Server::start());
    let options = CacheOptions { byte_size: Some(500), ..kept_in(&folder) };
    let clouds = clouds_with(options, &KEYS);
    for model in ["loaded", "b", "c"] {
        server.put(&format!("models/{model}/1/model.onnx"), format!("{model:1000}").as_bytes());
    }
    let store = clouds.open(server.at("models")).unwrap();
    let progress = Progress::default();
    let as_of = Instant::now();
    let loading = Fetch { folder: "loaded", is_needed: &|_| true, progress: &progress, as_of, route: None };
    let loaded = block_on(store.fetch(loading)).unwrap();
    for _ in 0..3 {
        for model in ["b", "c"] {
            fetch(&*store, model).unwrap();
        }
    }
    assert_eq!(fs::read(loaded.path.join("1/model.onnx")).unwrap().len(), 1000);
    // Another server finds it in the cache, too.
    server.requests();
    let other = clouds_with(kept_in(&folder), &KEYS);
    fetch(&*other.open(server.at("models")).unwrap(), "loaded").unwrap();
    assert!(server.requests().iter().all(|request| request.key.is_none()));
}

#[test]
fn two_servers_that_share_a_cache_fetch_each_file_once() {
    let (folder, server) = (tempfile::tempdir().unwrap(), Server::start());
    let contents = bytes((17 << 20) + 3);
    for file in ["large", "small"] {
        let length = if file == "large" { contents.len() } else { 100 };
        server.put(&format!("models/m/1/{file}"), &contents[..length]);
    }
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let clouds = clouds_with(kept_in(&folder), &KEYS);
                let files = fetch(&*clouds.open(server.at("models")).unwrap(), "m").unwrap();
                assert!(files[0].1 == contents && files[1].1 == contents[..100]);
            });
        }
    });
    let mut fetched: Vec<_> = server.requests().into_iter().filter(|request| request.key.is_some()).collect();
    fetched.retain(|request| request.range.is_some() || request.key.as_deref() == Some("models/m/1/small"));
    assert_eq!(fetched.len(), 3 + 1, "{fetched:?}");
}

#[test]
fn a_repository_that_is_away_keeps_what_it_had() {
    let fixture = Fixture::new();
    fixture.server.put("models/m/1/model.onnx", b"x");
    let store = fixture.open();
    fixture.server.misbehave(|_| Some(Fault::Reset));
    assert_eq!(block_on(store.list("", Instant::now())).unwrap_err().code(), ErrorCode::Unavailable);
    fixture.server.behave();
    let before = block_on(store.list("", Instant::now())).unwrap();
    fixture.server.misbehave(|_| Some(Fault::Reset));
    let as_of = Instant::now();
    assert_eq!(block_on(store.list("", as_of)).unwrap(), before);
    assert_eq!(fixture.clouds.status().iter().filter(|status| !status.is_reachable).count(), 1);
    // As of then, nothing newer is known.
    assert!(block_on(store.stat("m", as_of)).is_ok());
    fixture.server.behave();
    block_on(store.list("", Instant::now())).unwrap();
    assert!(fixture.clouds.status().iter().all(|status| status.is_reachable && status.fetched == 0));
    fetch(&*store, "m").unwrap();
    assert_eq!(fixture.clouds.status()[0].fetched, 1);
}

#[test]
fn credentials_are_read_again_when_they_are_refused_and_never_shown() {
    let (folder, server) = (tempfile::tempdir().unwrap(), Server::start());
    let path = folder.path().join("credentials.json");
    let write = |id: &str| {
        fs::write(&path, format!(r#"{{"s3": {{"": {{"key_id": "{id}", "secret_key": "s3cr3t-{id}"}}}}}}"#))
            .unwrap();
    };
    write("old");
    let path_text = path.to_str().unwrap().to_owned();
    let variables = [("TRITON_CLOUD_CREDENTIAL_PATH", path_text.as_str()), KEYS[0], KEYS[1]];
    let clouds = clouds_with(kept_in(&folder), &variables);
    server.put("models/m/1/model.onnx", b"x");
    // Whatever is sent must be by the key that counts now.
    server.misbehave(|request: &Request| {
        (!request.authorization.contains("Credential=new/")).then_some(Fault::Expired)
    });
    let store = clouds.open(server.at("models")).unwrap();
    let error = fetch(&*store, "m").unwrap_err();
    assert!(error.message().contains("ExpiredToken: what went wrong"), "{error}");
    assert!(!error.message().contains("s3cr3t"), "{error}");
    write("new");
    assert_eq!(fetch(&*store, "m").unwrap().len(), 1);
    fs::remove_file(&path).unwrap();
    server.misbehave(|_| Some(Fault::Expired));
    let error = fetch(&*store, "m").unwrap_err();
    assert!(error.message().contains("cannot read the credentials in"), "{error}");
}

#[test]
fn keys_may_have_blanks_and_any_letters() {
    let fixture = Fixture::new();
    for key in ["ä ö/1/m&m <x>.onnx", "with blank/1/a+b%20c", "dots.and-dashes_/1/x#y?z=1"] {
        fixture.server.put(&format!("models/{key}"), key.as_bytes());
        let (model, rest) = key.split_once('/').unwrap();
        let files = fixture.fetch(model).unwrap();
        assert_eq!(files, [(rest.to_owned(), key.as_bytes().to_vec())]);
    }
    assert_eq!(block_on(fixture.open().list("", Instant::now())).unwrap().len(), 3);
}

#[test]
fn a_folder_that_is_not_there_is_not_found_and_an_empty_bucket_is_empty() {
    let fixture = Fixture::new();
    let error = block_on(fixture.open().list("", Instant::now())).unwrap_err();
    assert_eq!(error.code(), ErrorCode::NotFound);
    let whole = fixture.clouds.open(fixture.server.at("")).unwrap();
    assert_eq!(block_on(whole.list("", Instant::now())).unwrap(), []);
    fixture.server.put("m/1/x", b"x");
    assert_eq!(block_on(whole.list("", Instant::now())).unwrap().len(), 1);
}

/// How a route behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Behaviour {
    Right,
    Away,
    /// Breaks after this many bytes of each range.
    Breaks(u64),
    OtherBytes,
    OtherSize,
    OtherEtag,
    TooMuch,
}

/// A route that reads from a map.
#[derive(Debug)]
struct TestRoute {
    behaviour: Behaviour,
    fallback: bool,
    objects: BTreeMap<String, Vec<u8>>,
    counts: Mutex<[u64; 2]>,
}

/// Contents in pieces.
struct Pieces(Vec<std::result::Result<bytes::Bytes, RouteError>>);

impl RouteBody for Pieces {
    fn next(&mut self) -> NextPiece<'_> {
        Box::pin(async { if self.0.is_empty() { None } else { Some(self.0.remove(0)) } })
    }
}

impl Route for TestRoute {
    fn name(&self) -> &str {
        "the test's route"
    }

    fn may_fall_back(&self) -> bool {
        self.fallback
    }

    fn get(&self, object: RoutedObject) -> RouteFuture<'_> {
        Box::pin(async move {
            let broken = || RouteError("broken".to_owned());
            if self.behaviour == Behaviour::Away {
                return Err(broken());
            }
            let (plain, query) = object.url.split_once('?').unwrap();
            assert!(query.contains("X-Amz-Signature"), "{}", object.url);
            let contents = &self.objects[plain.rsplit_once("/models/").unwrap().1];
            let (mut size, mut etag) = (contents.len() as u64, object.etag.clone());
            let range = object.range.unwrap_or(0..size);
            let mut bytes = contents[range.start as usize..range.end as usize].to_vec();
            let mut end = None;
            match self.behaviour {
                Behaviour::Right | Behaviour::Away => {}
                Behaviour::Breaks(after) if after < bytes.len() as u64 => {
                    bytes.truncate(after as usize);
                    end = Some(Err(broken()));
                }
                Behaviour::Breaks(_) => {}
                Behaviour::OtherBytes => bytes.iter_mut().for_each(|byte| *byte ^= 1),
                Behaviour::OtherSize => size += 1,
                Behaviour::OtherEtag => etag = Some("other".into()),
                Behaviour::TooMuch => bytes.push(0),
            }
            let pieces = bytes.chunks(1 << 20).map(|piece| Ok(bytes::Bytes::copy_from_slice(piece)));
            let body = Box::new(Pieces(pieces.chain(end).collect()));
            Ok(RouteAnswer { etag, size: Some(size), body })
        })
    }

    fn count(&self, way: Way, bytes: u64) {
        self.counts.lock().unwrap()[way as usize] += bytes;
    }
}

#[test]
fn routed_files_are_checked_and_missing_ones_come_from_the_bucket() {
    let files =
        [("m/1/small", vec![7; 1000]), ("m/1/empty", Vec::new()), ("m/1/large", vec![9; (8 << 20) + 5])];
    let total: u64 = files.iter().map(|(_, contents)| contents.len() as u64).sum();
    for behaviour in [
        Behaviour::Right,
        Behaviour::Away,
        Behaviour::Breaks(0),
        Behaviour::Breaks(3 << 20),
        Behaviour::OtherBytes,
        Behaviour::OtherSize,
        Behaviour::OtherEtag,
        Behaviour::TooMuch,
    ] {
        for fallback in [true, false] {
            let fixture = Fixture::new();
            for (key, contents) in &files {
                fixture.server.put(&format!("models/{key}"), contents);
            }
            let objects = files.iter().map(|(key, contents)| ((*key).to_owned(), contents.clone())).collect();
            let route = TestRoute { behaviour, fallback, objects, counts: Mutex::default() };
            let route = Arc::new(route);
            let routed: Arc<dyn Route> = Arc::clone(&route) as _;
            let progress = Progress::default();
            let fetch = Fetch {
                folder: "m",
                is_needed: &|_| true,
                progress: &progress,
                as_of: Instant::now(),
                route: Some(&routed),
            };
            let fetched = block_on(fixture.open().fetch(fetch));
            let [by_route, by_store] = *route.counts.lock().unwrap();
            // A broken range resumes where it broke.
            let succeeds = fallback || matches!(behaviour, Behaviour::Right | Behaviour::Breaks(1..));
            assert_eq!(fetched.is_ok(), succeeds, "{behaviour:?} {fallback}");
            if let Ok(fetched) = fetched {
                for (key, contents) in &files {
                    let path = fetched.path.join(key.strip_prefix("m/").unwrap());
                    assert!(fs::read(path).unwrap() == *contents, "{behaviour:?} {key}");
                }
                assert!(by_route + by_store >= total, "{behaviour:?}");
            }
            assert!(fallback || by_store == 0, "{behaviour:?}");
            assert!(behaviour != Behaviour::Right || by_route == total && by_store == 0);
        }
    }
}
