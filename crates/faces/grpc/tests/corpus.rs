//! The fuzz targets' properties, held on every input of their corpus in the ordinary run of the tests. An input that
//! broke one of them once belongs there too.

#[path = "../../../../fuzz/grpc_properties.rs"]
mod grpc_properties;

use nereid_testkit::corpus::replay;

#[test]
fn corpus_parses_as_inference_messages() {
    replay("grpc_infer", grpc_properties::infer);
}

#[test]
fn corpus_parses_as_bodies_and_connections() {
    replay("grpc_bytes", grpc_properties::bytes);
}
