//! The call channel: the server calls, the process answers. There is one call at a time.
//!
//! | call | its values | answer | its values |
//! |---|---|---|---|
//! | [`START`] | version u32; the socket of the side channel as a file descriptor | [`HELLO`] | version u32, text: what the process is |
//! | [`COMPLETE`] | pairs: the model | [`COMPLETED`] | optional text: the configuration, completed |
//! | [`INITIALIZE`] | pairs: the model and the instance | [`INITIALIZED`] | u32: [`REPORTS_READINESS`], [`EXECUTES_CONTINUOUSLY`], [`NAMES_ENGINE`]; with the second, u32: how many requests the instance holds at a time; with the last, text: the engine |
//! | [`EXECUTE`] | count; for each a request, its count of inputs, and these | [`EXECUTED`] | u64: messages that the process had sent on the side channel before; count; for each an [outcome](Outcome) |
//! | [`READY`] | | [`READINESS`] | bool |
//! | [`FINALIZE`] | | [`FINALIZED`] | |
//!
//! The answer to any of them, [`START`] included, may be [`FAILED`] with a [failure](crate::tensor::Failure), and the messages
//! that the process had sent on the side channel before (u64).

use crate::codec::{Malformed, Reader, Writer};
use crate::tensor::{Failure, Response, Value};

/// Begins the connection.
pub const START: u16 = 1;
/// Asks for a model's configuration, completed.
pub const COMPLETE: u16 = 2;
/// Initialises the instance.
pub const INITIALIZE: u16 = 3;
/// Executes a batch.
pub const EXECUTE: u16 = 4;
/// Asks whether the instance would answer requests.
pub const READY: u16 = 5;
/// Ends the instance. The process ends when the connection does.
pub const FINALIZE: u16 = 6;

/// Answers [`START`].
pub const HELLO: u16 = 65;
/// Answers [`COMPLETE`].
pub const COMPLETED: u16 = 66;
/// Answers [`INITIALIZE`].
pub const INITIALIZED: u16 = 67;
/// Answers [`EXECUTE`].
pub const EXECUTED: u16 = 68;
/// Answers [`READY`].
pub const READINESS: u16 = 69;
/// Answers [`FINALIZE`].
pub const FINALIZED: u16 = 70;
/// Answers any call that failed.
pub const FAILED: u16 = 71;

/// The instance answers [`READY`].
pub const REPORTS_READINESS: u32 = 1;
/// The instance executes requests while it takes further ones: all outcomes of [`EXECUTE`] are [`Outcome::Later`] or failures.
pub const EXECUTES_CONTINUOUSLY: u32 = 2;
/// The answer ends in what executes the model, for people, such as `Python 3.12.1`.
pub const NAMES_ENGINE: u32 = 4;

/// The outcome of a request.
#[derive(Debug)]
pub enum Outcome<'a> {
    /// The only response.
    Response(Response<'a>),
    /// An error. Responses sent before are valid.
    Failure(Failure<'a>),
    /// Responses arrive on the side channel, now or later.
    Later,
    /// The request returns to its scheduler. Responses sent before are valid.
    Reschedule,
}

impl Writer {
    /// The outcome of a request that gets a response. The number of its outputs and the
    /// [outputs](crate::Message::tensor) have to follow.
    pub fn response_outcome<'a>(&mut self, parameters: impl ExactSizeIterator<Item = (&'a str, Value<'a>)>) {
        self.u8(0);
        self.parameters(parameters);
    }

    /// The outcome of a request that failed.
    pub fn failure_outcome(&mut self, failure: Failure<'_>) {
        self.u8(1);
        self.failure(failure);
    }

    /// [`Outcome::Later`].
    pub fn later_outcome(&mut self) {
        self.u8(2);
    }

    /// [`Outcome::Reschedule`].
    pub fn reschedule_outcome(&mut self) {
        self.u8(3);
    }
}

impl<'a> Reader<'a> {
    /// The outcome of a request.
    ///
    /// # Errors
    /// The outcome is malformed.
    pub fn outcome(&mut self) -> Result<Outcome<'a>, Malformed> {
        Ok(match self.u8()? {
            0 => Outcome::Response(self.response()?),
            1 => Outcome::Failure(self.failure()?),
            2 => Outcome::Later,
            3 => Outcome::Reschedule,
            _ => return Err(Malformed("unknown kind of outcome")),
        })
    }
}
