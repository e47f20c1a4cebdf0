//! The HTTP client of all stores: TLS, proxies, limits on silence, redirects, and URLs whose text form has no secrets.
//!
//! [`Connector`] sends single requests, also for the library of object stores. [`Client`] follows redirects. Neither
//! knows buckets, hubs or models.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]
#![forbid(unsafe_code)]

mod body;
mod connector;
mod environment;
mod patience;
mod proxies;
mod reach;
mod redirects;
mod replies;
mod resolver;
mod url;

pub use connector::{Connector, ResponseHeaders};
pub use environment::Environment;
pub use patience::Patience;
pub use reach::Reach;
pub use redirects::{Client, Origin};
pub use replies::{DOCUMENT_LIMIT, bearer, number, problem, successful, text};
pub use url::{SafeUrl, redacted, resolve};
