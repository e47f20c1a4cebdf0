//! The side channel: messages of the process at any time. A message that expects an [`ANSWER`] begins with a number (u64) that
//! the process chooses; numbers in use are not chosen again.
//!
//! | message | its values | its answers |
//! |---|---|---|
//! | [`RESPOND`] | handle of the request u64, final bool, [reply](Reply) | |
//! | [`RELEASE`] | handle of the request u64: no response follows, and the request gets an error if it has no final one | |
//! | [`IS_CANCELLED`] | number, handle of the request | bool |
//! | [`INFER`] | number, handle of the outer request or 0, model text, version i64 (-1 for any), decoupled bool, request, count of inputs, inputs | responses or failures, the last one marked |
//! | [`CANCEL`] | number of the [`INFER`] | |
//! | [`LOAD`] | number, model text, optional text: configuration, count of files, for each its path as text and its bytes | done |
//! | [`UNLOAD`] | number, model text, dependents bool | done |
//! | [`MODEL_READY`] | number, model text, version i64 | bool |
//! | [`NEW_FAMILY`] | number, kind u8 (0 counter, 1 gauge, 2 histogram), name text, description text | handle |
//! | [`NEW_METRIC`] | number, handle of the family, pairs: labels, count of buckets, for each its bound f64 | handle |
//! | [`METRIC`] | number, handle of the metric, operation u8 ([`METRIC_VALUE`] and so on), f64 | number for [`METRIC_VALUE`], done for the others |
//! | [`DROP_METRIC`] | handle of a family or metric | |
//! | [`METRICS`] | count of families; for each kind u8, name text, description text, count of series; for each pairs: labels, and f64, or for a histogram bounds f64, counts u64 and the sum f64 | |
//! | [`PROGRESS`] | none: an instance that [executes continuously](crate::call::EXECUTES_CONTINUOUSLY) has begun another step | |
//! | [`LOG`] | level u8 (0 information, 1 warning, 2 error, 3 verbose), text | |
//!
//! From the server:
//!
//! | message | its values |
//! |---|---|
//! | [`ANSWER`] | number, last bool, [reply](Reply) |
//! | [`CANCELLED`] | handle of the request u64; only to instances that [execute continuously](crate::call::EXECUTES_CONTINUOUSLY) |
//!
//! A request that is answered with one response over this channel gets it with `final`. A failure is answered with one of code
//! and text, whatever the message.

use crate::codec::{Malformed, Reader, Writer};
use crate::tensor::{Failure, Response, Value};

/// A response to a request, or the end of its responses.
pub const RESPOND: u16 = 128;
/// Ends a request.
pub const RELEASE: u16 = 129;
/// Asks whether a request was cancelled.
pub const IS_CANCELLED: u16 = 130;
/// Makes an inner request.
pub const INFER: u16 = 131;
/// Cancels an inner request.
pub const CANCEL: u16 = 132;
/// Loads a model.
pub const LOAD: u16 = 133;
/// Unloads a model.
pub const UNLOAD: u16 = 134;
/// Asks whether a model is ready.
pub const MODEL_READY: u16 = 135;
/// Makes a family of metrics, or finds it.
pub const NEW_FAMILY: u16 = 136;
/// Makes a metric, or finds it.
pub const NEW_METRIC: u16 = 137;
/// Changes or reads a metric.
pub const METRIC: u16 = 138;
/// Drops a handle of a family or metric.
pub const DROP_METRIC: u16 = 139;
/// A line for the log.
pub const LOG: u16 = 140;
/// The current values of all metrics of a hosted backend.
pub const METRICS: u16 = 141;
/// Reports that a continuous instance has begun another step.
pub const PROGRESS: u16 = 142;

/// The reply to a message of the process.
pub const ANSWER: u16 = 192;
/// Reports that a request was cancelled.
pub const CANCELLED: u16 = 193;

/// Reads a metric.
pub const METRIC_VALUE: u8 = 0;
/// Increments a metric.
pub const METRIC_INCREMENT: u8 = 1;
/// Sets a metric.
pub const METRIC_SET: u8 = 2;
/// Adds a value to a histogram.
pub const METRIC_OBSERVE: u8 = 3;

/// The contents of a reply.
#[derive(Debug)]
pub enum Reply<'a> {
    /// Nothing: only that it was the last.
    Nothing,
    /// A response.
    Response(Response<'a>),
    /// A failure.
    Failure(Failure<'a>),
    /// Success without a value.
    Done,
    /// Yes or no.
    Bool(bool),
    /// A number.
    Number(f64),
    /// The handle of an object of the server.
    Handle(u64),
}

impl Writer {
    /// [`Reply::Nothing`].
    pub fn nothing_reply(&mut self) {
        self.u8(0);
    }

    /// [`Reply::Response`]. The number of its outputs and the [outputs](crate::Message::tensor) have to follow.
    pub fn response_reply<'a>(&mut self, parameters: impl ExactSizeIterator<Item = (&'a str, Value<'a>)>) {
        self.u8(1);
        self.parameters(parameters);
    }

    /// [`Reply::Failure`].
    pub fn failure_reply(&mut self, failure: Failure<'_>) {
        self.u8(2);
        self.failure(failure);
    }

    /// [`Reply::Done`].
    pub fn done_reply(&mut self) {
        self.u8(3);
    }

    /// [`Reply::Bool`].
    pub fn bool_reply(&mut self, value: bool) {
        self.u8(4);
        self.bool(value);
    }

    /// [`Reply::Number`].
    pub fn number_reply(&mut self, value: f64) {
        self.u8(5);
        self.f64(value);
    }

    /// [`Reply::Handle`].
    pub fn handle_reply(&mut self, handle: u64) {
        self.u8(6);
        self.u64(handle);
    }
}

impl<'a> Reader<'a> {
    /// A reply.
    ///
    /// # Errors
    /// The reply is malformed.
    pub fn reply(&mut self) -> Result<Reply<'a>, Malformed> {
        Ok(match self.u8()? {
            0 => Reply::Nothing,
            1 => Reply::Response(self.response()?),
            2 => Reply::Failure(self.failure()?),
            3 => Reply::Done,
            4 => Reply::Bool(self.bool()?),
            5 => Reply::Number(self.f64()?),
            6 => Reply::Handle(self.u64()?),
            _ => return Err(Malformed("unknown kind of reply")),
        })
    }
}
