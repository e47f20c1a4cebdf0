//! The schema's messages, generated from `model_config.proto`, and their descriptors.
//!
//! Fields hold enums as numbers, since the wire may carry any; the getters of the same name return the enum, or its
//! first value if the number is unknown.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor};

#[allow(missing_docs, clippy::all)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/inference.rs"));
}

pub use generated::*;

#[expect(clippy::expect_used, reason = "the build wrote these descriptors, and a test reads them")]
static MODEL_CONFIG: LazyLock<MessageDescriptor> = LazyLock::new(|| {
    let descriptors = include_bytes!(concat!(env!("OUT_DIR"), "/model_config.bin"));
    let pool = DescriptorPool::decode(descriptors.as_slice()).expect("the build wrote valid descriptors");
    pool.get_message_by_name("inference.ModelConfig").expect("the schema has a ModelConfig")
});

/// The descriptor of `ModelConfig`.
pub(crate) fn descriptor() -> MessageDescriptor {
    MODEL_CONFIG.clone()
}

/// The configuration with its fields by name, for the descriptor-driven formats.
#[expect(clippy::expect_used, reason = "type and descriptors come from the same schema")]
pub(crate) fn to_dynamic(config: &ModelConfig) -> DynamicMessage {
    let mut message = DynamicMessage::new(descriptor());
    message.transcode_from(config).expect("type and descriptors come from the same schema");
    message
}

#[cfg(test)]
mod tests;
