//! Faces on one listener: a face alone, several as a tuple, or one that may be absent.
//!
//! The first face with a route for a request answers it. Dispatch is static: mounting costs no allocation per request.

use hyper::Method;
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::{Request, StatusCode, Version};
use nereid_protocol::{BodyBudget, Principal};
use std::time::Instant;

use crate::body::{Limit, RequestBody};
use crate::cors::Cors;
use crate::face::{Call, Face};
use crate::pace::Pace;
use crate::reply::{self, Reply};
use crate::routes::Params;

/// For faces that limit no more than each body.
const NO_BUDGET: BodyBudget = BodyBudget::UNLIMITED;

/// The outcome of looking for a request's route.
pub enum RouteMatch<'a, A> {
    /// The route's action, and the parameters in the path.
    Route(A, Params<'a>),
    /// No route has this path and method; these are the methods of those that have the path.
    Methods(Vec<&'static Method>),
    /// The route may not be used.
    Refused(Box<Reply>),
}

/// One or several faces.
pub trait Mount: Send + Sync + 'static {
    /// What the routes of all faces do.
    type Action: Copy + Send + Sync + 'static;

    /// Finds the route of a request.
    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a, Self::Action>;

    /// See [`Face::body_limit`].
    fn body_limit(&self, action: Self::Action) -> Limit;

    /// See [`Face::body_budget`].
    fn body_budget(&self, action: Self::Action) -> Option<&BodyBudget>;

    /// See [`Face::cors`].
    fn cors(&self) -> Option<&Cors>;

    /// See [`Face::not_found`].
    fn not_found(&self) -> Reply;

    /// See [`Face::keeps_spelling`].
    fn keeps_spelling(&self) -> bool;

    /// See [`Face::times_arrival`].
    fn times_arrival(&self, action: Self::Action) -> bool;

    /// See [`Face::perform`].
    fn perform(
        &self,
        action: Self::Action,
        call: &Call<'_>,
        body: RequestBody,
    ) -> impl Future<Output = Reply> + Send;
}

impl<F: Face> Mount for F {
    type Action = F::Action;

    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a, F::Action> {
        Face::find(self, head)
    }

    fn body_limit(&self, _: F::Action) -> Limit {
        Face::body_limit(self)
    }

    fn body_budget(&self, _: F::Action) -> Option<&BodyBudget> {
        Face::body_budget(self)
    }

    fn cors(&self) -> Option<&Cors> {
        Face::cors(self)
    }

    fn not_found(&self) -> Reply {
        Face::not_found(self)
    }

    fn keeps_spelling(&self) -> bool {
        Face::keeps_spelling(self)
    }

    fn times_arrival(&self, _: F::Action) -> bool {
        Face::times_arrival(self)
    }

    fn perform(
        &self,
        action: F::Action,
        call: &Call<'_>,
        body: RequestBody,
    ) -> impl Future<Output = Reply> + Send {
        Face::perform(self, action, call, body)
    }
}

/// A face that may be absent.
impl<M: Mount> Mount for Option<M> {
    type Action = M::Action;

    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a, M::Action> {
        self.as_ref().map_or_else(|| RouteMatch::Methods(Vec::new()), |mount| mount.find(head))
    }

    fn body_limit(&self, action: M::Action) -> Limit {
        self.as_ref().map_or(Limit::NOTHING, |mount| mount.body_limit(action))
    }

    fn body_budget(&self, action: Self::Action) -> Option<&BodyBudget> {
        self.as_ref().and_then(|mount| mount.body_budget(action))
    }

    fn cors(&self) -> Option<&Cors> {
        self.as_ref().and_then(M::cors)
    }

    fn not_found(&self) -> Reply {
        self.as_ref().map_or_else(|| reply::error_text(StatusCode::NOT_FOUND, "Not Found"), M::not_found)
    }

    fn keeps_spelling(&self) -> bool {
        self.as_ref().is_some_and(M::keeps_spelling)
    }

    fn times_arrival(&self, action: M::Action) -> bool {
        self.as_ref().is_some_and(|mount| mount.times_arrival(action))
    }

    async fn perform(&self, action: M::Action, call: &Call<'_>, body: RequestBody) -> Reply {
        match self {
            Some(mount) => mount.perform(action, call, body).await,
            // Not reached: an absent face has no routes.
            None => self.not_found(),
        }
    }
}

/// The action of one of two faces.
#[derive(Clone, Copy, Debug)]
pub enum Either<A, B> {
    /// Of the first.
    First(A),
    /// Of the second.
    Second(B),
}

/// Two mounts on one listener; the first takes precedence. More are nested: `(a, (b, c))`.
impl<A: Mount, B: Mount> Mount for (A, B) {
    type Action = Either<A::Action, B::Action>;

    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a, Self::Action> {
        let mut methods = match self.0.find(head) {
            RouteMatch::Route(action, params) => return RouteMatch::Route(Either::First(action), params),
            RouteMatch::Refused(reply) => return RouteMatch::Refused(reply),
            RouteMatch::Methods(methods) => methods,
        };
        match self.1.find(head) {
            RouteMatch::Route(action, params) => RouteMatch::Route(Either::Second(action), params),
            RouteMatch::Refused(reply) => RouteMatch::Refused(reply),
            RouteMatch::Methods(more) => {
                methods.extend(more);
                RouteMatch::Methods(methods)
            }
        }
    }

    fn body_limit(&self, action: Self::Action) -> Limit {
        match action {
            Either::First(action) => self.0.body_limit(action),
            Either::Second(action) => self.1.body_limit(action),
        }
    }

    fn body_budget(&self, action: Self::Action) -> Option<&BodyBudget> {
        match action {
            Either::First(action) => self.0.body_budget(action),
            Either::Second(action) => self.1.body_budget(action),
        }
    }

    fn cors(&self) -> Option<&Cors> {
        self.0.cors().or_else(|| self.1.cors())
    }

    fn not_found(&self) -> Reply {
        self.0.not_found()
    }

    fn keeps_spelling(&self) -> bool {
        self.0.keeps_spelling() || self.1.keeps_spelling()
    }

    fn times_arrival(&self, action: Self::Action) -> bool {
        match action {
            Either::First(action) => self.0.times_arrival(action),
            Either::Second(action) => self.1.times_arrival(action),
        }
    }

    async fn perform(&self, action: Self::Action, call: &Call<'_>, body: RequestBody) -> Reply {
        match action {
            Either::First(action) => self.0.perform(action, call, body).await,
            Either::Second(action) => self.1.perform(action, call, body).await,
        }
    }
}

/// Answers a request, which `principal` sent.
pub(crate) async fn answer<M: Mount>(
    mount: &M,
    request: Request<Incoming>,
    pace: &Pace,
    principal: Option<&Principal>,
) -> Reply {
    let (parts, body) = request.into_parts();
    let Some(cors) = mount.cors().filter(|cors| cors.is_on()) else {
        return answer_any(mount, &parts, body, pace, principal).await;
    };
    let mut reply = match cors.preflight(&parts) {
        Some(reply) => reply,
        None => answer_any(mount, &parts, body, pace, principal).await,
    };
    cors.add_to(&mut reply, &parts.headers);
    reply
}

/// Answers a request from any client.
async fn answer_any<M: Mount>(
    mount: &M,
    parts: &Parts,
    mut body: Incoming,
    pace: &Pace,
    principal: Option<&Principal>,
) -> Reply {
    let head = if mount.keeps_spelling() { pace.take_head() } else { Vec::new() };
    let (action, params) = match mount.find(parts) {
        RouteMatch::Route(action, params) => (action, params),
        RouteMatch::Refused(reply) => return refused(*reply, parts, body).await,
        RouteMatch::Methods(methods) if methods.is_empty() => {
            return refused(mount.not_found(), parts, body).await;
        }
        RouteMatch::Methods(methods) => return refused(wrong_method(&methods), parts, body).await,
    };
    let head_arrived = mount.times_arrival(action).then(Instant::now);
    let body = if matches!(parts.method, Method::GET | Method::HEAD) {
        RequestBody::default()
    } else {
        let budget = mount.body_budget(action).unwrap_or(&NO_BUDGET);
        match RequestBody::read(&mut body, mount.body_limit(action), budget, pace).await {
            Ok(body) => body,
            Err(reply) => return refused(*reply, parts, body).await,
        }
    };
    let _busy = pace.busy();
    let arrived = head_arrived.map(|head| (head, Instant::now()));
    let call = Call { params, headers: &parts.headers, principal, arrived, head: &head, pace };
    mount.perform(action, &call, body).await
}

/// The reply to a request that is refused before its body was read.
async fn refused(reply: Reply, parts: &Parts, body: Incoming) -> Reply {
    if parts.version == Version::HTTP_2 {
        // Rare, so it takes no room in the future of every request.
        Box::pin(RequestBody::discard(body)).await;
    }
    reply
}

/// 405, with the methods that the path has.
fn wrong_method(methods: &[&Method]) -> Reply {
    let mut names: Vec<_> = methods.iter().map(|method| method.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    reply::wrong_method(&names.join(", "))
}

#[cfg(test)]
mod tests;
