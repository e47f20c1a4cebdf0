//! Reads arbitrary bytes as the body of a gRPC call and as a connection of HTTP/2.

#![no_main]

#[path = "../grpc_properties.rs"]
mod grpc_properties;

libfuzzer_sys::fuzz_target!(|data: &[u8]| grpc_properties::bytes(data));
