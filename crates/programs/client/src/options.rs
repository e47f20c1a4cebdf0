//! Options of clients.

use std::time::Duration;

use crate::{Error, Retry, http};

/// Options of clients, of which it makes any number.
///
/// ```
/// use std::time::Duration;
/// use nereid_client::Options;
///
/// let options = Options::new().api_key("secret").deadline(Duration::from_secs(5));
/// let client = options.http("http://localhost:8000")?;
/// # Ok::<(), nereid_client::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Options {
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) deadline: Option<Duration>,
    pub(crate) connect_timeout: Option<Duration>,
    pub(crate) retry: Retry,
    pub(crate) is_binary: Option<bool>,
    #[cfg(feature = "tls")]
    pub(crate) tls: crate::Tls,
}

impl Options {
    /// Without a deadline, with a few attempts after refusals, and with the authorities of the system for TLS.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends an API key with each request: the header `Authorization: Bearer KEY`.
    #[must_use]
    pub fn api_key(self, key: &str) -> Self {
        self.header("authorization", &format!("Bearer {key}"))
    }

    /// Sends a header with each request; over gRPC, it is metadata.
    #[must_use]
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Limits the time of each request, further attempts included. Default: none.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = Some(deadline);
        self
    }

    /// Limits the time of each attempt to connect. Default: the system's limit.
    #[must_use]
    pub fn connect_timeout(mut self, limit: Duration) -> Self {
        self.connect_timeout = Some(limit);
        self
    }

    /// Sets when refused requests are sent again.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// Whether tensors are binary over HTTP. Default: if the server reports that it has this extension, which takes one
    /// request before the first inference.
    #[must_use]
    pub fn binary_tensors(mut self, is_binary: bool) -> Self {
        self.is_binary = Some(is_binary);
        self
    }

    /// Sets which servers are trusted, and the client's own certificate.
    #[cfg(feature = "tls")]
    #[must_use]
    pub fn tls(mut self, tls: crate::Tls) -> Self {
        self.tls = tls;
        self
    }

    /// A client over HTTP/1.1. It connects with its first request.
    ///
    /// # Errors
    /// The URL or an option is invalid.
    pub fn http(&self, url: &str) -> Result<http::Client, Error> {
        http::Client::with_options(url, self)
    }

    /// A client over gRPC. It connects with its first request.
    ///
    /// # Errors
    /// The URL or an option is invalid.
    #[cfg(feature = "grpc")]
    pub fn grpc(&self, url: &str) -> Result<crate::grpc::Client, Error> {
        crate::grpc::Client::with_options(url, self)
    }
}
