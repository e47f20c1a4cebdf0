//! Declarations of Triton's C interface: the functions by which a server and its backends, repository agents and
//! caches call each other.
//!
//! These are `tritonserver.h` 1.34 with the function that release 2.73 added, `tritonbackend.h` 1.19,
//! `tritonrepoagent.h` 0.1 and `tritoncache.h` 0.1 in Rust, under the names of C and without any logic. The headers
//! document each function and its ownership rules; here each group has a line. The crate links nothing: the functions
//! come from the server that loads the backend.
//!
//! - Opaque types are structs that exist only behind pointers.
//! - Enums are integers with constants, since C may pass any number.
//! - Every function is declared twice: as a foreign function, for callers, and as a type of function pointers in
//!   [`signatures`], for implementations and lookups.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![allow(non_camel_case_types, non_snake_case, reason = "the names are those of the C headers")]

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Declares foreign functions, and for each a type of pointers to it, in a module `signatures`.
macro_rules! declare {
    ($(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        #[allow(missing_docs, reason = "described by group; the names are those of the headers")]
        // SAFETY: the declarations were compared with the headers; all calls remain unsafe.
        unsafe extern "C" {
            $(pub fn $name($($argument: $type),*) $(-> $result)?;)*
        }

        signatures! { "C"; $(fn $name($($argument: $type),*) $(-> $result)?;)* }
    };
}

/// The second half of `declare`, alone for functions that are never linked. The server's functions never unwind; a
/// backend's should not, but an exception that its author forgot to catch may escape.
macro_rules! signatures {
    ($abi:literal; $(fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        /// The types of pointers to the functions of this module.
        #[allow(missing_docs, reason = "described by group; the names are those of the headers")]
        pub mod signatures {
            use super::*;

            $(pub type $name = unsafe extern $abi fn($($argument: $type),*) $(-> $result)?;)*
        }

        pub(crate) const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

mod agent;
mod backend;
mod cache;
mod callbacks;
mod entry;
mod enums;
mod handles;
mod inference;
mod own;
mod server;
mod values;

pub use agent::{
    TRITONREPOAGENT_ApiVersion, TRITONREPOAGENT_ModelConfig, TRITONREPOAGENT_ModelParameter,
    TRITONREPOAGENT_ModelParameterCount, TRITONREPOAGENT_ModelRepositoryLocation,
    TRITONREPOAGENT_ModelRepositoryLocationAcquire, TRITONREPOAGENT_ModelRepositoryLocationRelease,
    TRITONREPOAGENT_ModelRepositoryUpdate, TRITONREPOAGENT_ModelSetState, TRITONREPOAGENT_ModelState,
    TRITONREPOAGENT_SetState, TRITONREPOAGENT_State,
};
pub use backend::*;
pub use cache::{
    TRITONCACHE_ApiVersion, TRITONCACHE_CacheEntryAddBuffer, TRITONCACHE_CacheEntryBufferCount,
    TRITONCACHE_CacheEntryGetBuffer, TRITONCACHE_CacheEntrySetBuffer, TRITONCACHE_Copy,
};
pub use callbacks::*;
pub use enums::*;
pub use handles::*;
pub use inference::*;
pub use own::*;
pub use server::*;
pub use values::*;

/// For each function, the type of pointers to it, under the function's name; and lists of the names.
pub mod signatures {
    pub use crate::agent::entry::signatures::*;
    pub use crate::agent::signatures::*;
    pub use crate::backend::signatures::*;
    pub use crate::cache::entry::signatures::*;
    pub use crate::cache::signatures::*;
    pub use crate::entry::signatures::*;
    pub use crate::inference::signatures::*;
    pub use crate::own::signatures::*;
    pub use crate::server::signatures::*;
    pub use crate::values::signatures::*;

    /// The names of the server's functions in `tritonrepoagent.h`.
    pub const AGENT: &[&str] = crate::agent::NAMES;
    /// The names of an agent's functions in `tritonrepoagent.h`.
    pub const AGENT_ENTRY: &[&str] = crate::agent::entry::NAMES;
    /// The names of the server's functions in `tritonbackend.h`.
    pub const BACKEND: &[&str] = crate::backend::NAMES;
    /// The names of the server's functions in `tritoncache.h`.
    pub const CACHE: &[&str] = crate::cache::NAMES;
    /// The names of a cache's functions in `tritoncache.h`.
    pub const CACHE_ENTRY: &[&str] = crate::cache::entry::NAMES;
    /// The names of a backend's functions in `tritonbackend.h`.
    pub const ENTRY: &[&str] = crate::entry::NAMES;
    /// The names of this server's own functions in `nereid.h`.
    pub const OWN: &[&str] = crate::own::NAMES;
    /// The names of the server's functions in `tritonserver.h`, in three parts: exchanged values (with the log and
    /// metrics), inferences, and the server itself.
    pub const SERVER: [&[&str]; 3] = [crate::values::NAMES, crate::inference::NAMES, crate::server::NAMES];
}

/// The version of `tritonbackend.h` declared here: a server with the same major version and at least this minor
/// version supports all of it.
pub const TRITONBACKEND_API_VERSION_MAJOR: u32 = 1;
/// See [`TRITONBACKEND_API_VERSION_MAJOR`].
pub const TRITONBACKEND_API_VERSION_MINOR: u32 = 19;
/// The version of `tritonserver.h` declared here.
pub const TRITONSERVER_API_VERSION_MAJOR: u32 = 1;
/// See [`TRITONSERVER_API_VERSION_MAJOR`].
pub const TRITONSERVER_API_VERSION_MINOR: u32 = 34;

/// The version of `tritonrepoagent.h` declared here.
pub const TRITONREPOAGENT_API_VERSION_MAJOR: u32 = 0;
/// See [`TRITONREPOAGENT_API_VERSION_MAJOR`].
pub const TRITONREPOAGENT_API_VERSION_MINOR: u32 = 1;

#[cfg(test)]
mod tests;
