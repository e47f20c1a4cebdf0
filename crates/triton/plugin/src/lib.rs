//! Finds and loads the shared libraries that were built for Triton: backends, repository agents and caches.
//!
//! A [`Kind`] says what its libraries are called and which functions they export. [`SearchPath`] finds a library in a
//! list of folders, [`Kind::load`] loads it. Before that, it checks that this program exports the functions that such
//! libraries call ([`HostFunction`]), among them the one by which they check its API version, and gives the dynamic
//! loader an empty stand-in for `libtritonserver.so`, which many of them are linked against.
//!
//! The crate knows nothing of what plugins do: the loader gives its functions their types and calls them.

mod host;
mod kind;
mod library;
mod search;
mod soname;

pub use host::{HostFunction, make_visible};
pub use kind::Kind;
pub use library::{Plugin, PluginError};
pub use search::{LibraryFile, SearchPath, is_file_name};
