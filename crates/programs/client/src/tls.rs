//! TLS: which servers are trusted, and the client's own certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::Error;

/// The files of TLS, all in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    authorities: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Trusts the authorities of the system.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities in this file, in place of the system's.
    #[must_use]
    pub fn authorities(mut self, file: impl Into<PathBuf>) -> Self {
        self.authorities = Some(file.into());
        self
    }

    /// Presents a certificate chain with its key to servers that require one.
    #[must_use]
    pub fn identity(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some((chain.into(), key.into()));
        self
    }

    /// # Errors
    /// A file cannot be used.
    pub(crate) fn config(&self, protocols: &[&str]) -> Result<ClientConfig, Error> {
        let failed = |error: rustls::Error| Error::invalid(format!("cannot set up TLS: {error}"));
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
        let builder = builder.with_root_certificates(self.roots()?);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let unreadable =
                    |error| Error::invalid(format!("cannot read the key in '{}': {error}", key.display()));
                let key = PrivateKeyDer::from_pem_file(key).map_err(unreadable)?;
                builder.with_client_auth_cert(certificates(chain)?, key).map_err(failed)?
            }
        };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Ok(config)
    }

    fn roots(&self) -> Result<RootCertStore, Error> {
        let mut roots = RootCertStore::empty();
        let Some(file) = &self.authorities else {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            return Ok(roots);
        };
        for certificate in certificates(file)? {
            let unusable =
                |error| Error::invalid(format!("cannot use a certificate in '{}': {error}", file.display()));
            roots.add(certificate).map_err(unusable)?;
        }
        Ok(roots)
    }
}

/// The certificates in a file, at least one.
fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let shown = file.display();
    let all = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    let all =
        all.map_err(|error| Error::invalid(format!("cannot read the certificates in '{shown}': {error}")))?;
    if all.is_empty() {
        return Err(Error::invalid(format!("'{shown}' has no certificate")));
    }
    Ok(all)
}
