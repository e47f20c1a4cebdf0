//! The built-in repository agents: [`Checksum`] checks a model's files before it is loaded, and [`Dragonfly`] brings the
//! objects of clouds through a network of peers.
//!
//! Neither knows where models are kept: files are in a folder when they are checked, and a store that has objects says where they
//! can be read.

#![forbid(unsafe_code)]

mod checksum;
mod dragonfly;

pub use checksum::Checksum;
pub use dragonfly::{Dragonfly, DragonflyRoutes, DragonflySettings};
