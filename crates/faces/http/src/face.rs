//! What a face is: its routes, what they require, and what they do.

use std::time::Instant;

use hyper::http::request::Parts;
use hyper::{HeaderMap, StatusCode};
use nereid_protocol::{BodyBudget, Principal, Restrictions};

use crate::body::{Limit, RequestBody};
use crate::cors::Cors;
use crate::mount::RouteMatch;
use crate::pace::{Busy, Pace};
use crate::reply::{self, Reply};
use crate::routes::{self, Params, Route};
use crate::spelling;

/// A set of routes and what they do. Mount it with [`serve`](crate::serve).
pub trait Face: Sized + Send + Sync + 'static {
    /// What a route does.
    type Action: Copy + Send + Sync + 'static;

    /// Every route; the first match counts. A path with several methods has one route for each.
    const ROUTES: &'static [Route<Self::Action>];

    /// Whether a path segment may stand for a parameter. Segments are never empty.
    fn accepts(_parameter: &str, _segment: &str) -> bool {
        true
    }

    /// The keys of restricted API groups, if any group is restricted.
    fn restrictions(&self) -> Option<&Restrictions> {
        None
    }

    /// The longest request body.
    fn body_limit(&self) -> Limit;

    /// What the bodies of all requests in flight may take, if that is limited.
    fn body_budget(&self) -> Option<&BodyBudget> {
        None
    }

    /// Which web pages may use the face, if any may.
    fn cors(&self) -> Option<&Cors> {
        None
    }

    /// The reply to paths without a route.
    fn not_found(&self) -> Reply {
        reply::error_text(StatusCode::NOT_FOUND, "Not Found")
    }

    /// Finds the route of a request. For faces whose paths are known only when the server starts; others keep the default,
    /// which looks at [`ROUTES`](Self::ROUTES).
    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a, Self::Action> {
        routes::find(self, head)
    }

    /// Whether [`Call::spelled_headers`] needs the names as the client wrote them. Asked once per connection.
    fn keeps_spelling(&self) -> bool {
        false
    }

    /// Whether [`Call::arrived`] is needed. Asked for every request.
    fn times_arrival(&self) -> bool {
        false
    }

    /// Answers a request. Its body is read already; it is empty for GET and HEAD.
    fn perform(
        &self,
        action: Self::Action,
        call: &Call<'_>,
        body: RequestBody,
    ) -> impl Future<Output = Reply> + Send;
}

/// A request with a route, without its body.
pub struct Call<'a> {
    /// The parameters in its path.
    pub params: Params<'a>,
    /// Its headers.
    pub headers: &'a HeaderMap,
    /// Who sent it, if its connection knows.
    pub principal: Option<&'a Principal>,
    /// When its head and its whole body had arrived, if the face [times](Face::times_arrival) that.
    pub arrived: Option<(Instant, Instant)>,
    /// The head as received, if the face [keeps](Face::keeps_spelling) it.
    pub(crate) head: &'a [u8],
    pub(crate) pace: &'a Pace,
}

impl Call<'_> {
    /// The headers, with their names as the client wrote them if the face [keeps](Face::keeps_spelling) these, otherwise in
    /// lowercase.
    pub fn spelled_headers(&self) -> impl Iterator<Item = (&str, &[u8])> {
        spelling::spelled(self.headers, self.head)
    }

    /// Marks that the server still works on this request: nothing is expected from the client until the mark is dropped.
    /// For streams, which continue after [`Face::perform`] has returned.
    pub fn busy(&self) -> Busy {
        self.pace.busy()
    }
}
