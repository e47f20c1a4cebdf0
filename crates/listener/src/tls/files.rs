//! TLS files: reading them, checking them against each other, and detecting changes.

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

/// The files that TLS is made of, all in PEM format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, then those that lead from it to a root.
    pub certificate: PathBuf,
    /// Its private key, not encrypted.
    pub key: PathBuf,
    /// The roots of clients' certificates. With these, only clients with such a certificate get in.
    pub client_roots: Option<PathBuf>,
}

/// Why the files cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file cannot be read.
    #[error("cannot read {}: {error}", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system says.
        error: io::Error,
    },
    /// A file does not have what it should.
    #[error("{} has no {what} in PEM format", file.display())]
    Lacks {
        /// The file.
        file: PathBuf,
        /// What it lacks.
        what: &'static str,
    },
    /// A file is damaged.
    #[error("{} is damaged: {error}", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        error: pem::Error,
    },
    /// Certificate and key cannot be used, or not with each other.
    #[error("the certificate in {} cannot be used with the key in {}: {error}", certificate.display(), key.display())]
    Pair {
        /// The certificate's file.
        certificate: PathBuf,
        /// The key's file.
        key: PathBuf,
        /// What is wrong with them.
        error: rustls::Error,
    },
    /// The roots of clients' certificates cannot be used.
    #[error("the certificates in {} cannot be used as roots of clients' certificates: {reason}", file.display())]
    Roots {
        /// The file.
        file: PathBuf,
        /// What is wrong with them.
        reason: String,
    },
}

/// By what a changed file is recognised: its identity, size and time of change; `None` for one that is not there.
pub(super) type Stamp = Vec<Option<(u64, u64, u64, i64, i64)>>;

impl TlsFiles {
    fn all(&self) -> impl Iterator<Item = &Path> {
        [Some(&self.certificate), Some(&self.key), self.client_roots.as_ref()]
            .into_iter()
            .flatten()
            .map(PathBuf::as_path)
    }

    /// How the files are now.
    pub(super) fn stamp(&self) -> Stamp {
        let stamp = |file: &Path| {
            let about = fs::metadata(file).ok()?;
            Some((about.dev(), about.ino(), about.size(), about.mtime(), about.mtime_nsec()))
        };
        self.all().map(stamp).collect()
    }

    /// What the files come to.
    ///
    /// # Errors
    /// Which one cannot be used, and why.
    pub(super) fn config(&self, protocols: &[Vec<u8>]) -> Result<Arc<ServerConfig>, TlsError> {
        let chain = certificates(&self.certificate)?;
        let key = match PrivateKeyDer::from_pem_slice(&read(&self.key)?) {
            Ok(key) => key,
            Err(pem::Error::NoItemsFound) => {
                return Err(TlsError::Lacks {
                    file: self.key.clone(),
                    what: "private key without a password",
                });
            }
            Err(error) => return Err(TlsError::Damaged { file: self.key.clone(), error }),
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
        .map_err(|error| TlsError::Damaged { file: file.to_owned(), error })?;
    if certificates.is_empty() {
        return Err(TlsError::Lacks { file: file.to_owned(), what: "certificate" });
    }
    Ok(certificates)
}
