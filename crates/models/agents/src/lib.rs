//! The built-in repository agents: [`Checksum`] checks a model's files before it is loaded, and [`Dragonfly`] fetches
//! cloud objects through a peer-to-peer network.
//!
//! Neither knows where models are kept: files are in a folder when they are checked, and stores with objects provide
//! their URLs.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod checksum;
mod dragonfly;

pub use checksum::Checksum;
pub use dragonfly::{Dragonfly, DragonflyRoutes, DragonflySettings};
