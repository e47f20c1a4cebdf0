//! The server's side of HTTP/2 connections (RFC 9113), for replies that are written as they come: gRPC's.
//!
//! A connection is one future ([`Connection`]). It reads frames, polls the answers to its requests, and writes what they have, so
//! a request takes no task, no lock that others wait for, and one write together with those that are answered at the same time.
//! Memory held for a client is bounded: bodies by flow control, header blocks, requests and unwritten frames by limits.
//!
//! The crate knows requests, replies and their order on a connection; what is served is the [`Service`]'s business. It does
//! not push, ignores priorities, and does not look at the authority of a request.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![deny(clippy::indexing_slicing)]
#![cfg_attr(test, allow(clippy::indexing_slicing, clippy::unwrap_used))]
#![forbid(unsafe_code)]

mod body;
mod connection;
mod frame;
mod hpack;
mod outgoing;
mod reader;
mod request;
mod sending;
mod streams;
mod wakers;

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};

pub use self::body::{Cancelled, Incoming};
pub use self::connection::{Connection, Error};

/// Answers the requests of a connection.
pub trait Service {
    /// The body of a reply.
    type Body: http_body::Body<Data = Bytes> + Unpin;
    /// A reply in the making. It is dropped if the client takes its request back.
    type Future: Future<Output = Response<Self::Body>> + Unpin;

    /// Answers a request. Its URI has a path and a query only.
    fn call(&self, request: Request<Incoming>) -> Self::Future;
}

/// Limits the pings of a client.
pub trait Pings: Send {
    /// A ping arrived. Returns whether it was one too many, which ends the connection.
    fn arrived(&mut self, has_requests: bool) -> bool;

    /// A part of a reply is sent.
    fn replied(&mut self);
}

/// Limits and times of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Most requests in progress.
    pub max_streams: u32,
    /// Most bytes of a request's body that are not read yet.
    pub stream_window: u32,
    /// Most bytes of all bodies that are not read yet.
    pub connection_window: u32,
    /// Longest frame that the client may send.
    pub max_frame: u32,
    /// Largest head of a request: names, values, and 32 bytes for each field.
    pub max_head: u32,
    /// Most requests that the client may reset before they are passed to the service, between two polls.
    pub max_pending_resets: usize,
    /// Most streams that are reset because their frames break the protocol, over the connection's life.
    pub max_error_resets: usize,
    /// After how much silence the client is pinged, and how long it may take to answer; `None` for never.
    pub keepalive: Option<(Duration, Duration)>,
    /// How long a client may leave a part of a reply unread.
    pub taking: Duration,
}

/// Why a stream or a connection ends (RFC 9113, section 7).
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reason(pub u32);

impl Reason {
    pub(crate) const NO_ERROR: Self = Self(0x0);
    pub(crate) const PROTOCOL_ERROR: Self = Self(0x1);
    pub(crate) const INTERNAL_ERROR: Self = Self(0x2);
    pub(crate) const FLOW_CONTROL_ERROR: Self = Self(0x3);
    pub(crate) const STREAM_CLOSED: Self = Self(0x5);
    pub(crate) const FRAME_SIZE_ERROR: Self = Self(0x6);
    pub(crate) const REFUSED_STREAM: Self = Self(0x7);
    pub(crate) const CANCEL: Self = Self(0x8);
    pub(crate) const COMPRESSION_ERROR: Self = Self(0x9);
    pub(crate) const ENHANCE_YOUR_CALM: Self = Self(0xb);
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::NO_ERROR => "NO_ERROR",
            Self::PROTOCOL_ERROR => "PROTOCOL_ERROR",
            Self::INTERNAL_ERROR => "INTERNAL_ERROR",
            Self::FLOW_CONTROL_ERROR => "FLOW_CONTROL_ERROR",
            Self::STREAM_CLOSED => "STREAM_CLOSED",
            Self::FRAME_SIZE_ERROR => "FRAME_SIZE_ERROR",
            Self::REFUSED_STREAM => "REFUSED_STREAM",
            Self::CANCEL => "CANCEL",
            Self::COMPRESSION_ERROR => "COMPRESSION_ERROR",
            Self::ENHANCE_YOUR_CALM => "ENHANCE_YOUR_CALM",
            Self(number) => return write!(f, "{number:#x}"),
        };
        f.write_str(name)
    }
}
