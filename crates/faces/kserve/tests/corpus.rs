//! Checks the fuzz targets' properties on every input of their corpus. An input that once broke one belongs there, too.

#[path = "../../../../fuzz/http_properties.rs"]
mod http_properties;

use nereid_testkit::corpus::replay;

#[test]
fn corpus_parses_as_inference_requests() {
    replay("infer", http_properties::infer);
}

#[test]
fn corpus_parses_as_generate_requests() {
    replay("generate", http_properties::generate);
}
