//! Another way to fetch objects than from where they are kept: a cache nearby, or a network of peers.
//!
//! A store still lists its objects itself, checks what arrives and keeps it. A route only brings the bytes.

use std::fmt;
use std::ops::Range;
use std::pin::Pin;

use bytes::Bytes;

/// Brings objects, by addresses that anybody can read them at for a while.
pub trait Route: Send + Sync + fmt::Debug {
    /// What it is called in messages.
    fn name(&self) -> &str;

    /// Whether what does not come this way is fetched from where it is kept.
    fn may_fall_back(&self) -> bool;

    /// Begins to fetch an object, or a range of it. It is driven on a runtime of tokio.
    ///
    /// # Errors
    /// Why it does not come this way.
    fn get(&self, object: RoutedObject) -> RouteFuture<'_>;

    /// Bytes of an object have arrived.
    fn count(&self, way: Way, bytes: u64);
}

/// What [`Route::get`] returns.
pub type RouteFuture<'a> = Pin<Box<dyn Future<Output = Result<RouteAnswer, RouteError>> + Send + 'a>>;

/// How bytes have arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the route.
    Route,
    /// From where the object is kept, as the route did not bring them.
    Store,
}

/// What a route is to bring.
#[derive(Clone, Debug)]
pub struct RoutedObject {
    /// Where anybody can read it for a while. It may hold a signature, so it is a secret.
    pub url: String,
    /// What differs when the contents do, if the store knows.
    pub etag: Option<String>,
    /// Its length in bytes.
    pub size: u64,
    /// The range to fetch; the whole object if there is none.
    pub range: Option<Range<u64>>,
}

/// What a route brings.
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

/// What [`RouteBody::next`] returns.
pub type NextPiece<'a> = Pin<Box<dyn Future<Output = Option<Result<Bytes, RouteError>>> + Send + 'a>>;

/// Why an object does not come by a route, in one sentence without secrets.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub struct RouteError(pub String);
