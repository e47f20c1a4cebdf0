//! What servers do below the HTTP/2 library, on the bytes of a connection: find its frames, and let the client's last
//! streams in before the connection drains.

mod draining;
mod frames;

pub use self::draining::{Drain, Draining};
pub use self::frames::{Frame, HEAD, Kind, PREFACE, Scanner};
