//! The server's side of Triton's C interface for backends: loads backends built for Triton as shared libraries, and
//! exports the functions of `tritonbackend.h` and `tritonserver.h` that they call.
//!
//! Towards the rest of the server this is one [`Backend`](nereid_backend_api::Backend), [`LibraryBackends`]. Towards
//! libraries it is a set of C functions, which the program that this crate is linked into has to export: its build
//! script passes [`--export-dynamic-symbol`](https://sourceware.org/binutils/docs/ld/Options.html) to the linker.
//!
//! Applications that embed a server call the same functions, and further ones that create, configure and delete
//! servers. An [`Embedder`], which one of our programs or libraries provides, creates them; without one, no server
//! can be created.
//!
//! Few places deal with C directly: `boundary.rs` checks arguments, `handle.rs` knows which objects are alive, and
//! calls of library functions. All other code is safe. This crate knows no protocol and no face.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod agent;
mod allocator;
mod application;
mod attributes;
mod backend;
mod batching;
mod boundary;
mod cache;
mod call;
mod clock;
mod describe;
mod embedder;
mod error;
mod exports;
mod factory;
mod find;
mod handle;
mod health;
mod inference;
mod input;
mod instance;
mod library;
mod list;
mod loaded;
mod loader;
mod log;
mod memory;
mod message;
mod metrics;
mod model;
mod names;
mod objects;
pub mod offline;
mod options;
mod outcome;
mod own;
mod parameter;
mod release;
mod reply;
mod request;
mod response;
mod server;
mod state;
mod statistics;
mod text;
mod thrown;
mod trace;

pub use agent::LibraryAgents;
pub use cache::LibraryCache;
pub use embedder::{Embedded, Embedder, Settings, embed};
pub use exports::names as exported_names;
pub use loader::{LibraryBackends, LibraryOptions, PythonRunner};
pub use log::{ApplicationLog, LogRecord};
pub use metrics::metric_registry;
pub use options::SETTERS;
pub use own::names as own_names;
