//! Fetches the public keys of tokens' issuers.

use std::pin::Pin;

use http::HeaderMap;
use nereid_access::FetchKeys;
use nereid_http_client::{Client, Connector, Environment, Patience, SafeUrl};

/// The client of issuers. It trusts the authorities that the machine trusts at the time of the fetch.
#[derive(Debug)]
pub(crate) struct Issuers;

impl FetchKeys for Issuers {
    fn fetch(&self, url: &str) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, String>> + Send>> {
        let url = SafeUrl::new(url);
        Box::pin(async move {
            let client = Client::new(Connector::new(&Environment::of_process(), Patience::default())?);
            let fetched = client.document(&url, &HeaderMap::new()).await;
            fetched.map(|(_, document)| document).map_err(|error| error.to_string())
        })
    }
}
