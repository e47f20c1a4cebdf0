//! Handshakes in memory, invalid files, and changing files.

use std::fs;
use std::path::Path;

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
use tokio_rustls::{TlsConnector, client};

use super::*;
use crate::listener::testing::{Authority, Folder};

/// The client's side of a handshake; fails if either side does.
async fn handshake(tls: &Tls, client: Arc<ClientConfig>) -> io::Result<client::TlsStream<DuplexStream>> {
    let (near, far) = duplex(1 << 16);
    let server = async {
        let mut stream = tls.accept(far).await?;
        stream.write_all(b"!").await?;
        stream.shutdown().await
    };
    let connector = TlsConnector::from(client);
    let client = async {
        let mut stream = connector.connect(ServerName::try_from("localhost").unwrap(), near).await?;
        // A server that refuses the client's certificate reports it only now.
        stream.read_exact(&mut [0]).await?;
        Ok(stream)
    };
    let (server, client) = tokio::join!(server, client);
    server.and(client)
}

#[tokio::test]
async fn alpn_selects_the_best_common_protocol() {
    let authority = Authority::new();
    let folder = Folder::new(&authority.identity("localhost"));
    let tls = Tls::new(folder.files(), &["h2", "http/1.1"]).unwrap();
    for (offered, chosen) in
        [(["http/1.1", "h2"].as_slice(), Some("h2")), (&["http/1.1"], Some("http/1.1")), (&[], None)]
    {
        let client = handshake(&tls, authority.client(None, offered)).await.unwrap();
        assert_eq!(client.get_ref().1.alpn_protocol(), chosen.map(str::as_bytes), "{offered:?}");
    }
    assert!(handshake(&tls, authority.client(None, &["spdy/1"])).await.is_err());
}

#[tokio::test]
async fn with_client_roots_only_clients_with_a_certificate_are_accepted() {
    let (authority, clients) = (Authority::new(), Authority::new());
    let folder = Folder::new(&authority.identity("localhost"));
    folder.put("roots.pem", &clients.pem());
    let files = TlsFiles { client_roots: Some(folder.path("roots.pem")), ..folder.files() };
    let tls = Tls::new(files, &[]).unwrap();
    let (known, stranger) = (clients.identity("client"), authority.identity("client"));
    assert!(handshake(&tls, authority.client(Some(&known), &[])).await.is_ok());
    assert!(handshake(&tls, authority.client(Some(&stranger), &[])).await.is_err());
    assert!(handshake(&tls, authority.client(None, &[])).await.is_err());
}

#[tokio::test]
async fn changed_files_are_reloaded_once_they_settle() {
    let (old, new) = (Authority::new(), Authority::new());
    let folder = Folder::new(&old.identity("localhost"));
    let tls = Tls::new(folder.files(), &[]).unwrap();
    let identity = new.identity("localhost");
    folder.put("cert.pem", &identity.certificate);
    tls.0.check();
    folder.put("key.pem", &identity.key);
    tls.0.check();
    assert!(handshake(&tls, old.client(None, &[])).await.is_ok(), "they changed between the two checks");
    tls.0.check();
    assert!(handshake(&tls, new.client(None, &[])).await.is_ok());
    assert!(handshake(&tls, old.client(None, &[])).await.is_err());
}

#[tokio::test]
async fn unusable_files_keep_the_previous_ones_in_use() {
    let authority = Authority::new();
    let folder = Folder::new(&authority.identity("localhost"));
    let tls = Tls::new(folder.files(), &[]).unwrap();
    let stays = async || {
        tls.0.check();
        tls.0.check();
        handshake(&tls, authority.client(None, &[])).await.is_ok()
    };
    folder.put("cert.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    assert!(stays().await);
    folder.put("key.pem", "");
    assert!(stays().await);
    fs::remove_file(folder.path("cert.pem")).unwrap();
    assert!(stays().await);
    let other = Authority::new();
    let identity = other.identity("localhost");
    folder.put("cert.pem", &identity.certificate);
    folder.put("key.pem", &identity.key);
    assert!(!stays().await);
    assert!(handshake(&tls, other.client(None, &[])).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_times_out() {
    let folder = Folder::new(&Authority::new().identity("localhost"));
    let tls = Tls::new(folder.files(), &[]).unwrap();
    let (_near, far) = duplex(64);
    assert_eq!(tls.accept(far).await.unwrap_err().kind(), ErrorKind::TimedOut);
}

/// The error for these files.
#[track_caller]
fn refused(files: TlsFiles) -> String {
    Tls::new(files, &[]).unwrap_err().to_string()
}

#[test]
fn unusable_files_are_named() {
    let authority = Authority::new();
    let folder = Folder::new(&authority.identity("localhost"));
    folder.put("other.pem", &authority.identity("localhost").key);
    folder.put("empty.pem", "");
    folder.put("cut.pem", &authority.pem()[..200]);
    folder.put("nonsense.pem", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let key = authority.identity("x").key.replace("PRIVATE", "ENCRYPTED PRIVATE");
    folder.put("encrypted.pem", &key);
    let path = |name: &str| folder.path(name);
    let with_certificate = |name| refused(TlsFiles { certificate: path(name), ..folder.files() });
    let with_key = |name| refused(TlsFiles { key: path(name), ..folder.files() });
    let with_roots = |name| refused(TlsFiles { client_roots: Some(path(name)), ..folder.files() });
    let names = |text: String, name: &str, what: &str| {
        assert!(text.contains(Path::new(name).to_str().unwrap()) && text.contains(what), "{text}");
    };
    names(with_certificate("missing.pem"), "missing.pem", "cannot read");
    names(with_certificate("empty.pem"), "empty.pem", "contains no certificate");
    names(with_certificate("key.pem"), "key.pem", "contains no certificate");
    names(with_certificate("cut.pem"), "cut.pem", "is malformed");
    names(with_certificate("nonsense.pem"), "nonsense.pem", "cannot use");
    names(with_key("other.pem"), "other.pem", "cannot use");
    names(with_key("cert.pem"), "cert.pem", "contains no unencrypted private key");
    names(with_key("encrypted.pem"), "encrypted.pem", "contains no unencrypted private key");
    names(with_roots("empty.pem"), "empty.pem", "contains no certificate");
    names(with_roots("nonsense.pem"), "nonsense.pem", "as root certificates");
}
