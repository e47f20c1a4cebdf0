//! Confines processes of models: what they may read, write, reach and signal.
//!
//! A [`Policy`] describes what a process may do. [`Sandbox::prepare`] turns it into a Landlock ruleset, seccomp filters and
//! limits of resources before the fork, and [`Sandbox::confine`] has the child apply them between fork and exec, where only
//! async-signal-safe calls are allowed. [`Support`] reports what the kernel offers.
//!
//! This crate knows no model, no backend and no language.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod cgroups;
mod child;
mod filter;
mod paths;
mod policy;
mod rules;
mod support;
mod variables;

pub use cgroups::Cpus;
pub use child::{Confinement, Sandbox, inherit, remove_left_over_folders};
pub use policy::{Level, Network, ParseError, Policy};
pub use support::{Error, Support};

#[cfg(test)]
mod tests;
