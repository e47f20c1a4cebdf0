//! TLS: which servers are trusted, and the client's own certificate.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};

use crate::Error;

/// Which certificate of a server is trusted. Files are in PEM.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// One that an authority of the system vouches for.
    #[default]
    System,
    /// One that an authority in this file vouches for.
    Authorities(PathBuf),
    /// The first one in this file, under any host name.
    Certificate(PathBuf),
}

/// The files of a client's certificate chain and of its key, in PEM.
pub type Identity = (PathBuf, PathBuf);

/// The settings of TLS.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// The servers that are trusted.
    pub trust: Trust,
    /// The client's own certificate, for servers that require one.
    pub identity: Option<Identity>,
}

impl Tls {
    /// Trusts the authorities of the system.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities in this file, in place of the system's.
    #[must_use]
    pub fn authorities(mut self, file: impl Into<PathBuf>) -> Self {
        self.trust = Trust::Authorities(file.into());
        self
    }

    /// Presents a certificate chain with its key to servers that require one.
    #[must_use]
    pub fn identity(mut self, chain: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some((chain.into(), key.into()));
        self
    }

    /// The configuration of rustls, for connections that offer these protocols.
    ///
    /// # Errors
    /// A file cannot be used.
    pub fn config(&self, protocols: &[&str]) -> Result<ClientConfig, Error> {
        let failed = |error: rustls::Error| Error::invalid(format!("cannot set up TLS: {error}"));
        let provider = Arc::new(ring::default_provider());
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().map_err(failed)?;
        let builder = match &self.trust {
            Trust::System => builder.with_root_certificates(system_roots()),
            Trust::Authorities(file) => builder.with_root_certificates(roots(file)?),
            Trust::Certificate(file) => {
                let certificate = certificates(file)?.swap_remove(0);
                let verifier = Arc::new(OneCertificate { certificate, provider });
                builder.dangerous().with_custom_certificate_verifier(verifier)
            }
        };
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let unreadable =
                    |error| Error::invalid(format!("cannot read the key in '{}': {error}", key.display()));
                let chain = certificates(chain)?;
                let key = PrivateKeyDer::from_pem_file(key).map_err(unreadable)?;
                builder.with_client_auth_cert(chain, key).map_err(failed)?
            }
        };
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        Ok(config)
    }
}

/// The authorities of the system. Without any, the handshake fails with an unknown issuer.
fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    roots
}

fn roots(file: &Path) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(file)? {
        let unusable =
            |error| Error::invalid(format!("cannot use a certificate in '{}': {error}", file.display()));
        roots.add(certificate).map_err(unusable)?;
    }
    Ok(roots)
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

/// Trusts one certificate and ignores its names and dates. A local check reaches the server by `localhost`, which its
/// certificate need not name.
#[derive(Debug)]
struct OneCertificate {
    certificate: CertificateDer<'static>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for OneCertificate {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        if *certificate == self.certificate {
            Ok(ServerCertVerified::assertion())
        } else {
            Err(CertificateError::ApplicationVerificationFailure.into())
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
