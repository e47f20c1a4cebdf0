//! Reads arbitrary bytes as a body of an inference request.

#![no_main]

#[path = "../http_properties.rs"]
mod http_properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| http_properties::infer(data));
