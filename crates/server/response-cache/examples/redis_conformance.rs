//! Runs the conformance suite of response caches on a Redis at a port of this machine: `redis_conformance PORT`.

#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nereid_response_cache::conformance::{self, OldEntries};
use nereid_response_cache::{CacheSettings, RedisCache, RedisSettings, ResponseCache};

fn main() -> ExitCode {
    let Some(port) = std::env::args().nth(1) else {
        eprintln!("usage: redis_conformance PORT");
        return ExitCode::FAILURE;
    };
    // Each cache uses a separate database, so it is empty.
    let databases = AtomicU64::new(0);
    conformance::check(OldEntries::Go, || {
        let database = databases.fetch_add(1, Ordering::Relaxed).to_string();
        // A machine that runs all tests may be slow.
        let given =
            [("host", "127.0.0.1"), ("port", &*port), ("db", &*database), ("socket_timeout", "10000")];
        let mut settings: CacheSettings =
            given.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let settings = RedisSettings::read(&mut settings).expect("the settings are right");
        let cache = RedisCache::new(settings).expect("a thread can be started");
        let begin = Instant::now();
        while cache.is_available() != Some(true) {
            assert!(begin.elapsed() < Duration::from_secs(10), "Redis is not there");
            thread::yield_now();
        }
        cache
    });
    println!("Redis conforms");
    ExitCode::SUCCESS
}
