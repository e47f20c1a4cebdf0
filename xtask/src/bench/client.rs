//! A minimal HTTP client that checks a server's answer and counts its bytes.
//!
//! The client takes no measurements. It requires answers with a Content-Length on a connection that stays open, like
//! the load.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

/// Longer than any answer here takes.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest head accepted.
const LONGEST_HEAD: u64 = 64 * 1024;

/// A server's answer.
#[derive(Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The status line and all headers with their line ends, the empty line too.
    pub head: String,
    /// The body.
    pub body: Vec<u8>,
}

/// A connection that stays open.
pub struct Connection {
    reader: BufReader<TcpStream>,
}

impl Connection {
    /// Connects to a server.
    pub fn open(address: SocketAddr) -> Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Self { reader: BufReader::new(stream) })
    }

    /// Sends a request, head and body, and reads its answer.
    pub fn exchange(&mut self, request: &[u8]) -> Result<Answer> {
        self.write(request)?;
        self.read()
    }

    /// Sends a part of a request.
    pub fn write(&mut self, part: &[u8]) -> Result<()> {
        Ok(self.reader.get_mut().write_all(part)?)
    }

    /// Reads the answer to what was sent.
    pub fn read(&mut self) -> Result<Answer> {
        read_answer(&mut self.reader)
    }
}

/// A request to be sent again and again.
pub struct Request {
    /// The path and query.
    pub path: String,
    /// The length of the JSON at the beginning of the body.
    pub header_length: usize,
    /// JSON, then the tensors' bytes.
    pub body: Vec<u8>,
}

/// Asks once for a path.
pub fn get(address: SocketAddr, path: &str) -> Result<Answer> {
    ask(address, format!("GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").as_bytes())
}

/// Sends an inference request once.
pub fn post(address: SocketAddr, request: &Request) -> Result<Answer> {
    ask(address, &encoded(address, request))
}

/// The bytes of an inference request, head and body.
pub fn encoded(address: SocketAddr, request: &Request) -> Vec<u8> {
    let length = format!("Inference-Header-Content-Length: {}\r\n", request.header_length);
    with_head(address, &request.path, "application/octet-stream", &length, &request.body)
}

/// The bytes of a request in JSON, head and body.
pub fn encoded_json(address: SocketAddr, path: &str, body: &str) -> Vec<u8> {
    with_head(address, path, "application/json", "", body.as_bytes())
}

fn with_head(address: SocketAddr, path: &str, media_type: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: {media_type}\r\n{headers}\
         Content-Length: {}\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

fn ask(address: SocketAddr, bytes: &[u8]) -> Result<Answer> {
    Connection::open(address)?.exchange(bytes)
}

fn read_answer(mut reader: impl std::io::BufRead) -> Result<Answer> {
    let mut head = String::new();
    let mut limited = reader.by_ref().take(LONGEST_HEAD);
    while !head.ends_with("\r\n\r\n") {
        let count = limited.read_line(&mut head).context("cannot read the head of the answer")?;
        ensure!(count > 0, "the answer ends within its head: {head:?}");
    }
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    let Some(status) = status else { bail!("not an HTTP answer: {head:?}") };
    // 304 has neither a body nor, mostly, its length.
    let length = header(&head, "content-length").and_then(|value| value.parse().ok());
    let length = if status == 304 { Some(0) } else { length };
    let Some(length) = length else { bail!("the answer has no Content-Length: {head:?}") };
    let mut body = Vec::new();
    reader.take(length).read_to_end(&mut body).context("cannot read the body of the answer")?;
    ensure!(body.len() as u64 == length, "the answer ends within its body");
    Ok(Answer { status, head, body })
}

/// The value of a header, its name in small letters.
pub fn header<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    head.lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_cut_into_head_and_body() {
        let answer =
            read_answer(&b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\nX-A:  b \r\n\r\nabcd"[..]).unwrap();
        assert_eq!(answer.status, 200);
        assert_eq!(answer.head, "HTTP/1.1 200 OK\r\ncontent-length: 3\r\nX-A:  b \r\n\r\n");
        assert_eq!(answer.body, b"abc");
        assert_eq!(header(&answer.head, "x-a"), Some("b"));
        assert_eq!(header(&answer.head, "x-b"), None);
        let unchanged = read_answer(&b"HTTP/1.1 304 Not Modified\r\n\r\nHTTP/1.1"[..]).unwrap();
        assert_eq!((unchanged.status, unchanged.body), (304, Vec::new()));
    }

    #[test]
    fn broken_answers_are_refused() {
        for (bytes, reason) in [
            ("", "ends within its head"),
            ("HTTP/1.1 200 OK\r\n", "ends within its head"),
            ("nonsense\r\n\r\n", "not an HTTP answer"),
            ("HTTP/1.1 200 OK\r\n\r\n", "no Content-Length"),
            ("HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "no Content-Length"),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort", "ends within its body"),
        ] {
            let error = read_answer(bytes.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(reason), "{bytes:?}: {error}");
        }
    }

    #[test]
    fn an_endless_head_is_refused() {
        let bytes = b"HTTP/1.1 200 OK\r\n".iter().chain(b"X-A: b\r\n".iter().cycle().take(1 << 20));
        let bytes: Vec<u8> = bytes.copied().collect();
        let error = read_answer(&bytes[..]).unwrap_err().to_string();
        assert!(error.starts_with("the answer ends within its head"), "{}", &error[..80]);
    }
}
