//! Any number of faces on one port.
//!
//! The first face with a route for a request answers it. Where none has one, the face with the longest prefix of the path
//! decides about the reply, and about web pages.

use std::borrow::Cow;
use std::time::Instant;

use hyper::header::EXPECT;
use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode, Version};
use nereid_protocol::{Action, Head, Identity, LoggedRequest};

use crate::body::{ArrivingBody, RequestBody};
use crate::face::{Call, Face};
use crate::pace::Pace;
use crate::reply::{self, Reply};
use crate::routes::{Params, RouteId, RouteMatch};

/// The faces of a port, in the order of their precedence.
#[derive(Default)]
pub struct Router {
    faces: Vec<Box<dyn Face>>,
    /// Whether any face needs header names in the client's spelling.
    keeps_spelling: bool,
}

impl<F: Face> From<F> for Router {
    fn from(face: F) -> Self {
        Self::default().and(face)
    }
}

/// The outcome of routing a request.
enum Destination<'a> {
    Route(RouteId, Params<'a>, Action),
    /// The path has routes for these methods alone, or no route if the list is empty. The action is the first route's.
    Methods(Vec<&'static Method>, Option<Action>),
    Refused(Box<Reply>),
}

impl Router {
    /// Adds a face, with lower precedence than those added before.
    #[must_use]
    pub fn and(mut self, face: impl Face) -> Self {
        self.keeps_spelling |= face.properties().keeps_spelling;
        self.faces.push(Box::new(face));
        self
    }

    /// Whether any face needs header names in the client's spelling.
    pub(crate) fn keeps_spelling(&self) -> bool {
        self.keeps_spelling
    }

    /// The face that a request belongs to, and what it meets there. `None` if no face has the path.
    fn find<'a>(&self, head: &'a Parts) -> Option<(&dyn Face, Destination<'a>)> {
        let mut first: Option<(&dyn Face, Vec<&'static Method>, Option<Action>)> = None;
        for face in &self.faces {
            match face.find(head) {
                RouteMatch::Route(id, params, action) => {
                    return Some((&**face, Destination::Route(id, params, action)));
                }
                RouteMatch::Refused(reply) => return Some((&**face, Destination::Refused(reply))),
                RouteMatch::Methods(methods, _) if methods.is_empty() => {}
                RouteMatch::Methods(methods, action) => match &mut first {
                    Some((_, known, _)) => known.extend(methods),
                    None => first = Some((&**face, methods, action)),
                },
            }
        }
        if let Some((face, methods, action)) = first {
            return Some((face, Destination::Methods(methods, action)));
        }
        let path = head.uri.path();
        let prefixed = self.faces.iter().rev().filter(|face| path.starts_with(face.properties().prefix));
        let face = prefixed.max_by_key(|face| face.properties().prefix.len())?;
        Some((&**face, Destination::Methods(Vec::new(), None)))
    }

    /// Answers a request on a connection that knows `identity`. `head` is what `parts` were read from, if that is known.
    pub(crate) async fn answer(
        &self,
        parts: &Parts,
        head: Option<&[u8]>,
        body: ArrivingBody<'_>,
        pace: &Pace,
        identity: &Identity,
    ) -> Reply {
        let Some((face, destination)) = self.find(parts) else {
            return refused(reply::error_text(StatusCode::NOT_FOUND, "Not Found"), parts, body).await;
        };
        let properties = face.properties();
        let cors = &properties.cors;
        if !cors.is_on() {
            let reply = self.answer_from(face, destination, (parts, head), body, pace, identity).await;
            return match properties.error_body {
                None => reply,
                Some(error_body) => reply::with_error_body(reply, error_body),
            };
        }
        let mut reply = match cors.preflight(parts) {
            Some(reply) => reply,
            None => self.answer_from(face, destination, (parts, head), body, pace, identity).await,
        };
        if let Some(error_body) = properties.error_body {
            reply = reply::with_error_body(reply, error_body);
        }
        cors.add_to(&mut reply, &parts.headers);
        reply
    }

    /// Answers a request of any web page.
    async fn answer_from(
        &self,
        face: &dyn Face,
        destination: Destination<'_>,
        (parts, head): (&Parts, Option<&[u8]>),
        mut body: ArrivingBody<'_>,
        pace: &Pace,
        identity: &Identity,
    ) -> Reply {
        let properties = face.properties();
        let head = match head {
            Some(head) => Cow::Borrowed(head),
            None if self.keeps_spelling() => Cow::Owned(pace.take_head()),
            None => Cow::Borrowed([].as_slice()),
        };
        let (route, params, action) = match destination {
            Destination::Route(route, params, action) => (route, params, action),
            Destination::Refused(reply) => return refused(*reply, parts, body).await,
            Destination::Methods(methods, _) if methods.is_empty() => {
                return refused((properties.fallback)(), parts, body).await;
            }
            Destination::Methods(methods, action) => {
                let admitted = admit(face, identity, &parts.headers, action, &Params::default()).await;
                let reply = admitted.err().unwrap_or_else(|| wrong_method(&methods));
                return refused(reply, parts, body).await;
            }
        };
        let caller = match admit(face, identity, &parts.headers, Some(action), &params).await {
            Ok(caller) => caller,
            Err(reply) => return refused(reply, parts, body).await,
        };
        let head_arrived = face.times_arrival().then(Instant::now);
        let body = if matches!(parts.method, Method::GET | Method::HEAD) {
            RequestBody::default()
        } else {
            let (limit, budget) = (properties.body_limit, &properties.body_budget);
            match RequestBody::read(&mut body, limit, budget, pace).await {
                Ok(body) => body,
                Err(reply) => return refused(*reply, parts, body).await,
            }
        };
        let _working = pace.working();
        let arrived = head_arrived.map(|head| (head, Instant::now()));
        let (query, headers, access) = (parts.uri.query(), &parts.headers, &properties.access);
        let request = || format!("HTTP {} {}", parts.method, parts.uri.path());
        let audited = access.audited(&caller, action, request).map(Box::new);
        if let Some(audited) = &audited {
            audited.note(action, params.get("model").or_else(|| params.get("region")).as_deref());
        }
        let audited = audited.as_deref();
        let scope = access.scope(&caller, action);
        let call = Call {
            params,
            query,
            scope,
            headers,
            caller: &caller,
            arrived,
            access,
            audited,
            head: &head,
            pace,
        };
        let mut reply = face.perform(route, &call, body).await;
        if let Some(audited) = audited {
            let failure = (!reply.status().is_success()).then(|| reply.status().as_u16().to_string());
            audited.answered(failure.as_deref());
        }
        // For the log of requests, which began before the sender was known.
        if let Some((principal, _)) = caller.authenticated()
            && LoggedRequest::is_on()
        {
            reply.extensions_mut().insert(principal.clone());
        }
        reply
    }
}

/// Finds who sends a request, and whether the sender may do this.
///
/// # Errors
/// The reply to a request that is refused.
async fn admit<'a>(
    face: &dyn Face,
    identity: &'a Identity,
    headers: &HeaderMap,
    action: Option<Action>,
    params: &Params<'_>,
) -> Result<Cow<'a, Identity>, Reply> {
    let access = &face.properties().access;
    if access.is_open_to(identity) {
        return Ok(Cow::Borrowed(identity));
    }
    // Boxed because it is rare, so that it takes no space in the future of every request.
    let identified = Box::pin(access.identify(identity.clone(), &Headers(headers))).await;
    let admitted = identified.and_then(|caller| {
        let model = params.get("model");
        action.map_or(Ok(()), |action| access.check(&caller, action, model.as_deref())).map(|()| caller)
    });
    admitted.map(Cow::Owned).map_err(|denied| reply::denied(&denied))
}

/// The headers of a request, for authenticators.
struct Headers<'a>(&'a HeaderMap);

impl Head for Headers<'_> {
    fn header(&self, name: &str) -> Option<&[u8]> {
        Some(self.0.get(name)?.as_bytes())
    }
}

/// The reply to a request that is refused before its body was read.
async fn refused(reply: Reply, parts: &Parts, body: ArrivingBody<'_>) -> Reply {
    // A client that expects `100 Continue` sends no body without it.
    if parts.version == Version::HTTP_2 || !parts.headers.contains_key(EXPECT) {
        // Boxed because it is rare, so that it takes no space in the future of every request.
        if let Some(rest) = Box::pin(RequestBody::discard(body)).await
            && parts.version == Version::HTTP_2
        {
            RequestBody::linger(rest);
        }
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
