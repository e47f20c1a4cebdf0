//! Each kind of store: listings, and correct and wrong digests.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use md5::{Digest as _, Md5};
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, SHA256};

use super::*;
use crate::ListingLimits;
use crate::testing::limited_clouds;

/// The digest's header for some contents.
type Header = fn(&[u8]) -> (&'static str, String);

fn crc(algorithm: crc_fast::CrcAlgorithm, contents: &[u8], length: usize) -> String {
    let digest = crc_fast::checksum(algorithm, contents).to_be_bytes();
    STANDARD.encode(&digest[8 - length..])
}

fn crc32c(contents: &[u8]) -> String {
    crc(crc_fast::CrcAlgorithm::Crc32Iscsi, contents, 4)
}

fn md5(contents: &[u8]) -> String {
    STANDARD.encode(Md5::digest(contents))
}

const OF_S3: [Header; 5] = [
    |of| ("x-amz-checksum-crc32", crc(crc_fast::CrcAlgorithm::Crc32IsoHdlc, of, 4)),
    |of| ("x-amz-checksum-crc32c", crc32c(of)),
    |of| ("x-amz-checksum-crc64nvme", crc(crc_fast::CrcAlgorithm::Crc64Nvme, of, 8)),
    |of| ("x-amz-checksum-sha1", STANDARD.encode(ring::digest::digest(&SHA1_FOR_LEGACY_USE_ONLY, of))),
    |of| ("x-amz-checksum-sha256", STANDARD.encode(ring::digest::digest(&SHA256, of))),
];
const OF_GOOGLE: [Header; 2] = [
    |of| ("x-goog-hash", format!("crc32c={}", crc32c(of))),
    |of| ("x-goog-hash", format!("md5={}", md5(of))),
];
const OF_AZURE: [Header; 1] = [|of| ("x-ms-blob-content-md5", md5(of))];

/// An ETag of an object that was uploaded in parts, which is not a digest.
const PARTS: &str = "\"d41d8cd98f00b204e9800998ecf8427e-3\"";

/// As long as nothing is shared, each case is the first of its bucket.
fn case(server: &Server, cloud: &str) -> (Clouds, Arc<dyn Store>) {
    case_in(server, cloud, "", ListingLimits::default())
}

/// A case with limits of listings, and a folder for temporary files.
fn case_in(
    server: &Server,
    cloud: &str,
    temporary: &str,
    listings: ListingLimits,
) -> (Clouds, Arc<dyn Store>) {
    let mount = match cloud {
        "s3" => "TRITON_AWS_MOUNT_DIRECTORY",
        "gs" => "TRITON_GCS_MOUNT_DIRECTORY",
        _ => "TRITON_AZURE_MOUNT_DIRECTORY",
    };
    let emulator = format!("http://{}", server.address);
    let account = format!("{emulator}/account");
    let variables = [
        KEYS[0],
        KEYS[1],
        ("CLOUD_STORAGE_EMULATOR_ENDPOINT", emulator.as_str()),
        ("AZURE_STORAGE_SERVICE_ENDPOINT", account.as_str()),
        ("AZURE_STORAGE_KEY", "a2V5"),
        (mount, temporary),
    ];
    let clouds = limited_clouds(CacheOptions::default(), &variables, listings);
    let address = match cloud {
        "s3" => server.at("models"),
        "gs" => crate::Address::parse("gs://bucket/models").unwrap().unwrap(),
        _ => crate::Address::parse("as://account/bucket/models").unwrap().unwrap(),
    };
    let store = clouds.open(address).unwrap();
    (clouds, store)
}

#[test]
fn listings_have_any_number_of_pages() {
    let server = Server::start();
    for model in 0..25 {
        server.put(&format!("models/m {model:02}/1/ä.onnx"), b"x");
    }
    for cloud in ["s3", "gs", "as"] {
        for (page, pages) in [(10, 3), (25, 1), (1, 25)] {
            server.set_page(page);
            let (_clouds, store) = case(&server, cloud);
            server.requests();
            assert_eq!(block_on(store.list("", Instant::now())).unwrap().len(), 25, "{cloud} {page}");
            assert_eq!(server.requests().len(), pages, "{cloud} {page}");
        }
    }
}

#[test]
fn listing_without_end_is_given_up_at_a_limit() {
    let server = Server::start();
    for model in 0..100 {
        server.put(&format!("models/m{model:02}/1/model.onnx"), b"x");
    }
    server.set_page(1);
    let none = usize::MAX;
    for cloud in ["s3", "gs", "as"] {
        for (objects, bytes, pages, message) in [
            (10, none, 11, "the listing exceeds the limit of 10 objects"),
            // Keys of 23 bytes, with ETags of at least 32.
            (none, 200, 4, "the listing exceeds the limit of 200 bytes of names"),
        ] {
            let (_clouds, store) = case_in(&server, cloud, "", ListingLimits { objects, bytes });
            server.requests();
            let error = block_on(store.list("", Instant::now())).unwrap_err();
            assert!(error.message().contains(message), "{cloud}: {error}");
            // It is neither read to its end nor requested again.
            assert_eq!(server.requests().len(), pages, "{cloud} {message}");
        }
        let limits = ListingLimits { objects: 100, bytes: 100 * (23 + 34) };
        let (_clouds, store) = case_in(&server, cloud, "", limits);
        assert_eq!(block_on(store.list("", Instant::now())).unwrap().len(), 100, "{cloud}");
    }
}

#[test]
fn bucket_of_s3_is_in_the_path_or_in_the_host_as_configured() {
    let server = Server::start();
    server.put("models/m/1/model.onnx", b"x");
    // The server is the proxy of all hosts.
    let proxy = format!("http://{}", server.address);
    let home = tempfile::tempdir().unwrap();
    fs::create_dir(home.path().join(".aws")).unwrap();
    let profiles =
        "[default]\nregion = x\n[profile virtual]\nregion = y\ns3 =\n  addressing_style = virtual\n";
    fs::write(home.path().join(".aws/config"), profiles).unwrap();
    let home = ("HOME", home.path().to_str().unwrap());
    let style = |style: &'static str| ("AWS_S3_ADDRESSING_STYLE", style);
    for (variables, endpoint, expected) in [
        (&[][..], "store.example:80", Ok("store.example:80")),
        (&[style("path")], "store.example:80", Ok("store.example:80")),
        (&[style("auto")], "store.example:80", Ok("store.example:80")),
        (&[style("virtual")], "store.example:80", Ok("bucket.store.example:80")),
        // An address has no subdomains.
        (&[style("virtual")], "10.1.2.3:80", Ok("10.1.2.3:80")),
        (&[("AWS_PROFILE", "virtual")], "store.example:80", Ok("bucket.store.example:80")),
        (&[("AWS_PROFILE", "virtual"), style("path")], "store.example:80", Ok("store.example:80")),
        (
            &[style("other")],
            "store.example:80",
            Err("unknown addressing style 'other' of S3 (known: path, virtual, auto)"),
        ),
    ] {
        for keys in [&KEYS[..], &[("AWS_EC2_METADATA_DISABLED", "true")]] {
            let variables = [variables, keys, &[home, ("HTTP_PROXY", &proxy)]].concat();
            let clouds = clouds_with(CacheOptions::default(), &variables);
            let address = format!("s3://http://{endpoint}/bucket/models");
            let store = clouds.open(crate::Address::parse(&address).unwrap().unwrap()).unwrap();
            let fetched = fetch(&*store, "m").map(|files| files.len());
            let hosts: std::collections::BTreeSet<_> =
                server.requests().into_iter().map(|request| request.host).collect();
            match expected {
                Ok(host) => {
                    assert_eq!(fetched.unwrap(), 1, "{variables:?}");
                    let host = host.trim_end_matches(":80");
                    assert!(hosts.iter().all(|seen| seen.trim_end_matches(":80") == host), "{hosts:?}");
                }
                Err(message) => assert!(fetched.unwrap_err().message().contains(message)),
            }
        }
    }
}

#[test]
fn temporary_files_are_where_the_variable_of_the_cloud_says() {
    let server = Server::start();
    server.put("models/m/1/model.onnx", b"x");
    for cloud in ["s3", "gs", "as"] {
        let folder = tempfile::tempdir().unwrap();
        let (clouds, store) =
            case_in(&server, cloud, folder.path().to_str().unwrap(), ListingLimits::default());
        let progress = Progress::default();
        let as_of = Instant::now();
        let fetch = Fetch { folder: "m", is_needed: &|_| true, progress: &progress, as_of, route: None };
        let fetched = block_on(store.fetch(fetch)).unwrap();
        assert!(fetched.path.starts_with(folder.path()), "{cloud} {:?}", fetched.path);
        drop((fetched, store));
        clouds.close();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{cloud}");
    }
}

#[test]
fn a_file_that_is_not_what_the_store_says_fails_the_fetch() {
    let clouds = [("s3", &OF_S3[..]), ("gs", &OF_GOOGLE), ("as", &OF_AZURE)];
    for length in [3000, (9 << 20) + 1] {
        let (contents, server) = (bytes(length), Server::start());
        for (cloud, headers) in clouds {
            for header in headers {
                let (name, right) = header(&contents);
                let (_, wrong) = header(b"other contents");
                for value in [right.clone(), wrong] {
                    server.put_with("models/m/1/model.onnx", &contents, Some(PARTS), &[(name, &value)]);
                    let (_clouds, store) = case(&server, cloud);
                    server.requests();
                    let fetched = fetch(&*store, "m");
                    let asked = server.requests().len();
                    if value == right {
                        assert!(fetched.unwrap()[0].1 == contents, "{cloud} {name} {length}");
                        // Two listings, and the file, or its digest and its ranges.
                        assert!(asked <= 2 + 3, "{cloud} {name} {length}: {asked}");
                        continue;
                    }
                    let error = fetched.unwrap_err();
                    let message = "what arrives of 'models/m/1/model.onnx' is damaged: its ";
                    assert!(error.message().contains(message), "{cloud} {name} {length}: {error}");
                    assert!(error.message().contains(", and the store gives "), "{error}");
                }
            }
        }
    }
}

#[test]
fn digests_of_parts_say_nothing_of_a_file() {
    let contents = bytes(3000);
    let server = Server::start();
    for headers in [
        &[("x-amz-checksum-crc32c", "AAAAAA=="), ("x-amz-checksum-type", "COMPOSITE")][..],
        &[("x-amz-checksum-crc32c", "AAAAAA==-2")],
        &[("x-goog-hash", "crc32c=AAAAAA=="), ("x-goog-stored-content-encoding", "gzip")],
    ] {
        server.put_with("models/m/1/model.onnx", &contents, Some(PARTS), headers);
        for cloud in ["s3", "gs"] {
            let (_clouds, store) = case(&server, cloud);
            assert_eq!(fetch(&*store, "m").unwrap()[0].1, contents, "{headers:?}");
        }
    }
}

#[test]
fn a_digest_counts_for_a_fetch_that_is_taken_up() {
    let (contents, fixture) = (bytes(20 << 20), Fixture::new());
    let (name, right) = OF_S3[2](&contents);
    fixture.server.put_with("models/m/1/model.onnx", &contents, Some(PARTS), &[(name, &right)]);
    fixture.server.misbehave(|request: &Request| {
        let is_last = request.range.as_deref().is_some_and(|range| range.starts_with("bytes=16777216"));
        is_last.then_some(Fault::Status(403, None))
    });
    // Until the other ranges are there.
    loop {
        fixture.fetch("m").unwrap_err();
        if fixture.cached().iter().any(|path| fs::read(path).is_ok_and(|record| record == [1, 1])) {
            break;
        }
    }
    let part =
        fixture.cached().into_iter().find(|path| path.extension().is_some_and(|end| end == "part")).unwrap();
    // The part that has arrived is damaged.
    let file = fs::File::options().write(true).open(&part).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"damage", 5).unwrap();
    drop(file);
    fixture.server.behave();
    // Noticed, and fetched again as a whole.
    assert!(fixture.fetch("m").unwrap()[0].1 == contents);
    assert!(fixture.server.requests().len() > 6);
}
