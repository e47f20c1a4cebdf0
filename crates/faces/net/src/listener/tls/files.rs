//! TLS files: reads them, checks them against each other, and detects changes.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::crypto::ring;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use thiserror::Error;

/// The files of a TLS server, all in PEM format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate chain.
    pub certificate: PathBuf,
    /// File of the private key, unencrypted.
    pub key: PathBuf,
    /// The root certificates of clients. With these, only clients with a certificate are accepted.
    pub client_roots: Option<PathBuf>,
}

/// The TLS files are unusable.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// The system's error.
        error: io::Error,
    },
    /// A file lacks its contents.
    #[error("{} contains no {what} in PEM format", file.display())]
    Missing {
        /// The file.
        file: PathBuf,
        /// The missing item.
        what: &'static str,
    },
    /// A file is malformed.
    #[error("{} is malformed: {error}", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The parser's error.
        error: pem::Error,
    },
    /// Certificate and key are unusable, or do not belong together.
    #[error("cannot use the certificate in {} with the key in {}: {error}", certificate.display(), key.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// The library's error.
        error: rustls::Error,
    },
    /// The root certificates of clients are unusable.
    #[error("cannot use {} as root certificates of clients: {reason}", file.display())]
    Roots {
        /// The file.
        file: PathBuf,
        /// The reason.
        reason: String,
    },
}

/// Detects changed files: the identity, size and modification time of each; `None` for a missing file.
pub(super) type Stamp = Vec<Option<(u64, u64, u64, i64, i64)>>;

impl TlsFiles {
    fn all(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.certificate), Some(&self.key), self.client_roots.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    /// The files' current stamp.
    pub(super) fn stamp(&self) -> Stamp {
        let stamp = |file: &Path| {
            let about = fs::metadata(file).ok()?;
            Some((about.dev(), about.ino(), about.size(), about.mtime(), about.mtime_nsec()))
        };
        self.all().map(stamp).collect()
    }

    /// Loads the files.
    ///
    /// # Errors
    /// Which file cannot be used, and why.
    pub(super) fn config(&self, protocols: &[Vec<u8>]) -> Result<Arc<ServerConfig>, TlsError> {
        let chain = certificates(&self.certificate)?;
        let key = match PrivateKeyDer::from_pem_slice(&read(&self.key)?) {
            Ok(key) => key,
            Err(pem::Error::NoItemsFound) => {
                return Err(TlsError::Missing { file: self.key.clone(), what: "unencrypted private key" });
            }
            Err(error) => return Err(TlsError::Malformed { file: self.key.clone(), error }),
        };
        let provider = Arc::new(ring::default_provider());
        let unusable =
            |error| TlsError::Pair { certificate: self.certificate.clone(), key: self.key.clone(), error };
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(unusable)?;
        let builder = match &self.client_roots {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let cannot = |reason: String| TlsError::Roots { file: file.clone(), reason };
                let mut roots = RootCertStore::empty();
                for root in certificates(file)? {
                    roots.add(root).map_err(|error| cannot(error.to_string()))?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                    .build()
                    .map_err(|error| cannot(error.to_string()))?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let mut config = builder.with_single_cert(chain, key).map_err(unusable)?;
        config.alpn_protocols = protocols.to_vec();
        Ok(Arc::new(config))
    }
}

impl fmt::Display for TlsFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, file) in self.all().enumerate() {
            write!(f, "{}{}", if index > 0 { ", " } else { "" }, file.display())?;
        }
        Ok(())
    }
}

fn read(file: &Path) -> Result<Vec<u8>, TlsError> {
    fs::read(file).map_err(|error| TlsError::Read { file: file.to_owned(), error })
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(&read(file)?)
        .collect::<Result<_, _>>()
        .map_err(|error| TlsError::Malformed { file: file.to_owned(), error })?;
    if certificates.is_empty() {
        return Err(TlsError::Missing { file: file.to_owned(), what: "certificate" });
    }
    Ok(certificates)
}
