//! The command `nereid`: reads options, and runs a server, makes, fills, checks or pulls a repository, checks the health of a
//! server, sends it a request or shows what it does, finds settings of a model, manages API keys and checks an access policy, prints completions, or hosts
//! a backend for a server.
//!
//! This crate owns the process: log, signals and exit. Other crates do everything else. The program `nereid` runs it, and so does
//! `libtritonserver.so`, for packages that contain the server once.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod access;
mod add;
mod bars;
mod check;
mod client;
mod command;
mod completions;
mod descriptors;
mod health;
mod hosting;
mod init;
mod keys;
mod overview;
mod pull;
mod run;
mod screen;
mod signals;
mod tune;
mod version;

use std::process::ExitCode;

/// Runs the command with the arguments of this process.
pub fn command() -> ExitCode {
    command::main()
}

/// [`command`], with the exit status as a number.
pub fn command_status() -> i32 {
    let status = command();
    (0..=u8::MAX).find(|number| ExitCode::from(*number) == status).map_or(1, i32::from)
}
