//! Which requests are traced: the settings of the server and of its models (`settings.rs`), and sampling by them (`control.rs`).
//!
//! Knows models by name only, and neither the server nor its faces. A [`TraceStore`] decides on the form of traces and where they are
//! kept.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

mod both;
mod control;
mod settings;

pub use self::control::{TraceControl, TraceParent, TraceStore, TraceStream};
pub use self::settings::{Change, TraceMode, TraceSettings, TraceUpdate};
