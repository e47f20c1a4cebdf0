//! How the server and a worker process, which runs one instance of a model, talk to each other. Both ends are built from this
//! crate.
//!
//! There are two [channels](Channel) between them, each a Unix socket:
//!
//! - the *call channel* carries one [`call`] of the server at a time, and its answer. The thread that calls waits on the
//!   socket itself, so an answer wakes no other thread first.
//! - the *side channel* carries messages of the process at any time, from any of its threads, and the server's
//!   replies: responses from other threads, inner requests, loads, metrics, the log ([`side`]).
//!
//! A frame (`frame`) has a kind and a payload of [plain values](codec). Contents of tensors up to [`MAX_INLINE`] bytes
//! travel in the payload; larger ones in shared memory (`memory`). Each direction of each channel has a pool (`pool`) of its
//! own, which only its sender allocates from. The receiver frees a place by an atomic in front of it: without a message.
//!
//! Neither end trusts the other: lengths, counts, offsets and kinds are checked, and memory is mapped only if it cannot be cut
//! short. A frame that makes no sense is an error, after which the connection is of no more use.
//!
//! This crate knows neither models nor backends nor languages.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod backlog;
pub mod call;
mod channel;
pub mod codec;
mod frame;
mod memory;
mod pool;
pub mod side;
mod socket;
pub mod tensor;
pub mod worker;

pub use channel::{Channel, Closer, Incoming, Mark, Message, Receiver, Sender};
pub use codec::{Malformed, Reader};
pub use frame::{Frame, MAX_FRAME};
pub use memory::{MAX_SEGMENTS, Region};
pub use pool::{MAX_INLINE, Trimmer};

/// The version of this protocol. Both ends have to speak the same.
pub const VERSION: u32 = 2;
