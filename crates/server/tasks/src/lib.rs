//! Where the work of requests runs when it does not run at once: [`TaskGroup`] continues futures on the threads that wake them,
//! [`long_work`] keeps computations off the threads that serve connections.
//!
//! Knows no model, no protocol and no server.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

mod group;
pub mod long_work;
mod task;

pub use self::group::TaskGroup;
