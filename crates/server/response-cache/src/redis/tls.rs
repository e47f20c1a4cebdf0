//! TLS to Redis.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::settings::TlsSettings;

/// Encrypts connections.
#[derive(Clone)]
pub(super) struct Tls {
    pub connector: TlsConnector,
    /// The name that Redis's certificate must be for.
    pub name: ServerName<'static>,
}

impl Tls {
    /// The TLS configuration with the configured files.
    ///
    /// # Errors
    /// A file that cannot be used.
    pub(super) fn new(settings: &TlsSettings, host: &str) -> Result<Self, String> {
        let roots = roots(settings)?;
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots);
        let config = match &settings.identity {
            None => builder.with_no_client_auth(),
            Some((cert, key)) => {
                let loaded =
                    PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, &error.to_string()))?;
                builder
                    .with_client_auth_cert(certificates(cert)?, loaded)
                    .map_err(|error| unusable(cert, &error.to_string()))?
            }
        };
        let name = settings.sni.as_deref().unwrap_or(host).to_owned();
        let name =
            ServerName::try_from(name).map_err(|error| format!("the name of Redis's host: {error}"))?;
        Ok(Self { connector: TlsConnector::from(Arc::new(config)), name })
    }
}

fn roots(settings: &TlsSettings) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    if let Some(file) = &settings.cacert {
        roots.add_parsable_certificates(certificates(file)?);
    }
    if let Some(folder) = &settings.cacert_dir {
        let entries = fs::read_dir(folder).map_err(|error| unusable(folder, &error.to_string()))?;
        // Such folders usually contain other files, too.
        let files = entries.flatten().map(|entry| entry.path()).filter(|path| path.is_file());
        roots.add_parsable_certificates(files.flat_map(|file| certificates(&file).unwrap_or_default()));
    }
    if settings.cacert.is_none() && settings.cacert_dir.is_none() {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    }
    if roots.is_empty() {
        return Err("no CA certificates found to verify Redis with; set 'cacert' to a file".into());
    }
    Ok(roots)
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let found = CertificateDer::pem_file_iter(file).and_then(Iterator::collect::<Result<Vec<_>, _>>);
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(unusable(file, "it has no certificate")),
        Err(error) => Err(unusable(file, &error.to_string())),
    }
}

fn unusable(file: &Path, why: &str) -> String {
    format!("cannot use '{}' for TLS to Redis: {why}", file.display())
}
