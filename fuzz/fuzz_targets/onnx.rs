//! Loads arbitrary bytes as an ONNX file in the embedded engine, and sends it requests.

#![no_main]

#[path = "../onnx_properties.rs"]
mod onnx_properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| onnx_properties::model(data));
