//! Access: authenticators identify the sender of a request, authorizers decide about its action.
//!
//! Every transport holds one [`Access`] and uses it twice: for the [`Identity`] behind a request's head, before the
//! body is read, and for permission, once the action and, if it concerns one, the model are known. The protocol defines
//! the form of heads and refusals.

mod action;
mod audit;
mod identity;
mod restrictions;
mod right;
mod strangers;

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use nereid_core::{Admission, ModelId, Scope};

pub use self::action::Action;
pub use self::audit::{Audit, AuditEvent, AuditOutcome, AuditedRequest};
pub use self::identity::{Credential, Identity, Origin};
pub use self::restrictions::{ApiGroup, Restriction, Restrictions};
pub use self::right::{Need, Right};

/// The headers of a request, or its metadata, before its body is read.
pub trait Head: Sync {
    /// The first value of a header. The case of its name does not matter.
    fn header(&self, name: &str) -> Option<&[u8]>;
}

/// The reason why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// The API group is restricted, and this header does not hold its key.
    Restricted {
        /// The header's name.
        header: String,
    },
    /// The credentials are missing, wrong or expired.
    Unauthenticated(String),
    /// The client is known and lacks the right.
    Forbidden(String),
    /// The client has used up what it may.
    Exhausted(Exhausted),
}

/// A limit that a client has reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exhausted {
    /// The reason, for the client.
    pub message: String,
    /// The limit.
    pub limit: u32,
    /// When another attempt may succeed.
    pub retry_after: Duration,
}

/// The outcome of an authenticator: immediate, or a future if it has to query another service.
pub enum Authentication<'a> {
    /// Known at once.
    Done(Result<Identity, Denied>),
    /// Known when this completes.
    Pending(Pin<Box<dyn Future<Output = Result<Identity, Denied>> + Send + 'a>>),
}

/// Finds who sends a request.
pub trait Authenticator: fmt::Debug + Send + Sync {
    /// Adds to the sender's identity. Called once per request, before its body is read.
    fn authenticate<'a>(&'a self, identity: Identity, head: &'a dyn Head) -> Authentication<'a>;

    /// Whether a header, whose name is in lowercase, holds credentials, which models must not receive.
    fn is_secret(&self, _name: &str) -> bool {
        false
    }
}

/// Decides about requests.
pub trait Authorizer: fmt::Debug + Send + Sync {
    /// Whether the sender may do this, with this model if it concerns one.
    ///
    /// # Errors
    /// The action is refused.
    fn check(&self, caller: &Identity, action: Action, model: Option<&str>) -> Result<(), Denied>;

    /// The models on which the sender may do this. [`check`](Self::check) knows names only, and several namespaces may have a model
    /// of the same name.
    fn scope(&self, _caller: &Identity, _action: Action) -> Scope {
        Scope::ALL
    }

    /// Counts a permitted request to an existing model. `bytes` is the size of its body.
    ///
    /// # Errors
    /// The sender has reached a limit.
    fn admit(
        &self,
        _caller: &Identity,
        _model: &ModelId,
        _bytes: usize,
    ) -> Result<Option<Admission>, Denied> {
        Ok(None)
    }

    /// Like [`check`](Self::check), without the reason, where lists are filtered.
    fn permits(&self, caller: &Identity, action: Action, model: Option<&str>) -> bool {
        self.check(caller, action, model).is_ok()
    }

    /// Why the rules in use are not those that they should be, for readiness checks. Everybody may read it.
    fn trouble(&self) -> Option<&'static str> {
        None
    }
}

/// The authenticators and authorizers of a port, each list in order. The default admits every client.
#[derive(Clone, Debug, Default)]
pub struct Access {
    authenticators: Vec<Arc<dyn Authenticator>>,
    authorizers: Vec<Arc<dyn Authorizer>>,
    audit: Option<Arc<dyn Audit>>,
    wary: bool,
}

impl Access {
    /// Refuses unidentified clients of other machines the actions that could compromise the server's machine.
    #[must_use]
    pub fn wary(self) -> Self {
        Self { wary: true, ..self }
    }

    /// Adds an authenticator.
    #[must_use]
    pub fn with_authenticator(mut self, authenticator: Arc<dyn Authenticator>) -> Self {
        self.authenticators.push(authenticator);
        self
    }

    /// Adds an authorizer.
    #[must_use]
    pub fn with_authorizer(mut self, authorizer: Arc<dyn Authorizer>) -> Self {
        self.authorizers.push(authorizer);
        self
    }

    /// Records changes by clients, and refusals.
    #[must_use]
    pub fn with_audit(self, audit: Arc<dyn Audit>) -> Self {
        Self { audit: Some(audit), ..self }
    }

    /// Why the rules in use are not those that they should be, if so.
    pub fn trouble(&self) -> Option<&'static str> {
        self.authorizers.iter().find_map(|authorizer| authorizer.trouble())
    }

    /// Whether changes and refusals are recorded.
    pub fn is_audited(&self) -> bool {
        self.audit.is_some()
    }

    /// Begins the audit of a request that may change something. `request` is its protocol and target.
    pub fn audited(
        &self,
        caller: &Identity,
        action: Action,
        request: impl FnOnce() -> String,
    ) -> Option<AuditedRequest> {
        let audit = self.audit.as_ref().filter(|_| action.may_change())?;
        Some(AuditedRequest::new(Arc::clone(audit), caller.clone(), action, request()))
    }

    /// Whether this client may do everything, so that no check is necessary.
    pub fn is_open_to(&self, client: &Identity) -> bool {
        let suspects = self.wary && client.is_remote();
        self.authenticators.is_empty() && self.authorizers.is_empty() && !suspects
    }

    /// Whether a header holds credentials, which models must not receive.
    pub fn is_secret(&self, name: &str) -> bool {
        if self.authenticators.is_empty() {
            return false;
        }
        let name = name.to_ascii_lowercase();
        self.authenticators.iter().any(|authenticator| authenticator.is_secret(&name))
    }

    /// Finds who sends a request over a connection that knows `identity`.
    ///
    /// # Errors
    /// The credentials are missing or wrong.
    pub async fn identify(&self, mut identity: Identity, head: &dyn Head) -> Result<Identity, Denied> {
        for authenticator in &self.authenticators {
            identity = match authenticator.authenticate(identity, head) {
                Authentication::Done(outcome) => outcome?,
                Authentication::Pending(outcome) => outcome.await?,
            };
        }
        Ok(identity)
    }

    /// Like [`identify`](Self::identify), without waiting; `None` if an authenticator has to wait.
    pub fn identify_now(&self, mut identity: Identity, head: &dyn Head) -> Option<Result<Identity, Denied>> {
        for authenticator in &self.authenticators {
            identity = match authenticator.authenticate(identity, head) {
                Authentication::Done(Ok(identity)) => identity,
                Authentication::Done(Err(denied)) => return Some(Err(denied)),
                Authentication::Pending(_) => return None,
            };
        }
        Some(Ok(identity))
    }

    /// Whether the sender may do this, with this model if it concerns one.
    ///
    /// # Errors
    /// The first refusal.
    pub fn check(&self, caller: &Identity, action: Action, model: Option<&str>) -> Result<(), Denied> {
        let outcome = self.decide(caller, action, model);
        if let (Err(denied), Some(audit)) = (&outcome, &self.audit) {
            let outcome = AuditOutcome::Refused(denied);
            let (caller, subject) = (Some(caller), model);
            audit.record(&AuditEvent { caller, action, subject, request: None, reason: None, outcome });
        }
        outcome
    }

    fn decide(&self, caller: &Identity, action: Action, model: Option<&str>) -> Result<(), Denied> {
        if self.wary && caller.is_remote() {
            strangers::check(caller, action)?;
        }
        self.authorizers.iter().try_for_each(|authorizer| authorizer.check(caller, action, model))
    }

    /// Counts a permitted request to an existing model. `bytes` is the size of its body.
    ///
    /// # Errors
    /// The sender has reached a limit.
    pub fn admit(
        &self,
        caller: &Identity,
        model: &ModelId,
        bytes: usize,
    ) -> Result<Option<Admission>, Denied> {
        let mut admitted = None;
        for authorizer in &self.authorizers {
            admitted = authorizer.admit(caller, model, bytes)?.or(admitted);
        }
        Ok(admitted)
    }

    /// The models on which the sender may do this, by their namespaces.
    pub fn scope(&self, caller: &Identity, action: Action) -> Scope {
        self.authorizers
            .iter()
            .fold(Scope::ALL, |scope, authorizer| scope.and(authorizer.scope(caller, action)))
    }

    /// Whether a model is in a list for the sender.
    pub fn shows(&self, caller: &Identity, action: Action, model: &ModelId) -> bool {
        self.permits(caller, action, Some(&model.name)) && self.scope(caller, action).contains(model)
    }

    /// Like [`check`](Self::check), without the reason.
    pub fn permits(&self, caller: &Identity, action: Action, model: Option<&str>) -> bool {
        let suspects = self.wary && caller.is_remote();
        !(suspects && strangers::check(caller, action).is_err())
            && self.authorizers.iter().all(|authorizer| authorizer.permits(caller, action, model))
    }
}

impl From<Restrictions> for Access {
    /// Restricted groups need their keys; everything else is open.
    fn from(restrictions: Restrictions) -> Self {
        if restrictions.is_empty() {
            return Self::default();
        }
        let restrictions = Arc::new(restrictions);
        Self::default().with_authenticator(Arc::clone(&restrictions) as _).with_authorizer(restrictions)
    }
}

#[cfg(test)]
mod tests;
