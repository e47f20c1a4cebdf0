//! Finds and opens shared libraries at run time.
//!
//! [`Framework`] names the shared library of a framework and the packages that contain it; its
//! [`find`](Framework::find) searches a setting, an environment variable, the backend directory, Python environments,
//! Node.js packages and the system, in this order. [`open`] loads a library and reports failures in the loader's own words. [`symbols!`] declares
//! the functions of a library and looks them up.
//!
//! [`leave`] ends the process while libraries are [in use](InUse).
//!
//! The crate knows no framework: each backend declares its own. It never runs a Python interpreter.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod exit;
mod framework;
mod open;
mod python;
mod symbols;

pub use exit::{InUse, leave, leave_now};
pub use framework::{Framework, LibraryLocation, Place, SearchPlaces};
pub use libloading::os::unix::Library;
pub use open::{Binding, LoadError, open};
pub use symbols::symbol;
