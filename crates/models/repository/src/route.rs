//! Alternative ways to fetch objects: a cache nearby, or a network of peers.
//!
//! A store still lists its objects itself, and verifies and keeps what arrives. A route only transfers the bytes.

use std::fmt;
use std::ops::Range;
use std::pin::Pin;

use bytes::Bytes;

/// Fetches objects by URLs that are valid for a while without credentials.
pub trait Route: Send + Sync + fmt::Debug {
    /// The route's name in messages.
    fn name(&self) -> &str;

    /// Whether objects that the route cannot fetch are fetched from the store.
    fn may_fall_back(&self) -> bool;

    /// Starts to fetch an object, or a range of it. Runs on a tokio runtime.
    ///
    /// # Errors
    /// The route cannot fetch the object.
    fn get(&self, object: RoutedObject) -> RouteFuture<'_>;

    /// Bytes of an object have arrived.
    fn count(&self, way: Way, bytes: u64);
}

/// Result of [`Route::get`].
pub type RouteFuture<'a> = Pin<Box<dyn Future<Output = Result<RouteAnswer, RouteError>> + Send + 'a>>;

/// The way that bytes arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Through the route.
    Route,
    /// Directly from the store, because the route failed.
    Store,
}

/// An object for a route to fetch.
#[derive(Clone, Debug)]
pub struct RoutedObject {
    /// A URL that needs no further credentials and is valid for a while. It may contain a signature, so it is a secret.
    pub url: String,
    /// The object's entity tag, if the store has one.
    pub etag: Option<String>,
    /// The object's length in bytes.
    pub size: u64,
    /// The range to fetch; `None` for the whole object.
    pub range: Option<Range<u64>>,
}

/// A route's answer.
pub struct RouteAnswer {
    /// The object's own ETag, as far as the route knows it.
    pub etag: Option<String>,
    /// The length of the whole object, as far as the route knows it.
    pub size: Option<u64>,
    /// The contents.
    pub body: Box<dyn RouteBody>,
}

/// Contents that arrive in pieces.
pub trait RouteBody: Send {
    /// The next piece; `None` at the end.
    fn next(&mut self) -> NextPiece<'_>;
}

/// Result of [`RouteBody::next`].
pub type NextPiece<'a> = Pin<Box<dyn Future<Output = Option<Result<Bytes, RouteError>>> + Send + 'a>>;

/// Why a route cannot fetch an object, in one sentence without secrets.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct RouteError(pub String);
