//! Repository agents in safe Rust, for every server with Triton's C interface.
//!
//! An agent runs before a model is loaded. It may refuse the model, or replace its files, and is notified of the
//! model's fate. Implement [`Agent`], export it with [`export_agent!`], and build a `cdylib` named
//! `tritonrepoagent_<name>`. The server loads it from the folder `<name>` of its `--repoagent-directory`.
//!
//! ```
//! use triton_repoagent::{Agent, Error, Loading, Place, Result, export_agent};
//!
//! /// Refuses models that have no licence.
//! struct Licensed;
//!
//! impl Agent for Licensed {
//!     type Model = ();
//!
//!     fn start() -> Result<Self> {
//!         Ok(Self)
//!     }
//!
//!     fn load(&self, model: &mut Loading<'_>) -> Result<()> {
//!         match model.place()? {
//!             Place::Folder(folder) if folder.join("LICENSE").exists() => Ok(()),
//!             place => Err(Error::invalid_argument(format!("{place} has no file LICENSE"))),
//!         }
//!     }
//! }
//!
//! export_agent!(Licensed);
//! # // The functions of the server, which a test has not.
//! # fn main() {}
//! ```
//!
//! The functions that this crate calls come from the server that loads the library; nothing is linked.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

#[doc(hidden)]
pub mod entry;
mod error;
mod loading;

pub use error::{Error, ErrorCode, Result};
pub use loading::{Loading, Place};
#[doc(hidden)]
pub use triton_sys as sys;

/// A repository agent. Several threads may load models at the same time.
pub trait Agent: Send + Sync + Sized + 'static {
    /// The agent's data for a model, kept until the model is unloaded.
    type Model: Send + Sync + 'static;

    /// The first model that names the agent is about to be loaded.
    ///
    /// # Errors
    /// The agent cannot be used; the load of the model fails.
    fn start() -> Result<Self>;

    /// A model is about to be loaded.
    ///
    /// # Errors
    /// The agent refuses the model: the load fails with this error, and nothing else is called for the model.
    fn load(&self, model: &mut Loading<'_>) -> Result<Self::Model>;

    /// The model is loaded, and serves.
    ///
    /// # Errors
    /// The server logs it.
    fn loaded(&self, _model: &Self::Model) -> Result<()> {
        Ok(())
    }

    /// The model could not be loaded. It is dropped next.
    ///
    /// # Errors
    /// The server logs it.
    fn load_failed(&self, _model: &Self::Model) -> Result<()> {
        Ok(())
    }

    /// The model no longer serves. Requests may still be in progress.
    ///
    /// # Errors
    /// The server logs it.
    fn unloading(&self, _model: &Self::Model) -> Result<()> {
        Ok(())
    }

    /// The model is unloaded. It is dropped next, and so is the folder that the agent acquired.
    ///
    /// # Errors
    /// The server logs it.
    fn unloaded(&self, _model: &Self::Model) -> Result<()> {
        Ok(())
    }
}

/// Exports an [`Agent`] under the names that servers look up. Use it once in a library.
#[macro_export]
macro_rules! export_agent {
    ($agent:ty) => {
        $crate::export_functions! {
            $agent;
            TRITONREPOAGENT_Initialize = initialize(agent: *mut $crate::sys::TRITONREPOAGENT_Agent);
            TRITONREPOAGENT_Finalize = finalize(agent: *mut $crate::sys::TRITONREPOAGENT_Agent);
            TRITONREPOAGENT_ModelFinalize = model_finalize(
                agent: *mut $crate::sys::TRITONREPOAGENT_Agent,
                model: *mut $crate::sys::TRITONREPOAGENT_AgentModel
            );
            TRITONREPOAGENT_ModelAction = model_action(
                agent: *mut $crate::sys::TRITONREPOAGENT_Agent,
                model: *mut $crate::sys::TRITONREPOAGENT_AgentModel,
                action: $crate::sys::TRITONREPOAGENT_ActionType
            );
        }
    };
}

/// The functions of an agent.
#[doc(hidden)]
#[macro_export]
macro_rules! export_functions {
    ($agent:ty; $($name:ident = $function:ident($($argument:ident: $type:ty),*);)*) => {
        $(
            /// # Safety
            /// Only the server may call it.
            #[doc(hidden)]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> *mut $crate::sys::TRITONSERVER_Error {
                // SAFETY: the server calls this as the interface specifies.
                unsafe { $crate::entry::$function::<$agent>($($argument),*) }
            }
        )*
    };
}

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
