//! Keeps the server alive when a framework's library crashes: runs backends in separate processes.
//!
//! With [`Isolation::Load`], each model is first loaded in a separate process. Only if that succeeds does the server
//! load it: a file that crashes the library, or makes it hang, is refused. The server executes requests itself, at full
//! speed. With [`Isolation::Process`], each instance stays in a separate process, like models written in Python; if it
//! dies, its requests get an error, and it is restarted.
//!
//! `nereid-worker` starts the processes, which run its host. This crate knows no framework.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod idle;
mod patience;
mod processes;
mod settings;
mod threads;
mod trial;

pub use processes::{INFORMS, Processes};
pub use settings::{Isolation, Settings};
pub use trial::Trial;
