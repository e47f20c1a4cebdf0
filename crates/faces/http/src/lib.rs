//! HTTP without a face: connections, pacing, bodies within limits, compression, replies, and routes.
//!
//! A [`Face`] is a table of routes and what they do. Faces are mounted on a listener by [`serve`]: one alone, or several
//! as a tuple, which then share the port. A request that no mounted face has a route for is answered here, with 404 or
//! 405; so is one that lacks the key of a restricted API group, or whose body is too long or too slow. This crate knows
//! no server, no model, and nothing of what faces answer.

#![forbid(unsafe_code)]

mod body;
mod compression;
mod cors;
mod face;
mod mount;
mod pace;
pub mod reply;
mod routes;
mod serve;
mod slots;
mod spelling;
#[cfg(test)]
mod testing;

pub use body::{Limit, RequestBody};
pub use compression::{Encoding, compress, decompress, unknown_encoding};
pub use cors::{Cors, Origin};
pub use face::{Call, Face};
pub use mount::{Mount, RouteMatch};
pub use pace::Busy;
pub use reply::Reply;
pub use routes::{Params, Route, decode, redirected, restricted};
pub use serve::{End, PROTOCOLS, TransportOptions, serve};
