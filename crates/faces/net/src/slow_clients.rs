//! How long the server waits for its clients: for the rest of what they began to send, and until they take what is sent
//! to them.
//!
//! A client that stalls would hold memory for as long as it likes, so what has begun must make progress. A byte now and
//! then is none. All of it costs nothing while clients keep up: a timer begins when something waits.
//!
//! It knows no protocol but how HTTP/2's library sends replies. Connections of HTTP/1.1 wait for one thing at a time, and
//! their face has rules of its own.

mod arrival;
mod leaving;
mod replies;
mod writes;

use std::time::Duration;

pub use self::arrival::Arrival;
pub use self::leaving::left;
pub use self::replies::{Requests, TakenInTime, TimedBody, TimedReplies};
pub use self::writes::{Backlog, TimedWrites};

/// How long the beginning of something may take from its first byte, and each [`PROGRESS`] of its rest.
pub const ARRIVAL: Duration = Duration::from_secs(60);

/// How many bytes are progress, unless they are the last.
pub const PROGRESS: usize = 4 << 10;

/// How long a client may take nothing of what is sent to it.
pub const TAKING: Duration = Duration::from_secs(300);

/// How long a client of a connection that ends may do nothing while the server waits for it, and for nothing else. Over
/// HTTP/2, it may still have to make room for the last piece of a reply.
pub const LEAVING: Duration = Duration::from_secs(5);
