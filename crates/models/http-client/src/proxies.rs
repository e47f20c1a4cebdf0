//! Proxies from the environment: which requests use which proxy, and how.
//!
//! Hosts on this machine or its own link, such as clouds' metadata services, are reached directly.

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::Uri;
use hyper::header::HeaderValue;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::rt::TokioIo;
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower_service::Service;

use crate::environment::Environment;
use crate::reach::Reach;
use crate::resolver::{ReachResolver, refusal};

/// The longest answer to a CONNECT request.
const ANSWER: usize = 16 << 10;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The proxies of an environment.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proxies {
    http: Option<Proxy>,
    https: Option<Proxy>,
    direct: Vec<Direct>,
}

/// A proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Proxy {
    /// Scheme and authority.
    uri: Uri,
    /// User and password, encoded for the header.
    authorization: Option<String>,
}

/// A destination that is reached without a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Direct {
    All,
    /// An address, or a network.
    Addresses(IpAddr, u32),
    /// A host and its subdomains.
    Host(String),
}

impl Proxies {
    /// The proxies that `HTTP_PROXY`, `HTTPS_PROXY`, `ALL_PROXY` and `NO_PROXY` configure, in upper or lower case.
    ///
    /// # Errors
    /// A value is not the URL of a proxy.
    pub(crate) fn of(environment: &Environment) -> Result<Self, String> {
        let proxy = |names: &[&str; 4]| match environment.first(names) {
            Some(text) => Proxy::parse(&text)
                .map(Some)
                .ok_or_else(|| format!("{} is not the URL of a proxy, http://host:port", names[0])),
            None => Ok(None),
        };
        let direct = environment.first(&["NO_PROXY", "no_proxy"]).unwrap_or_default();
        Ok(Self {
            http: proxy(&["HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"])?,
            https: proxy(&["HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"])?,
            direct: direct.split(',').filter_map(|entry| Direct::parse(entry.trim())).collect(),
        })
    }

    /// The `Proxy-Authorization` header of a request that is not encrypted.
    pub(crate) fn login(&self, uri: &Uri) -> Option<HeaderValue> {
        let proxy = self.of_request(uri).filter(|_| uri.scheme_str() != Some("https"))?;
        let mut login = HeaderValue::from_str(proxy.authorization.as_deref()?).ok()?;
        login.set_sensitive(true);
        Some(login)
    }

    /// Whether a request goes through a proxy.
    pub(crate) fn covers(&self, uri: &Uri) -> bool {
        self.of_request(uri).is_some()
    }

    /// The proxy for a request.
    fn of_request(&self, uri: &Uri) -> Option<&Proxy> {
        let proxy = if uri.scheme_str() == Some("https") { &self.https } else { &self.http };
        let host = uri.host()?.trim_matches(['[', ']']).to_ascii_lowercase();
        let address: Option<IpAddr> = host.parse().ok();
        let is_near = host == "localhost" || address.is_some_and(is_near);
        let is_direct = is_near || self.direct.iter().any(|direct| direct.covers(&host, address));
        proxy.as_ref().filter(|_| !is_direct)
    }
}

/// Whether an address belongs to this machine or its own link.
fn is_near(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_loopback() || address.is_link_local(),
        IpAddr::V6(address) => address.is_loopback() || address.is_unicast_link_local(),
    }
}

impl Proxy {
    fn parse(text: &str) -> Option<Self> {
        let text = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
        let uri: Uri = text.parse().ok()?;
        let (user, host) = match uri.authority()?.as_str().rsplit_once('@') {
            Some((user, host)) => (Some(user), host),
            None => (None, uri.authority()?.as_str()),
        };
        // TLS to the proxy itself is rare, and not supported.
        let plain: Uri =
            format!("http://{host}").parse().ok().filter(|_| uri.scheme_str() == Some("http"))?;
        let authorization = user.map(|user| {
            let user = percent_decode_str(user).decode_utf8_lossy();
            format!("Basic {}", STANDARD.encode(user.as_bytes()))
        });
        Some(Self { uri: plain, authorization })
    }
}

impl Direct {
    fn parse(entry: &str) -> Option<Self> {
        if entry == "*" {
            return Some(Self::All);
        }
        let (address, bits) = match entry.split_once('/') {
            Some((address, bits)) => (address, bits.parse().ok()),
            None => (entry, None),
        };
        if let Ok(address) = address.trim_matches(['[', ']']).parse::<IpAddr>() {
            let all = if address.is_ipv4() { 32 } else { 128 };
            return Some(Self::Addresses(address, bits.unwrap_or(all).min(all)));
        }
        let host = entry.trim_start_matches("*.").trim_start_matches('.').to_ascii_lowercase();
        // The port is ignored.
        let host = host.split(':').next().unwrap_or_default();
        (!host.is_empty()).then(|| Self::Host(host.to_owned()))
    }

    fn covers(&self, host: &str, address: Option<IpAddr>) -> bool {
        match self {
            Self::All => true,
            Self::Host(suffix) => {
                host.strip_suffix(suffix.as_str()).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
            }
            Self::Addresses(IpAddr::V4(of), bits) => matches!(address, Some(IpAddr::V4(address))
                if (u32::from(*of) ^ u32::from(address)).checked_shr(32 - bits).unwrap_or(0) == 0),
            Self::Addresses(IpAddr::V6(of), bits) => matches!(address, Some(IpAddr::V6(address))
                if (u128::from(*of) ^ u128::from(address)).checked_shr(128 - bits).unwrap_or(0) == 0),
        }
    }
}

/// Connects to servers, through proxies where there are some.
#[derive(Clone, Debug)]
pub(crate) struct ProxyConnector {
    /// Connects to servers of the minimum reach.
    pub tcp: HttpConnector<ReachResolver>,
    /// Connects to proxies, wherever they are.
    pub to_proxies: HttpConnector,
    pub proxies: Proxies,
    /// The minimum reach of servers.
    pub minimum: Reach,
}

impl Service<Uri> for ProxyConnector {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // Neither resolver ever makes a caller wait here.
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        // An address is not resolved, so the resolver does not see it.
        let host = uri.host().unwrap_or_default();
        if let Some(reach) = Reach::of_host(host).filter(|reach| *reach < self.minimum) {
            let refusal = refusal(&format!("'{host}'"), reach);
            return Box::pin(async move { Err(refusal.into()) });
        }
        let Some(proxy) = self.proxies.of_request(&uri).cloned() else {
            let connecting = self.tcp.call(uri);
            return Box::pin(async move { Ok(Stream { io: connecting.await?, is_proxied: false }) });
        };
        let connecting = self.to_proxies.call(proxy.uri.clone());
        Box::pin(async move {
            let through = |error: BoxError| format!("proxy '{}': {error}", proxy.uri);
            let io = connecting.await.map_err(|error| through(error.into()))?;
            if uri.scheme_str() != Some("https") {
                return Ok(Stream { io, is_proxied: true });
            }
            let tunnel = tunnel(io.into_inner(), &uri, proxy.authorization.as_deref()).await;
            let io = TokioIo::new(tunnel.map_err(|error| through(error.into()))?);
            Ok(Stream { io, is_proxied: false })
        })
    }
}

/// Sends a CONNECT request for a server to a proxy.
async fn tunnel(mut io: TcpStream, uri: &Uri, authorization: Option<&str>) -> io::Result<TcpStream> {
    let host = uri.host().unwrap_or_default();
    let target = format!("{host}:{}", uri.port_u16().unwrap_or(443));
    let login = authorization.map_or_else(String::new, |login| format!("Proxy-Authorization: {login}\r\n"));
    io.write_all(format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{login}\r\n").as_bytes()).await?;
    let mut answer = Vec::new();
    // Read byte by byte: everything after the answer belongs to the server, which sends nothing first.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() > ANSWER {
            return Err(io::Error::other("its answer is too long"));
        }
        answer.push(io.read_u8().await?);
    }
    let line = String::from_utf8_lossy(answer.split(|byte| *byte == b'\r').next().unwrap_or_default());
    let is_open = line.starts_with("HTTP/1.") && line.split(' ').nth(1) == Some("200");
    if is_open { Ok(io) } else { Err(io::Error::other(format!("no connection to {target}: {line}"))) }
}

/// A connection, to a server or to a proxy.
pub(crate) struct Stream {
    io: TokioIo<TcpStream>,
    /// Whether requests name the server.
    is_proxied: bool,
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        self.io.connected().proxy(self.is_proxied)
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn proxies(variables: &[(&'static str, &str)]) -> Result<Proxies, String> {
        let variables: BTreeMap<_, _> =
            variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        Proxies::of(&Environment::new(move |name| variables.get(name).cloned()))
    }

    fn chosen(variables: &[(&'static str, &str)], url: &str) -> Option<String> {
        let proxies = proxies(variables).unwrap();
        proxies.of_request(&url.parse().unwrap()).map(|proxy| proxy.uri.to_string())
    }

    #[test]
    fn the_scheme_chooses_the_proxy() {
        let both = [("HTTP_PROXY", "http://plain:1"), ("https_proxy", "secure:2")];
        for (variables, url, expected) in [
            (&both[..], "http://h/x", Some("http://plain:1/")),
            (&both, "https://h/x", Some("http://secure:2/")),
            (&both[..1], "https://h/x", None),
            (&[("ALL_PROXY", "http://all:3")], "https://h/x", Some("http://all:3/")),
            (&both, "http://localhost:9/x", None),
            (&both, "http://127.0.0.1:9/x", None),
            (&both, "http://169.254.169.254/latest", None),
            (&both, "http://[::1]:9/x", None),
            (&[], "https://h/x", None),
        ] {
            assert_eq!(chosen(variables, url).as_deref(), expected, "{url}");
        }
    }

    #[test]
    fn some_hosts_are_reached_directly() {
        for (list, host, is_direct) in [
            ("example.com", "example.com", true),
            ("example.com", "a.example.com", true),
            ("example.com", "notexample.com", false),
            (".example.com,x", "a.example.com", true),
            ("*.example.com", "b.a.EXAMPLE.com", true),
            ("example.com:443", "example.com", true),
            ("*", "anything", true),
            ("10.0.0.0/8", "10.200.1.1", true),
            ("10.0.0.0/8", "11.0.0.1", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3", "10.1.2.4", false),
            ("0.0.0.0/0", "8.8.8.8", true),
            ("fd00::/8", "[fd12::1]", true),
            ("fd00::/8", "[fe12::1]", false),
            ("", "h", false),
            (" , a , b ", "b", true),
        ] {
            let variables = [("HTTP_PROXY", "http://p:1"), ("NO_PROXY", list)];
            let url = format!("http://{host}/x");
            assert_eq!(chosen(&variables, &url).is_none(), is_direct, "{list} {host}");
        }
    }

    #[test]
    fn a_proxy_may_need_a_password() {
        let proxies = proxies(&[("HTTPS_PROXY", "http://me:a%40b@p:1")]).unwrap();
        let proxy = proxies.https.unwrap();
        assert_eq!(proxy.uri.to_string(), "http://p:1/");
        assert_eq!(proxy.authorization.as_deref(), Some("Basic bWU6YUBi"));
    }

    #[test]
    fn invalid_proxy_is_refused_without_its_password() {
        for wrong in ["https://me:secret@p", "socks5://me:secret@p", "http://", "http://me:secret@"] {
            let error = proxies(&[("HTTP_PROXY", wrong)]).unwrap_err();
            assert!(error.starts_with("HTTP_PROXY is not") && !error.contains("secret"), "{error}");
        }
    }
}
