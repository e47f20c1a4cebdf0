//! Takes arbitrary configurations all the way from text to what is served.

#![no_main]

#[path = "../properties.rs"]
mod properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| properties::config(data));
