//! Reads arbitrary bytes as texts that a backend passes across the C boundary.

#![no_main]

#[path = "../c_properties.rs"]
mod c_properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| c_properties::texts(data));
