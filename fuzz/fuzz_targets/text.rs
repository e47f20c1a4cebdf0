//! Reads arbitrary bytes as the text of a configuration.

#![no_main]

#[path = "../properties.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::text(data));
