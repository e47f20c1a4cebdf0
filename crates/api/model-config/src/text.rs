//! The protobuf text format of `config.pbtxt`.
//!
//! Accepts everything that the reference's reader accepts. In particular, a message field may omit its colon, even
//! before a list (`input [ { ... } ]`), which general readers for Rust refuse. Driven by the schema's descriptors:
//! knows no field by name, and does not check whether a configuration is valid.

mod error;
mod lexer;
mod parser;
mod places;
mod printer;
mod reading;
pub(crate) mod suggest;
mod watch;

pub use error::{ParseError, Place};
pub use places::Places;
pub use reading::{Reading, TextProblem, read_text};
pub use suggest::nearest as nearest_name;

use crate::proto::{self, ModelConfig};
use error::Problem;

/// Reads a configuration. Empty text is an empty configuration.
pub fn parse_text(text: &str) -> Result<ModelConfig, ParseError> {
    let message = parser::parse(proto::descriptor(), text).map_err(|problem| problem.locate(text))?;
    message.transcode_to().map_err(|error| Problem::new(0, error.to_string()).locate(text))
}

/// Prints a configuration, one field per line. [`parse_text`] reads it back to an equal one.
pub fn to_text(config: &ModelConfig) -> String {
    printer::print(&proto::to_dynamic(config))
}

#[cfg(test)]
mod tests;
