//! Runs the conformance suite of response caches on a library: `cache_conformance FOLDER NAME [SETTING=VALUE]...`.
//! Keys that the library already has may keep their entries.
//!
//! This is a program and not a test because the end-to-end tests fetch the library.

use std::env;
use std::path::PathBuf;

use nereid_response_cache::conformance::{self, OldEntries};
use nereid_triton_host::LibraryCache;

fn main() {
    let mut arguments = env::args().skip(1);
    let folder = PathBuf::from(arguments.next().expect("a folder"));
    let name = arguments.next().expect("the cache's name");
    let settings: Vec<_> = arguments.collect();
    let settings =
        || settings.iter().map(|setting| setting.split_once('=').expect("a setting and its value"));
    conformance::check(OldEntries::MayStay, || {
        LibraryCache::load(&folder, &name, settings()).expect("a cache")
    });
    println!("'{name}' conforms");
}
