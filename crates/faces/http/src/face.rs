//! Faces: routes, and the properties that all routes of a face share.

use std::future::Future;
use std::pin::Pin;
use std::time::Instant;

use hyper::http::request::Parts;
use hyper::{HeaderMap, StatusCode};
use nereid_budgets::BodyBudget;
use nereid_protocol::{Access, Action, Admission, AuditedRequest, Identity, ModelId, Scope, ScopedName};

use crate::body::{Limit, RequestBody};
use crate::cors::Cors;
use crate::pace::{Busy, Pace};
use crate::reply::{self, Reply};
use crate::routes::{Params, RouteId, RouteMatch};
use crate::spelling;

/// A set of routes and what they do. A [`Router`](crate::Router) serves one or several.
pub trait Face: Send + Sync + 'static {
    /// The properties of all routes.
    fn properties(&self) -> &Properties;

    /// Finds the route of a request.
    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a>;

    /// Whether [`Call::arrived`] is needed. Asked for every request.
    fn times_arrival(&self) -> bool {
        false
    }

    /// Answers a request, which found `route`. Its body is read already; it is empty for GET and HEAD.
    fn perform<'a>(&'a self, route: RouteId, call: &'a Call<'a>, body: RequestBody) -> PendingReply<'a>;
}

/// A reply that a face is making.
pub type PendingReply<'a> = Pin<Box<dyn Future<Output = Reply> + Send + 'a>>;

/// Properties that all routes of a face share.
#[derive(Clone, Debug)]
pub struct Properties {
    /// The face replies to paths with this prefix, even where it has no route.
    pub prefix: &'static str,
    /// The reply to unknown paths.
    pub fallback: fn() -> Reply,
    /// Access to the routes.
    pub access: Access,
    /// The longest request body.
    pub body_limit: Limit,
    /// The memory for the bodies of all requests in flight.
    pub body_budget: BodyBudget,
    /// Which web pages may use the face.
    pub cors: Cors,
    /// Whether [`Call::spelled_headers`] needs the names as the client wrote them.
    pub keeps_spelling: bool,
    /// The JSON of an error with this status and message, for faces whose errors are not `{"error": "..."}`.
    pub error_body: Option<fn(StatusCode, &str) -> Vec<u8>>,
}

impl Default for Properties {
    /// The properties of a face for every path that admits every client, accepts no bodies, and replies 404 to unknown
    /// routes.
    fn default() -> Self {
        Self {
            prefix: "/",
            fallback: || reply::error_text(StatusCode::NOT_FOUND, "Not Found"),
            access: Access::default(),
            body_limit: Limit::NOTHING,
            body_budget: BodyBudget::UNLIMITED,
            cors: Cors::default(),
            keeps_spelling: false,
            error_body: None,
        }
    }
}

/// A request with a route, without its body.
pub struct Call<'a> {
    /// The parameters in its path.
    pub params: Params<'a>,
    /// The query of its address.
    pub query: Option<&'a str>,
    /// The request's headers.
    pub headers: &'a HeaderMap,
    /// The sender.
    pub caller: &'a Identity,
    /// The models on which the sender may perform the route's action.
    pub scope: Scope,
    /// When the request's head and its whole body had arrived, if the face [times](Face::times_arrival) that.
    pub arrived: Option<(Instant, Instant)>,
    /// Access to the face.
    pub(crate) access: &'a Access,
    /// The audit of a request that changes something, if there is one.
    pub(crate) audited: Option<&'a AuditedRequest>,
    /// The head as received, if the face [keeps](Properties::keeps_spelling) it.
    pub(crate) head: &'a [u8],
    pub(crate) pace: &'a Pace,
}

impl Call<'_> {
    /// Whether the caller may perform this action on a model that is not named by the path.
    ///
    /// # Errors
    /// The reply to a refused request.
    pub fn permit(&self, action: Action, model: &str) -> Result<(), Box<Reply>> {
        let outcome = self.access.check(self.caller, action, Some(model));
        if let Some(audited) = self.audited {
            match &outcome {
                Ok(()) => audited.note(action, Some(model)),
                Err(_) => audited.refused(),
            }
        }
        outcome.map_err(|denied| Box::new(reply::denied(&denied)))
    }

    /// Notes in the audit what the request changes.
    pub fn explain(&self, change: impl FnOnce() -> String) {
        if let Some(audited) = self.audited {
            audited.explain(change());
        }
    }

    /// A model's name, as it means one on which the caller may perform the route's action.
    pub fn scoped<'n>(&'n self, model: &'n str) -> ScopedName<'n> {
        ScopedName::new(model, &self.scope)
    }

    /// The models on which the caller may perform another action than the route's.
    pub fn scope_of(&self, action: Action) -> Scope {
        self.access.scope(self.caller, action)
    }

    /// Whether a list for the caller shows a model.
    pub fn shows(&self, action: Action, model: &ModelId) -> bool {
        self.access.shows(self.caller, action, model)
    }

    /// Whether the caller may perform this action, on this model if it concerns one.
    pub fn may(&self, action: Action, model: Option<&str>) -> bool {
        self.access.permits(self.caller, action, model)
    }

    /// The reply to a request that may not perform this action, which concerns no single model. `None` if it may.
    pub fn refusal(&self, action: Action) -> Option<Reply> {
        self.access.check(self.caller, action, None).err().map(|denied| reply::denied(&denied))
    }

    /// Counts a permitted request to an existing model. `bytes` is the size of its body.
    ///
    /// # Errors
    /// The reply to a request beyond a limit.
    pub fn admit(&self, model: &ModelId, bytes: usize) -> Result<Option<Admission>, Box<Reply>> {
        self.access.admit(self.caller, model, bytes).map_err(|denied| Box::new(reply::denied(&denied)))
    }

    /// Why the rules of access in use are not those that they should be, if so.
    pub fn access_trouble(&self) -> Option<&'static str> {
        self.access.trouble()
    }

    /// Whether a header holds credentials, which models must not receive.
    pub fn is_secret(&self, header: &str) -> bool {
        self.access.is_secret(header)
    }

    /// The headers, with their names as the client wrote them if the face [keeps](Properties::keeps_spelling) these,
    /// otherwise in lowercase.
    pub fn spelled_headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        spelling::spelled(self.headers, self.head)
    }

    /// Marks that the server is working on this request: the client is not expected to send anything until the mark is
    /// dropped. For streams, which continue after [`Face::perform`] has completed.
    pub fn busy(&self) -> Busy {
        self.pace.busy()
    }
}
