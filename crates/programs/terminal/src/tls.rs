//! TLS of clients: which certificates are trusted.

use rustls::ClientConfig;

pub use nereid_client::{Identity, Trust};

/// The settings of connections.
///
/// # Errors
/// A file cannot be used.
pub fn settings(trust: &Trust, identity: Option<&Identity>) -> Result<ClientConfig, String> {
    let tls = nereid_client::Tls { trust: trust.clone(), identity: identity.cloned() };
    tls.config(&[]).map_err(|error| error.to_string())
}
