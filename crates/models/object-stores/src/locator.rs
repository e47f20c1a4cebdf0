//! Where programs without credentials can read the objects of a bucket.

use std::sync::Arc;
use std::time::Duration;

use nereid_http_client::problem;
use nereid_hubs::Hub;
use object_store::path::Path;
use object_store::signer::{Method, Signer};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::address::Address;

/// How long a signed URL is valid. Fetching a range takes less.
const VALID: Duration = Duration::from_secs(3600);

/// Characters that are not escaped in the path of a URL.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');

/// Makes URLs that need no credentials.
pub(crate) enum Locator {
    /// Signed URLs, valid for a while.
    Signed(Arc<dyn Signer>),
    /// Plain URLs.
    Public(Public),
    /// The hub's own URLs, if it requires no credentials.
    Hub(Arc<dyn Hub>),
}

/// The base URL of a bucket whose objects need no signature.
pub(crate) struct Public {
    base: String,
    query: Option<String>,
}

impl Public {
    /// For a bucket at a host such as `https://storage.googleapis.com`.
    pub(crate) fn new(host: &str, address: &Address, query: Option<&str>) -> Self {
        let bucket = utf8_percent_encode(&address.bucket, PATH);
        let base = format!("{}/{bucket}", host.trim_end_matches('/'));
        Self { base, query: query.map(str::to_owned) }
    }

    /// For a bucket that has a host of its own.
    pub(crate) fn of_bucket(base: &str) -> Self {
        Self { base: base.trim_end_matches('/').to_owned(), query: None }
    }

    fn url(&self, path: &Path) -> String {
        let query = self.query.as_ref().map_or_else(String::new, |query| format!("?{query}"));
        format!("{}/{}{query}", self.base, utf8_percent_encode(path.as_ref(), PATH))
    }
}

impl Locator {
    /// The URL of an object.
    ///
    /// # Errors
    /// The credentials cannot sign URLs.
    pub(crate) async fn url(&self, path: &Path) -> Result<String, object_store::Error> {
        match self {
            Self::Public(public) => Ok(public.url(path)),
            Self::Hub(hub) => {
                let place = hub.place(path, None).await?;
                let is_public = place.headers.is_empty();
                is_public
                    .then(|| place.url.with_secrets().to_owned())
                    .ok_or_else(|| problem("its files have no addresses for others"))
            }
            Self::Signed(signer) => Ok(signer.signed_url(Method::GET, path, VALID).await?.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_public_buckets_have_plain_addresses() {
        for (host, address, query, key, expected) in [
            ("http://h:9", "s3://http://h:9/b/models", None, "models/m/1/x", "http://h:9/b/models/m/1/x"),
            ("http://h:9/", "s3://b", None, "a b/ä?", "http://h:9/b/a%20b/%C3%A4%3F"),
            ("https://g", "gs://b-1.x/m", None, "m/~_-.", "https://g/b-1.x/m/~_-."),
            ("https://a", "as://a/c/m", Some("sig=x%2B"), "m/x", "https://a/c/m/x?sig=x%2B"),
        ] {
            let address = Address::parse(address).unwrap().unwrap();
            let public = Public::new(host, &address, query);
            assert_eq!(public.url(&Path::parse(key).unwrap()), expected);
        }
    }
}
