//! HTTP without a face: connections, pacing, bodies within limits, compression, replies, and routes.
//!
//! A [`Face`] is a table of routes and what they do. A [`Router`] holds the faces of a port, and [`serve`] runs it on a
//! listener. The router itself answers requests without a route, with 404 or 405, requests that may not be made, and
//! requests whose body is too long or too slow. This crate knows no server, no model, and nothing of what faces answer.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![forbid(unsafe_code)]

mod accept;
mod body;
mod compression;
mod cors;
mod events;
mod face;
mod pace;
mod pages;
pub mod reply;
mod router;
mod routes;
mod serve;
mod slots;
mod spelling;
#[cfg(test)]
mod testing;
mod time_limit;

pub use accept::accepts;
pub use body::{Limit, RequestBody};
pub use compression::{Encoding, compress, decompress, unknown_encoding};
pub use cors::{Cors, Origin};
pub use events::{EventSource, events};
pub use face::{Call, Face, PendingReply, Properties};
pub use pace::Busy;
pub use pages::{PackedFile, Pages};
pub use reply::Reply;
pub use router::Router;
pub use routes::{Params, Route, RouteId, RouteMatch, Routes, decode};
pub use serve::{End, PROTOCOLS, TransportOptions, serve};
pub use time_limit::time_limit;
