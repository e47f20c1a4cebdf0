//! Server-side handling of HTTP/2 connections below the library, on raw bytes: admits the client's last streams before the
//! connection drains.

mod draining;
mod frames;

pub use self::draining::{Drain, Draining};
