//! A response cache in C, compiled and loaded into the test process: it conforms, and its invalid entries are not
//! used.

use std::path::Path;
use std::process::Command;

use nereid_response_cache::ResponseCache as _;
use nereid_response_cache::conformance::{self, OldEntries, entry, key, lookup};
use nereid_triton_host::LibraryCache;

fn compile(caches: &Path, define: &str) {
    let folder = caches.join("c");
    std::fs::create_dir_all(&folder).unwrap();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/cache.c");
    let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
    let status = Command::new(compiler)
        .args(["-std=gnu11", "-shared", "-fPIC", "-pthread", "-Wall", "-Werror", define, source, "-o"])
        .arg(folder.join("libtritoncache_c.so"))
        .status()
        .unwrap();
    assert!(status.success());
}

fn open(caches: &Path) -> LibraryCache {
    LibraryCache::load(caches, "c", [].into_iter()).unwrap()
}

#[test]
fn library_conforms_as_a_cache() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), "-DRIGHT");
    // Like Triton's own cache, it refuses existing keys.
    conformance::check(OldEntries::MayStay, || open(folder.path()));
}

#[test]
fn corrupted_entries_are_not_found() {
    for define in ["CUTS", "CHANGES", "ANY_ENTRY", "TWICE", "COPIES_NOTHING", "FAILS"] {
        let folder = tempfile::tempdir().unwrap();
        compile(folder.path(), &format!("-D{define}"));
        let cache = open(folder.path());
        let keys: Vec<_> = (0..5).map(|number| key(1, number)).collect();
        for (number, key) in keys.iter().enumerate() {
            cache.insert(key, entry(number as u8, 10 * number));
        }
        // Other threads store the entries, sooner or later.
        for _ in 0..200 {
            for (number, key) in keys.iter().enumerate() {
                // A library that returns any entry returns the right one now and then.
                if let Some(found) = lookup(&cache, key) {
                    assert_eq!(define, "ANY_ENTRY");
                    assert_eq!(found.response().outputs[0].byte_size(), 10 * number);
                }
            }
        }
        assert!(lookup(&cache, &key(1, 99)).is_none(), "{define}");
    }
}

#[test]
fn refused_cache_settings_report_the_reason() {
    let folder = tempfile::tempdir().unwrap();
    compile(folder.path(), "-DRIGHT");
    let refused = LibraryCache::load(folder.path(), "c", [("refuse", "yes")].into_iter()).err().unwrap();
    assert_eq!(refused.message(), "cache 'c': told to refuse");
    let missing = LibraryCache::load(folder.path(), "other", [].into_iter()).err().unwrap();
    assert!(missing.message().contains("libtritoncache_other.so"), "{missing}");
}
