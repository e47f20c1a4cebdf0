//! Limits of what is in use at a time: [`Budget`] counts anything, [`BodyBudget`] the bytes of requests and answers.
//!
//! Nothing waits for a budget: a part of it is free, or the request is refused. Knows no model, no protocol and no server.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

mod bodies;
mod budget;

pub use self::bodies::{BodyBudget, BodyShare, DecompressionError};
pub use self::budget::{Budget, Permit};
