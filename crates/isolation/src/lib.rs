//! Keeps the server alive where the library of a framework does not: backends in processes of their own.
//!
//! With [`Isolation::Load`], each model is first loaded in a process of its own, which ends afterwards. Only if that goes well
//! is it loaded into the server: a file on which the library crashes, or does not come to an end, is refused. Requests are
//! executed in the server, at full speed. With [`Isolation::Process`], each instance stays in a process of its own, as those of
//! models written in Python do; if it dies, its requests get an error, and it starts again.
//!
//! The processes are those of `nereid-worker`, whose host they run. This crate knows no framework.

#![forbid(unsafe_code)]

mod idle;
mod patience;
mod processes;
mod settings;
mod trial;

pub use processes::{INFORMS, Processes};
pub use settings::{Isolation, Settings};
pub use trial::Trial;
