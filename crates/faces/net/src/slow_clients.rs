//! Time limits for clients: to send the rest of a message, and to read what the server sends.
//!
//! A stalled client would pin memory indefinitely, so every transfer must keep a minimum rate; single bytes do not
//! count. Clients that keep up cost nothing: timers start only when the server has to wait.
//!
//! This module depends on no protocol except for the way the HTTP/2 library sends replies. HTTP/1.1 connections wait
//! for one event at a time, and their face implements its own rules.

mod arrival;
mod leaving;
mod replies;
mod writes;

use std::time::Duration;

pub use self::arrival::Arrival;
pub use self::leaving::client_stalled;
pub use self::replies::{InProgress, Requests, TakenInTime, TimedBody, TimedReplies};
pub use self::writes::{Backlog, TimedWrites};

/// Time limit for the first part of a message, from its first byte, and for each further [`PROGRESS`] bytes.
pub const ARRIVAL: Duration = Duration::from_secs(60);

/// Bytes that count as progress, unless they are the last.
pub const PROGRESS: usize = 4 << 10;

/// How long a client may read nothing of what is sent to it.
pub const TAKING: Duration = Duration::from_secs(300);

/// How long the server waits only for the client of a connection that ends. An HTTP/2 client may still have to grant
/// window for the last piece of a reply.
pub const LEAVING: Duration = Duration::from_secs(5);
