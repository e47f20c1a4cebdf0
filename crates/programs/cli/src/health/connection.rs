//! One request and its reply, on a connection of its own. Blocks; knows HTTP/1.1 as far as a short reply needs it.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use nereid_assembly::VERSION;
use nereid_terminal::Address;
use nereid_terminal::tls::{self, Identity, Trust};
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

/// The most bytes of a reply that are read. A server's reason is far shorter.
const REPLY_LIMIT: usize = 64 << 10;

/// The most headers of a reply.
const MAX_HEADERS: usize = 64;

/// A request without a body.
pub(super) struct Exchange<'a> {
    pub target: &'a Address,
    /// The path below the target's.
    pub path: &'a str,
    pub headers: &'a [(String, String)],
    pub trust: &'a Trust,
    pub identity: Option<Identity>,
    pub limit: Duration,
}

/// A reply: its status, and its body, or the beginning of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Exchange<'_> {
    /// Sends the request, and reads the reply.
    ///
    /// # Errors
    /// The server cannot be reached, is not trusted, or does not speak HTTP.
    pub(super) fn run(&self) -> Result<Reply, String> {
        let failed = |error: io::Error| format!("no answer: {error}");
        if let Some(socket) = &self.target.socket {
            let mut stream =
                UnixStream::connect(socket).map_err(|error| format!("cannot connect: {error}"))?;
            stream.write_all(&self.request()).map_err(failed)?;
            return read_reply(&mut stream);
        }
        let mut stream = connect(self.target, self.limit)?;
        if !self.target.is_tls {
            stream.write_all(&self.request()).map_err(failed)?;
            return read_reply(&mut stream);
        }
        let settings = tls::settings(self.trust, self.identity.as_ref())?;
        let host = &self.target.host;
        let name =
            ServerName::try_from(host.clone()).map_err(|_| format!("'{host}' is not the name of a host"))?;
        let client = ClientConnection::new(Arc::new(settings), name);
        let mut stream =
            StreamOwned::new(client.map_err(|error| format!("cannot set up TLS: {error}"))?, stream);
        // The handshake is a part of the first write.
        stream.write_all(&self.request()).map_err(|error| format!("cannot set up TLS: {error}"))?;
        read_reply(&mut stream)
    }

    fn request(&self) -> Vec<u8> {
        let Address { authority, base, .. } = self.target;
        let mut request = format!(
            "GET {base}{} HTTP/1.1\r\nHost: {authority}\r\nUser-Agent: nereid-health/{VERSION}\r\nAccept: application/json\r\n\
             Connection: close\r\n",
            self.path
        );
        for (name, value) in self.headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        request.into_bytes()
    }
}

/// Connects to the first address of the target that accepts connections.
fn connect(target: &Address, limit: Duration) -> Result<TcpStream, String> {
    let addresses = (target.host.as_str(), target.port).to_socket_addrs();
    let addresses: Vec<_> = addresses.map_err(|error| format!("cannot find the host: {error}"))?.collect();
    // An address that drops packets leaves time for the next one.
    let share = limit / u32::try_from(addresses.len()).unwrap_or(u32::MAX).max(1);
    let mut failure = "the host has no address".to_owned();
    for address in &addresses {
        match TcpStream::connect_timeout(address, share) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = format!("cannot connect: {error}"),
        }
    }
    Err(failure)
}

/// Reads a reply up to its end, or up to the limit.
fn read_reply(stream: &mut impl Read) -> Result<Reply, String> {
    let mut bytes = Vec::with_capacity(1024);
    let mut chunk = [0; 4096];
    loop {
        let count = match stream.read(&mut chunk) {
            // TLS reports a connection that was closed without notice.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => 0,
            read => read.map_err(|error| format!("no answer: {error}"))?,
        };
        bytes.extend_from_slice(&chunk[..count]);
        let is_over = count == 0 || bytes.len() >= REPLY_LIMIT;
        if let Some(reply) = parse(&bytes, is_over)? {
            return Ok(reply);
        }
        if is_over {
            return Err(if bytes.is_empty() {
                "the connection was closed without an answer"
            } else {
                NOT_HTTP
            }
            .into());
        }
    }
}

const NOT_HTTP: &str = "the answer is not of HTTP; is it the port of HTTP, and is it with or without TLS?";

/// The reply in these bytes; `None` if more of it is to come. `is_over` is whether no more bytes come.
fn parse(bytes: &[u8], is_over: bool) -> Result<Option<Reply>, String> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = response.parse(bytes).map_err(|_| NOT_HTTP)? else {
        return Ok(None);
    };
    let status = response.code.unwrap_or_default();
    let length = response.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length =
        length.and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse::<usize>().ok());
    let body = &bytes[head..];
    let is_whole = is_over || length.is_some_and(|length| body.len() >= length);
    Ok(is_whole.then(|| Reply { status, body: body.to_vec() }))
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::thread;

    use super::*;

    /// Hands out the reply in pieces of this size.
    struct Pieces<'a>(&'a [u8], usize);

    impl Read for Pieces<'_> {
        fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(target.len());
            let (piece, rest) = self.0.split_at(count);
            target[..count].copy_from_slice(piece);
            self.0 = rest;
            Ok(count)
        }
    }

    fn read(bytes: &[u8], size: usize) -> Result<(u16, String), String> {
        let reply = read_reply(&mut Pieces(bytes, size))?;
        Ok((reply.status, String::from_utf8_lossy(&reply.body).into_owned()))
    }

    #[test]
    fn reply_is_read_in_pieces_of_any_size() {
        for size in [1, 2, 7, 4096] {
            for (bytes, expected) in [
                ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Ok((200, ""))),
                ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", Ok((200, "{}"))),
                ("HTTP/1.0 400 Bad Request\r\n\r\n{\"error\":\"x\"}", Ok((400, "{\"error\":\"x\"}"))),
                ("HTTP/1.1 503 \r\nContent-Length: 9\r\n\r\nshort", Ok((503, "short"))),
                ("HTTP/1.1 404 Not Found\r\nContent-Length: many\r\n\r\nx", Ok((404, "x"))),
                ("", Err("closed without an answer")),
                ("HTTP/1.1 200 OK\r\nConte", Err("not of HTTP")),
                ("SSH-2.0-OpenSSH_9.2\r\n", Err("not of HTTP")),
                ("\x15\x03\x01\0\x02\x02\x46", Err("not of HTTP")),
            ] {
                match (read(bytes.as_bytes(), size), expected) {
                    (Ok((status, body)), Ok(expected)) => {
                        assert_eq!((status, body.as_str()), expected, "{bytes}")
                    }
                    (Err(error), Err(expected)) => assert!(error.contains(expected), "{bytes}: {error}"),
                    (found, expected) => panic!("{bytes}: {found:?}, not {expected:?}"),
                }
            }
        }
    }

    #[test]
    fn endless_reply_is_cut_off() {
        let mut bytes = b"HTTP/1.1 200 OK\r\n\r\n".to_vec();
        bytes.resize(10 * REPLY_LIMIT, b'x');
        let (status, body) = read(&bytes, 4096).unwrap();
        assert!(status == 200 && body.len() < REPLY_LIMIT + 4096, "{}", body.len());
        let headers =
            b"HTTP/1.1 200 OK\r\nx: ".iter().copied().chain(std::iter::repeat_n(b'y', 10 * REPLY_LIMIT));
        assert!(read(&headers.collect::<Vec<_>>(), 4096).unwrap_err().contains("not of HTTP"));
    }

    #[test]
    fn request_has_host_path_and_headers() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let serving = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = vec![0; 4096];
            let count = stream.read(&mut request).unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").unwrap();
            String::from_utf8(request[..count].to_vec()).unwrap()
        });
        let target = Address {
            is_tls: false,
            host: "localhost".into(),
            port,
            socket: None,
            authority: format!("localhost:{port}"),
            base: "/base".into(),
        };
        let headers = [("a".to_owned(), "b".to_owned())];
        let limit = Duration::from_secs(20);
        let trust = &Trust::System;
        let exchange =
            Exchange { target: &target, path: "/v2", headers: &headers, trust, identity: None, limit };
        // The server holds the connection open, so its end is the length that it names.
        assert_eq!(exchange.run(), Ok(Reply { status: 200, body: Vec::new() }));
        let request = serving.join().unwrap();
        assert!(request.starts_with("GET /base/v2 HTTP/1.1\r\n"), "{request}");
        for header in [&*format!("Host: localhost:{port}"), "a: b", "Connection: close"] {
            assert!(request.contains(&format!("\r\n{header}\r\n")), "{request}");
        }
    }
}
