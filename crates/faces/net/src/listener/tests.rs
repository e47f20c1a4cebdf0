//! Addresses, and connections in clear text and with TLS over real sockets.

use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use super::*;
use crate::listener::testing::{Authority, Folder};

fn local(port: u16, share: bool) -> Address {
    Host::Name("127.0.0.1".into()).at(port, share)
}

/// Serves connections sequentially: echoes the client's bytes in uppercase.
async fn shout(listener: Listener) {
    loop {
        let Ok(mut connection) = listener.accept().await.open().await else { continue };
        let mut text = String::new();
        if connection.read_to_string(&mut text).await.is_ok() {
            connection.write_all(text.to_uppercase().as_bytes()).await.unwrap();
            connection.shutdown().await.unwrap();
        }
    }
}

#[tokio::test]
async fn plain_connections_pass_bytes_unchanged() {
    let listener = local(0, false).bind().unwrap().listen(None).unwrap();
    let mut client = TcpStream::connect(listener.local_addr().unwrap().tcp().unwrap()).await.unwrap();
    tokio::spawn(shout(listener));
    client.write_all(b"word").await.unwrap();
    client.shutdown().await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "WORD");
}

#[tokio::test]
async fn failed_tls_handshakes_disturb_no_other_client() {
    let authority = Authority::new();
    let folder = Folder::new(&authority.identity("localhost"));
    let tls = Tls::new(folder.files(), &["h2"]).unwrap();
    let listener = local(0, false).bind().unwrap().listen(Some(tls)).unwrap();
    let address = listener.local_addr().unwrap().tcp().unwrap();
    tokio::spawn(shout(listener));
    for garbage in [b"GET / HTTP/1.1\r\n\r\n".as_slice(), &[0; 100], &[22, 3, 1, 0xff, 0xff], b""] {
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(garbage).await.unwrap();
        client.shutdown().await.unwrap();
        // The server ends the connection, perhaps with an alert.
        let _ = client.read_to_end(&mut Vec::new()).await;
    }
    let client = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut client = TlsConnector::from(authority.client(None, &["h2"])).connect(name, client).await.unwrap();
    client.write_all(b"word").await.unwrap();
    client.shutdown().await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "WORD");
}

#[tokio::test]
async fn a_port_is_shared_only_if_both_allow_it() {
    let first = local(0, true).bind().unwrap().listen(None).unwrap();
    let port = first.local_addr().unwrap().tcp().unwrap().port();
    assert!(local(port, true).bind().is_ok());
    assert_eq!(local(port, false).bind().unwrap_err().kind(), ErrorKind::AddrInUse);
}

#[tokio::test]
async fn unix_sockets_know_the_users_of_clients() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let host: Host = format!("unix:{}", path.display()).parse().unwrap();
    let bound = host.at(0, false).bind().unwrap();
    // Connected before the server accepts, written while it does.
    let mut client = UnixStream::connect(&path).await.unwrap();
    let listener = bound.listen(None).unwrap();
    assert_eq!(listener.local_addr().unwrap(), LocalAddress::Unix(path.clone()));
    let connection = listener.accept().await.open().await.unwrap();
    assert_eq!(connection.user(), Some(rustix::process::geteuid().as_raw()));
    assert!(!connection.is_remote() && connection.address().is_none() && connection.certificate().is_none());
    drop(connection);
    assert_eq!(client.read_to_end(&mut Vec::new()).await.unwrap(), 0);
    let mut client = UnixStream::connect(&path).await.unwrap();
    let served = tokio::spawn(shout(listener));
    client.write_all(b"word").await.unwrap();
    client.shutdown().await.unwrap();
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "WORD");
    served.abort();
    let _ = served.await;
    assert!(!path.exists());
}

#[tokio::test]
async fn unix_sockets_have_no_tls() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("socket");
    let files = Folder::new(&Authority::new().identity("localhost"));
    let tls = Tls::new(files.files(), &["h2"]).unwrap();
    let host: Host = format!("unix:{}", path.display()).parse().unwrap();
    assert_eq!(
        host.at(0, false).bind().unwrap().listen(Some(tls)).unwrap_err().kind(),
        ErrorKind::InvalidInput
    );
    assert!(!path.exists());
}

#[test]
fn a_name_without_an_address_is_an_error() {
    assert!(Address::tcp("no.such.host.invalid", 0).bind().is_err());
}

#[tokio::test(start_paused = true)]
async fn failures_to_accept_are_logged_every_few_seconds() {
    for (pause_ms, expected) in [(50, 6), (3000, 5), (20_000, 3)] {
        let complaints = Complaints::default();
        let mut logged = 0;
        for _ in 0..(if pause_ms == 50 { 1101 } else { 55_000 / pause_ms + 1 }) {
            logged += usize::from(complaints.is_due());
            sleep(Duration::from_millis(pause_ms)).await;
        }
        assert_eq!(logged, expected, "a failure each {pause_ms} ms");
    }
}
