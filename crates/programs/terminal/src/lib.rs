//! A client of inference servers for terminals: `nereid infer` sends a request and prints the answer, `nereid top` shows
//! what a server does.
//!
//! The client uses nothing but the HTTP API, so it runs against every server of the KServe v2 protocol. Extensions of Triton are
//! used where the server has them.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod address;
mod connection;
mod infer;
mod text;
pub mod tls;
mod top;

pub use address::Address;
pub use connection::{Access, key};
pub use infer::{Fit, Infer, Order, Sample, Scale, infer};
pub use nereid_client::http::path_segment;
pub use text::single_line;
pub use top::{Top, top};
