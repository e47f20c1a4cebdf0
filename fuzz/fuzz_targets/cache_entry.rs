//! Reads arbitrary bytes as an entry of a response cache.

#![no_main]

#[path = "../cache_properties.rs"]
mod cache_properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| cache_properties::entry(data));
