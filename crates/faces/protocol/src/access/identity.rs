//! The sender of a request, as connections and authenticators establish it.

use std::any::Any;
use std::net::IpAddr;
use std::sync::Arc;

use nereid_core::Principal;

use super::ApiGroup;

/// The number of the credential that proves a sender's name, by which its issuer finds it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Credential(pub u64);

/// A connection's knowledge of its client. The default is a client on this machine, of whom nothing is known.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// The name in the client's certificate.
    pub certificate: Option<Principal>,
    /// The number of the user whose process is at the other end of a Unix socket.
    pub user: Option<u32>,
    /// The client's address at a port.
    pub address: Option<IpAddr>,
    /// Whether the client is on another machine.
    pub remote: bool,
}

/// The sender of a request. The default is an anonymous client.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    /// The name that a client's certificate or an authenticator vouches for.
    pub principal: Option<Principal>,
    /// The API groups whose keys the request presents, one bit each.
    pub(super) opened: u16,
    user: Option<u32>,
    address: Option<IpAddr>,
    remote: bool,
    proof: Proof,
}

/// The authenticator's evidence for the sender's name.
#[derive(Clone, Debug, Default)]
enum Proof {
    /// Nothing; a principal is the connection's.
    #[default]
    None,
    /// The name of the principal, with the credential if it can be withdrawn.
    Valid(Option<Credential>),
    /// The name of the principal, with the authenticator's evidence for it.
    Evident(Arc<dyn Any + Send + Sync>),
    /// The credentials prove nothing, for this reason.
    Rejected(Arc<str>),
}

impl Identity {
    /// The identity that a connection knows.
    pub fn of_connection(origin: Origin) -> Self {
        let Origin { certificate, user, address, remote } = origin;
        Self { principal: certificate, user, address, remote, ..Self::default() }
    }

    /// Whether nothing is known that decides about the sender's rights. The address alone does not.
    pub fn is_default(&self) -> bool {
        let is_unnamed = self.principal.is_none() && self.user.is_none();
        is_unnamed && self.opened == 0 && !self.remote && matches!(self.proof, Proof::None)
    }

    /// The number of the user whose process sends the request through a Unix socket.
    pub fn user(&self) -> Option<u32> {
        self.user
    }

    /// The sender's address at a port.
    pub fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Whether the sender is on another machine.
    pub fn is_remote(&self) -> bool {
        self.remote
    }

    /// Whether the request presents the key of an API group.
    pub fn has_opened(&self, group: ApiGroup) -> bool {
        self.opened & group.bit() != 0
    }

    /// The identity with the name that an authenticator vouches for.
    #[must_use]
    pub fn with_principal(self, principal: Principal) -> Self {
        Self { principal: Some(principal), proof: Proof::Valid(None), ..self }
    }

    /// The identity with the name that a credential proves. Authorizers may check later whether the credential is still
    /// valid: a stream outlives its head.
    #[must_use]
    pub fn with_credential(self, principal: Principal, credential: Credential) -> Self {
        Self { principal: Some(principal), proof: Proof::Valid(Some(credential)), ..self }
    }

    /// The identity with the name that an authenticator has evidence for. Its authorizer may look at the evidence again.
    #[must_use]
    pub fn with_evidence(self, principal: Principal, evidence: Arc<dyn Any + Send + Sync>) -> Self {
        Self { principal: Some(principal), proof: Proof::Evident(evidence), ..self }
    }

    /// The evidence of this type for the sender's name.
    pub fn evidence<E: Any>(&self) -> Option<&E> {
        match &self.proof {
            Proof::Evident(evidence) => evidence.downcast_ref(),
            Proof::None | Proof::Valid(_) | Proof::Rejected(_) => None,
        }
    }

    /// The identity of a sender whose credentials are wrong. Actions that need no right remain permitted, so that a probe
    /// with an expired key does not fail.
    #[must_use]
    pub fn rejected(self, reason: impl Into<Arc<str>>) -> Self {
        Self { principal: None, proof: Proof::Rejected(reason.into()), ..self }
    }

    /// The name that an authenticator vouches for, with the credential if it can be withdrawn. The name that only the
    /// connection knows does not count.
    pub fn authenticated(&self) -> Option<(&Principal, Option<Credential>)> {
        match &self.proof {
            Proof::Valid(credential) => Some((self.principal.as_ref()?, *credential)),
            Proof::Evident(_) => Some((self.principal.as_ref()?, None)),
            Proof::None | Proof::Rejected(_) => None,
        }
    }

    /// Why the credentials prove nothing, if the request has any.
    pub fn rejection(&self) -> Option<&str> {
        match &self.proof {
            Proof::Rejected(reason) => Some(reason),
            Proof::None | Proof::Valid(_) | Proof::Evident(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_authenticator_makes_a_name_count() {
        let connection =
            Identity::of_connection(Origin { certificate: Some(Principal::new("ann")), ..Origin::default() });
        assert_eq!(connection.authenticated(), None);
        assert!(!connection.is_default());
        let key = Some(Credential(7));
        for (identity, expected) in [
            (Identity::default().with_principal(Principal::new("bob")), ("bob", None)),
            (connection.clone().with_principal(Principal::new("bob")), ("bob", None)),
            (connection.clone().with_credential(Principal::new("eve"), Credential(7)), ("eve", key)),
            (Identity::default().rejected("old").with_principal(Principal::new("bob")), ("bob", None)),
        ] {
            let authenticated = identity.authenticated();
            assert_eq!(authenticated.map(|(name, key)| (name.name(), key)), Some(expected));
            assert_eq!(identity.rejection(), None);
        }
        let rejected = connection.rejected("expired");
        assert_eq!((rejected.authenticated(), rejected.rejection()), (None, Some("expired")));
        assert!(!rejected.is_default() && rejected.principal.is_none());
        assert!(Identity::default().is_default());
        let address = Some("192.0.2.7".parse().unwrap());
        for (origin, expected) in [
            (Origin { remote: true, ..Origin::default() }, false),
            (Origin { user: Some(0), ..Origin::default() }, false),
            (Origin { address, ..Origin::default() }, true),
        ] {
            let identity = Identity::of_connection(origin.clone());
            assert_eq!(identity.is_default(), expected, "{origin:?}");
            assert_eq!((identity.user(), identity.address()), (origin.user, origin.address));
        }
    }
}
