//! Generates Rust types from `model_config.proto`, and the descriptors that drive the text format. Needs no `protoc`.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

const PROTO_DIR: &str = "../../../proto";
const PROTO_FILE: &str = "model_config.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO_DIR}/{PROTO_FILE}");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);

    let descriptors = protox::compile([PROTO_FILE], [PROTO_DIR])?;
    let mut embedded = descriptors.clone();
    for file in &mut embedded.file {
        // Only the code generator uses comments and positions.
        file.source_code_info = None;
    }
    fs::write(out_dir.join("model_config.bin"), embedded.encode_to_vec())?;

    // Sorted maps make all output deterministic.
    prost_build::Config::new().btree_map(["."]).compile_fds(descriptors)?;
    Ok(())
}
