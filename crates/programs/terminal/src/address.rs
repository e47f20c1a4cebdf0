//! Addresses of servers.

use std::fmt;
use std::path::PathBuf;

use http::Uri;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Whether connections are over TLS.
    pub is_tls: bool,
    /// A name or an address, without brackets.
    pub host: String,
    /// The port. Default: the port of the scheme.
    pub port: u16,
    /// The Unix socket in place of host and port.
    pub socket: Option<PathBuf>,
    /// Host and port as in the URL.
    pub authority: String,
    /// The path of the URL, without a slash at its end.
    pub base: String,
}

impl Address {
    /// Parses a server's URL. A host and a port alone are of HTTP.
    ///
    /// # Errors
    /// The URL is invalid, or of another scheme. The message continues a sentence that names the URL.
    pub fn parse(url: &str) -> Result<Self, String> {
        if let Some(path) = url.strip_prefix("unix:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() {
                return Err("but must be unix: with the path of a socket".into());
            }
            return Ok(Self::at_socket(path.into()));
        }
        let whole = if url.contains("://") { url.to_owned() } else { format!("http://{url}") };
        let uri: Uri = whole.parse().map_err(|error| format!("which is not a URL: {error}"))?;
        let is_tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err("but must begin with http://, https:// or unix:".into()),
        };
        let authority = uri.authority().map_or("", |authority| authority.as_str());
        if authority.contains('@') {
            return Err("but must not have a user: set NEREID_API_KEY, or --header".into());
        }
        let host = uri.host().unwrap_or_default();
        // The parser drops ports that it cannot represent.
        if authority.len() > host.len() && uri.port_u16().is_none() {
            return Err("whose port must be a whole number from 1 to 65535".into());
        }
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() || uri.query().is_some() {
            return Err(
                "but must be http:// or https:// with a host, an optional port and an optional path".into()
            );
        }
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        let base = uri.path().trim_end_matches('/').to_owned();
        Ok(Self { is_tls, host: host.to_owned(), port, socket: None, authority: authority.to_owned(), base })
    }

    /// A server at a Unix socket.
    fn at_socket(path: PathBuf) -> Self {
        let authority = "localhost".to_owned();
        let (host, base) = (authority.clone(), String::new());
        Self { is_tls: false, host, port: 80, socket: Some(path), authority, base }
    }

    /// The address of another port of the same host, without TLS and path.
    pub fn sibling(&self, port: u16) -> Self {
        let host = self.host.clone();
        let shown = if host.contains(':') { format!("[{host}]") } else { host.clone() };
        Self {
            is_tls: false,
            host,
            port,
            socket: None,
            authority: format!("{shown}:{port}"),
            base: String::new(),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(socket) = &self.socket {
            return write!(f, "unix:{}", socket.display());
        }
        write!(f, "{}://{}{}", if self.is_tls { "https" } else { "http" }, self.authority, self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_names_host_port_and_base() {
        for (url, expected) in [
            ("http://localhost:8000", "http localhost 8000 []"),
            ("localhost:8000", "http localhost 8000 []"),
            ("models", "http models 80 []"),
            ("https://models.example.com", "https models.example.com 443 []"),
            ("https://h:8443/a/b/", "https h 8443 [/a/b]"),
            ("HTTP://H:1/", "http H 1 []"),
            ("http://[::1]:8000", "http ::1 8000 []"),
            ("http://127.0.0.1", "http 127.0.0.1 80 []"),
        ] {
            let Address { is_tls, host, port, base, .. } = Address::parse(url).unwrap();
            let scheme = if is_tls { "https" } else { "http" };
            assert_eq!(format!("{scheme} {host} {port} [{base}]"), expected, "{url}");
        }
        for url in ["unix:/run/n.sock", "unix:///run/n.sock"] {
            assert_eq!(Address::parse(url).unwrap().to_string(), "unix:/run/n.sock");
        }
        for (url, expected) in [
            ("unix:", "the path of a socket"),
            ("grpc://h:8001", "must begin with http://"),
            ("http://", "is not a URL"),
            ("", "is not a URL"),
            ("http://me:secret@h", "must not have a user"),
            ("http://h:99999", "whose port must be"),
            ("http://h:", "whose port must be"),
            ("http://h?x=1", "with a host"),
            ("http://a b", "is not a URL"),
        ] {
            let error = Address::parse(url).map(|address| address.to_string()).unwrap_err();
            assert!(error.contains(expected), "{url}: {error}");
        }
    }

    #[test]
    fn sibling_is_another_port_of_the_host() {
        for (url, expected) in [
            ("https://h:8443/a", "http://h:8002"),
            ("[::1]:8000", "http://[::1]:8002"),
            ("h", "http://h:8002"),
        ] {
            assert_eq!(Address::parse(url).unwrap().sibling(8002).to_string(), expected);
        }
    }
}
