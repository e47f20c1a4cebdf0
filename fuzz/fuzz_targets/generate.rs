//! Reads arbitrary bytes as a body of the generate extension.

#![no_main]

#[path = "../http_properties.rs"]
mod http_properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| http_properties::generate(data));
