//! Compares the messages in `src/grpc/proto.rs` with the repository's schema. To generate them after a change of the schema:
//! `NEREID_GENERATE=1 cargo test -p nereid-client --test proto`.

use std::path::Path;
use std::{env, fs};

const SCHEMA: &str = "../../../proto";
const GENERATED: &str = "src/grpc/proto.rs";
const HEAD: &str = "//! Messages and calls of the protocol.\n// @generated from the repository's proto/grpc_service.proto by tests/proto.rs\n\n";

#[test]
fn messages_are_those_of_the_schema() {
    let mut descriptors = protox::compile(["grpc_service.proto"], [SCHEMA]).unwrap();
    for file in &mut descriptors.file {
        file.source_code_info = None;
    }
    let folder = tempfile::tempdir().unwrap();
    tonic_prost_build::configure()
        .build_server(false)
        .build_transport(false)
        .btree_map(".")
        .bytes(".")
        .out_dir(folder.path())
        .compile_fds(descriptors)
        .unwrap();
    let generated = HEAD.to_owned() + &fs::read_to_string(folder.path().join("inference.rs")).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GENERATED);
    if env::var_os("NEREID_GENERATE").is_some() {
        fs::write(path, generated).unwrap();
        return;
    }
    let committed = fs::read_to_string(path).unwrap();
    assert!(committed == generated, "{GENERATED} is out of date: see the head of this test");
}
