//! Instances of models that follow the load: more of them while requests wait, fewer when they are not needed.
//!
//! A model takes part if its configuration has the parameter `instances_max`. [`Scaling`] observes such models, a controller without
//! a clock decides (`controller.rs`), and the life cycle changes the instances as it does when a configuration changes: existing ones
//! stay, new ones are warmed up before they get requests, sequences stay where they are.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

mod controller;
mod manager;
mod parameters;

pub use self::manager::Scaling;
pub use self::parameters::PARAMETERS;
