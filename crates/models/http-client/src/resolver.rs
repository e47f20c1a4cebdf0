//! Resolves names to addresses that reach far enough: what a redirect may lead to depends on where it comes from.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::vec;

use hyper_util::client::legacy::connect::dns::{GaiResolver, Name};
use tower_service::Service;

use crate::reach::Reach;

/// The system's resolver, without addresses of less than a minimum reach.
#[derive(Clone, Debug)]
pub(crate) struct ReachResolver {
    pub minimum: Reach,
    pub system: GaiResolver,
}

impl Service<Name> for ReachResolver {
    type Response = vec::IntoIter<SocketAddr>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.system.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (host, minimum) = (name.to_string(), self.minimum);
        let resolving = self.system.call(name);
        Box::pin(async move {
            let addresses = resolving.await?.collect();
            Ok(allowed(&host, addresses, minimum)?.into_iter())
        })
    }
}

/// The addresses of a host that have at least this reach.
///
/// # Errors
/// The host has none.
pub(crate) fn allowed(host: &str, addresses: Vec<SocketAddr>, minimum: Reach) -> io::Result<Vec<SocketAddr>> {
    let is_allowed = |address: &SocketAddr| Reach::of(address.ip()) >= minimum;
    let (allowed, refused): (Vec<_>, Vec<_>) = addresses.into_iter().partition(is_allowed);
    match refused.first() {
        Some(address) if allowed.is_empty() => {
            Err(refusal(&format!("'{host}' ({})", address.ip()), Reach::of(address.ip())))
        }
        _ => Ok(allowed),
    }
}

/// The error for a redirect to a host of less than the minimum reach.
pub(crate) fn refusal(host: &str, reach: Reach) -> io::Error {
    let message = format!(
        "redirect to {host} refused: {} (set NEREID_PRIVATE_REDIRECTS=true to follow it)",
        reach.describe()
    );
    io::Error::new(io::ErrorKind::PermissionDenied, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(list: &[&str]) -> Vec<SocketAddr> {
        list.iter().map(|address| SocketAddr::new(address.parse().unwrap(), 443)).collect()
    }

    #[test]
    fn name_resolves_to_addresses_of_the_minimum_reach() {
        for (list, minimum, expected) in [
            (&["8.8.8.8", "10.0.0.1"][..], Reach::Public, Some(&["8.8.8.8"][..])),
            (&["10.0.0.1"], Reach::Public, None),
            (&["::ffff:10.0.0.1"], Reach::Public, None),
            (&["169.254.169.254"], Reach::Private, None),
            (&["10.0.0.1", "127.0.0.1"], Reach::Private, Some(&["10.0.0.1"])),
            (&["127.0.0.1", "::1"], Reach::Link, None),
            (&["127.0.0.1", "::1"], Reach::Machine, Some(&["127.0.0.1", "::1"])),
            (&[], Reach::Public, Some(&[])),
        ] {
            let found = allowed("host", addresses(list), minimum);
            match expected {
                Some(expected) => assert_eq!(found.unwrap(), addresses(expected), "{list:?}"),
                None => {
                    let error = found.unwrap_err().to_string();
                    assert!(error.starts_with("redirect to 'host' ("), "{error}");
                }
            }
        }
    }
}
