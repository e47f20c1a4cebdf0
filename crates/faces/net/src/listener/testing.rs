//! Certificates for the tests, and clients that hold them.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;

use crate::listener::TlsFiles;

/// A certificate authority.
pub(crate) struct Authority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key, in PEM.
pub(crate) struct Identity {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for this name, of a host or a client.
    pub(crate) fn identity(&self, name: &str) -> Identity {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new([name.to_owned()]).unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap().pem();
        Identity { certificate, key: key.serialize_pem() }
    }

    /// A client that trusts this authority alone.
    pub(crate) fn client(&self, identity: Option<&Identity>, protocols: &[&str]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pem().as_bytes()).unwrap()).unwrap();
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots);
        let mut config = match identity {
            None => builder.with_no_client_auth(),
            Some(identity) => {
                let chain = vec![CertificateDer::from_pem_slice(identity.certificate.as_bytes()).unwrap()];
                let key = PrivateKeyDer::from_pem_slice(identity.key.as_bytes()).unwrap();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Arc::new(config)
    }
}

/// A folder with the files of a server.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new(identity: &Identity) -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.put("cert.pem", &identity.certificate);
        folder.put("key.pem", &identity.key);
        folder
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Replaces a file by renaming, as tools that renew certificates do.
    pub(crate) fn put(&self, name: &str, text: &str) {
        let beside: &Path = &self.path("new");
        fs::write(beside, text).unwrap();
        fs::rename(beside, self.path(name)).unwrap();
    }

    pub(crate) fn files(&self) -> TlsFiles {
        TlsFiles { certificate: self.path("cert.pem"), key: self.path("key.pem"), client_roots: None }
    }
}
