//! Finds and loads shared libraries built for Triton: backends, repository agents and caches.
//!
//! A [`Kind`] defines the names of its libraries and the functions that they export. [`SearchPath`] finds a library
//! in a list of folders, and [`Kind::load`] loads it. Before loading, it checks that this program exports the
//! functions that such libraries call ([`HostFunction`]), including the one with which they check its API version,
//! and registers an empty stand-in for `libtritonserver.so`, which many of them are linked against, with the dynamic
//! loader.
//!
//! The crate does not know what plugins do: its users type their functions and call them.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod host;
mod kind;
mod library;
mod search;
mod soname;

pub use host::{HostFunction, make_visible};
pub use kind::Kind;
pub use library::{Plugin, PluginError};
pub use search::{LibraryFile, SearchPath, is_file_name};
