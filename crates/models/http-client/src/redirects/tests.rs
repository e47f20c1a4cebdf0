//! Redirects between hosts that a scripted proxy stands for, so that they may have any name.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, LazyLock, Mutex};

use proptest::prelude::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};

use super::*;
use crate::{Environment, Patience};

/// Requested URLs, with the values of their `authorization` headers.
type Requests = Arc<Mutex<Vec<(String, Option<String>)>>>;

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

/// A proxy that answers each URL with a redirect to the URL behind it, or else with a document.
async fn proxy(links: &[(&str, &str)]) -> (String, Requests) {
    let links: BTreeMap<_, _> =
        links.iter().map(|(from, to)| ((*from).to_owned(), (*to).to_owned())).collect();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let requests = Requests::default();
    let seen = Arc::clone(&requests);
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let (mut head, mut byte) = (Vec::new(), [0]);
            while !head.ends_with(b"\r\n\r\n") && stream.read_exact(&mut byte).await.is_ok() {
                head.push(byte[0]);
            }
            let head = String::from_utf8(head).unwrap();
            let url = head.split(' ').nth(1).unwrap_or_default().to_owned();
            let login = head.lines().find_map(|line| line.strip_prefix("authorization: "));
            seen.lock().unwrap().push((url.clone(), login.map(str::to_owned)));
            let answer = match links.get(&url) {
                Some(to) => format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n"),
                None => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n".to_owned(),
            };
            // The client may have closed the connection.
            let _ = stream.write_all(format!("{answer}connection: close\r\n\r\n").as_bytes()).await;
        }
    });
    (address, requests)
}

fn client(variables: &[(&'static str, &str)]) -> Client {
    let variables: BTreeMap<_, _> =
        variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let environment = Environment::new(move |name| variables.get(name).cloned());
    Client::new(Connector::new(&environment, Patience::default()).unwrap())
}

/// Requests a URL; returns the requests that were sent, and the error if there is one.
fn requested(
    url: &str,
    links: &[(&str, &str)],
    variables: &[(&'static str, &str)],
) -> (Vec<(String, Option<String>)>, Option<String>) {
    runtime().block_on(async {
        let (proxy, requests) = proxy(links).await;
        let client = client(&[&[("HTTP_PROXY", proxy.as_str())], variables].concat());
        let answer = client.send(Method::GET, &SafeUrl::new(url), &HeaderMap::new()).await;
        let seen = requests.lock().unwrap().clone();
        (seen, answer.err().map(|error| error.to_string()))
    })
}

#[test]
fn redirect_from_a_public_host_leads_to_public_hosts_only() {
    let from = "http://public.example/m.zip";
    for (to, refused) in [
        ("http://other.example/m.zip", None),
        ("http://8.8.8.8/m.zip", None),
        ("http://10.0.0.1/m.zip", Some("'10.0.0.1' refused: a private address")),
        ("http://192.168.1.1:8080/m.zip", Some("a private address")),
        ("http://169.254.169.254/latest/meta-data", Some("a link-local address")),
        ("http://2852039166/latest/meta-data", Some("a link-local address")),
        ("http://0xa9fea9fe/latest/meta-data", Some("a link-local address")),
        ("http://[::ffff:169.254.169.254]/latest", Some("a link-local address")),
        ("http://[fd00:ec2::254]/latest", Some("a private address")),
        ("http://localhost:1/m.zip", Some("a loopback address")),
        ("http://127.1/m.zip", Some("a loopback address")),
        ("ftp://public.example/m.zip", Some("'ftp://public.example/m.zip' is not a URL of HTTP")),
    ] {
        let (seen, error) = requested(from, &[(from, to)], &[]);
        match refused {
            None => assert!(error.is_none() && seen[1].0 == to, "{to}: {error:?}"),
            Some(message) => {
                assert!(error.as_ref().is_some_and(|error| error.contains(message)), "{to}: {error:?}");
                assert_eq!(seen.len(), 1, "{to}");
            }
        }
    }
    // With the user's permission.
    let (seen, error) =
        requested(from, &[(from, "http://10.0.0.1/m.zip")], &[("NEREID_PRIVATE_REDIRECTS", "true")]);
    assert!(error.is_none() && seen.len() == 2, "{error:?}");
}

#[test]
fn password_of_a_url_goes_to_its_host_only() {
    let basic = Some("Basic dXNlcjpwYXNzd29yZA==".to_owned());
    for (to, expected) in [
        ("http://public.example/other", basic.clone()),
        ("/other", basic.clone()),
        ("http://public.example:81/other", None),
        ("http://other.example/other", None),
        ("http://user:password@other.example/other", None),
    ] {
        let from = "http://public.example/m.zip";
        let (seen, error) = requested("http://user:password@public.example/m.zip", &[(from, to)], &[]);
        assert_eq!(error, None);
        assert_eq!(seen[0], (from.to_owned(), basic.clone()));
        assert_eq!(seen[1].1, expected, "{to}");
    }
}

#[test]
fn redirects_end_after_a_limit_and_errors_have_no_secrets() {
    let url = "http://public.example/m.zip";
    let (seen, error) =
        requested(&format!("{url}?sig=SECRET"), &[(&format!("{url}?sig=SECRET"), url), (url, url)], &[]);
    let error = error.unwrap();
    assert_eq!(seen.len(), REDIRECTS + 1);
    assert!(error.contains("'http://public.example/m.zip?sig=***' redirects more than"), "{error}");
}

#[test]
fn link_without_tls_is_not_followed_from_a_server_with_tls() {
    let client = client(&[]);
    for (from, to, is_allowed) in [
        ("https://h/a", "https://other/a", true),
        ("https://h/a", "http://h/a", false),
        ("https://h/a", "http://other/a?sig=SECRET", false),
        ("http://h/a", "http://other/a", true),
        ("http://h/a", "https://other/a", true),
    ] {
        let origin = Origin { uri: from.parse().unwrap(), reach: Reach::Public };
        let minimum = client.minimum(Some(&origin), &to.parse().unwrap());
        assert_eq!(minimum.is_ok(), is_allowed, "{from} {to}");
        assert!(minimum.err().is_none_or(|error| !error.to_string().contains("SECRET")));
    }
}

#[test]
fn server_of_less_reach_is_not_connected_to_whatever_its_name() {
    runtime().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = client(&[]);
        for host in ["localhost", "127.0.0.1", "2130706433", "0x7f.1"] {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.uri_mut() = format!("http://{host}:{port}/").parse().unwrap();
            let error = client.0.send(request, Reach::Private).await.err().map(|error| format!("{error:?}"));
            assert!(error.is_some_and(|error| error.contains("a loopback address")), "{host}");
        }
    });
}

/// An address, often one of little reach.
fn hop() -> impl Strategy<Value = u32> {
    prop_oneof![any::<u32>(), Just(0x0a00_0001), Just(0x7f00_0001), Just(0xa9fe_a9fe)]
}

proptest! {
    /// However many redirects there are, none leads to an address of less reach than one before it.
    #[test]
    fn reach_never_shrinks_along_redirects(hops in proptest::collection::vec(hop(), 2..6)) {
        static CLIENT: LazyLock<Client> = LazyLock::new(|| client(&[]));
        let client = &*CLIENT;
        let hops: Vec<_> = hops.into_iter().map(Ipv4Addr::from).collect();
        let mut origin: Option<Origin> = None;
        let mut reached = Vec::new();
        for hop in hops {
            let uri: Uri = format!("http://{hop}/").parse().unwrap();
            let Ok(minimum) = client.minimum(origin.as_ref(), &uri) else { break };
            let reach = Reach::of(IpAddr::V4(hop));
            reached.push(reach);
            origin = Some(Origin { uri, reach: reach.max(minimum) });
        }
        prop_assert!(reached.is_sorted(), "{:?}", reached);
    }
}
