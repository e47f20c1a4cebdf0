//! Networking shared by the faces, below their protocols: listening sockets, the runtime of the I/O threads, pacing of
//! slow clients, and draining of HTTP/2 connections.
//!
//! The modules are independent of each other and of the server.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

pub mod http2;
pub mod io_runtime;
pub mod listener;
pub mod slow_clients;
