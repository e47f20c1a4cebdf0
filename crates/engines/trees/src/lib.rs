//! Ensembles of decision trees: how they are checked, laid out, run and explained.
//!
//! Readers of files make [`Tree`]s, and a [`Forest`] takes them. A damaged file cannot make it read beyond its arrays or loop:
//! each node of a tree is reached once.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod ensemble;
mod error;
mod forest;
mod link;
mod number;
pub mod shap;

pub use crate::ensemble::{Description, Kind, Linear, MAX_OUTPUTS, MAX_TREES, Node, Split, Task, Test, Tree};
pub use crate::error::FormatError;
pub use crate::forest::Forest;
pub use crate::link::Link;
pub use crate::number::Number;
