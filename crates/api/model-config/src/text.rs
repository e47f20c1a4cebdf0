//! The protobuf text format, in which `config.pbtxt` is written.
//!
//! The reader accepts what the reference's reader accepts. In particular a message field may go without its colon,
//! before a list as well (`input [ { ... } ]`), which general readers for Rust refuse. It is driven by the schema's
//! descriptors and knows no field by name; it does not check whether a configuration is valid.

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

/// Prints a configuration, one field a line. [`parse_text`] reads it back to an equal one.
pub fn to_text(config: &ModelConfig) -> String {
    printer::print(&proto::to_dynamic(config))
}

#[cfg(test)]
mod tests;
