//! Turns `grpc_service.proto` into Rust types and a service, and into the descriptors for reflection. Needs no
//! `protoc`.

use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use prost::Message;

const PROTO_DIR: &str = "../../../proto";
const PROTO_FILE: &str = "grpc_service.proto";
const MODEL_CONFIG_FILE: &str = "model_config.proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PROTO_DIR}/{PROTO_FILE}");
    println!("cargo::rerun-if-changed={PROTO_DIR}/{MODEL_CONFIG_FILE}");
    let out_dir = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);

    let descriptors = protox::compile([PROTO_FILE], [PROTO_DIR])?;
    let mut embedded = descriptors.clone();
    for file in &mut embedded.file {
        // Comments and positions are of use to the code generator alone.
        file.source_code_info = None;
    }
    fs::write(out_dir.join("grpc_service.bin"), embedded.encode_to_vec())?;

    let mut builder = tonic_prost_build::configure()
        .build_transport(false)
        .client_mod_attribute("inference", "#[cfg(test)]")
        // Printed or serialised maps have a deterministic order, and an empty one costs nothing.
        .btree_map(".")
        // A tensor's contents are slices of the message that arrived.
        .bytes(".");
    for file in descriptors.file.iter().filter(|file| file.name() == MODEL_CONFIG_FILE) {
        let names = file.message_type.iter().map(|message| message.name());
        for name in names.chain(file.enum_type.iter().map(|enumeration| enumeration.name())) {
            let path = format!("::nereid_core::model_config::proto::{name}");
            builder = builder.extern_path(format!(".inference.{name}"), path);
        }
    }
    builder.compile_fds(descriptors)?;
    Ok(())
}
