//! Reads arbitrary bytes as a ModelInfer message.

#![no_main]

#[path = "../grpc_properties.rs"]
mod grpc_properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| grpc_properties::infer(data));
