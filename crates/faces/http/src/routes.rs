//! Routes, and finding a request's route: by its path, then by its method.

use std::borrow::Cow;

use hyper::Method;
use hyper::http::request::Parts;
use nereid_protocol::Action;

use crate::reply::Reply;

/// A route.
#[derive(Debug)]
pub struct Route<A> {
    /// The method.
    pub method: Method,
    /// The path: a segment `{name}` is a parameter, of which a path has at most two; `*` alone matches every path.
    pub path: &'static str,
    /// The action that needs a right.
    pub action: Action,
    /// The face's own name for the operation.
    pub handler: A,
    /// The end of every path with this route: the part behind the last parameter, or the whole path without one.
    end: &'static str,
}

impl<A> Route<A> {
    /// A route.
    pub const fn new(method: Method, path: &'static str, action: Action, handler: A) -> Self {
        Self { method, path, action, handler, end: end_of(path) }
    }
}

const fn end_of(path: &'static str) -> &'static str {
    let mut start = match path.as_bytes() {
        [b'*'] => return "",
        bytes => bytes,
    };
    while let [before @ .., last] = start {
        if *last == b'}' {
            return path.split_at(start.len()).1;
        }
        start = before;
    }
    path
}

/// The number of a route in its face.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteId(pub usize);

/// The outcome of looking for a request's route.
pub enum RouteMatch<'a> {
    /// The route, the parameters in the path, and the request's action.
    Route(RouteId, Params<'a>, Action),
    /// The path has no route with this method; contains the methods of its routes, and the action of the first.
    Methods(Vec<&'static Method>, Option<Action>),
    /// Access to the route is refused.
    Refused(Box<Reply>),
}

impl RouteMatch<'_> {
    /// No route has the path.
    pub const fn none() -> Self {
        Self::Methods(Vec::new(), None)
    }
}

/// The routes of a face; the first match wins. A path with several methods has one route for each.
#[derive(Debug)]
pub struct Routes<A: 'static> {
    routes: &'static [Route<A>],
    /// Whether a path segment, which is never empty, is valid for a parameter.
    accepts: fn(&str, &str) -> bool,
}

impl<A: Copy> Routes<A> {
    /// Routes whose parameters accept any segment.
    pub const fn new(routes: &'static [Route<A>]) -> Self {
        Self { routes, accepts: |_, _| true }
    }

    /// Restricts parameters: `accepts` receives a parameter's name and a segment, and decides whether the segment is
    /// valid.
    #[must_use]
    pub const fn accepting(self, accepts: fn(&str, &str) -> bool) -> Self {
        Self { accepts, ..self }
    }

    /// All routes.
    pub fn all(&self) -> &'static [Route<A>] {
        self.routes
    }

    /// The handler of a route that was found here. `None` for a number of another face.
    pub fn handler(&self, id: RouteId) -> Option<A> {
        self.routes.get(id.0).map(|route| route.handler)
    }

    /// Finds the route of a request.
    pub fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a> {
        self.find_below("", &head.method, head.uri.path())
    }

    /// Finds the route of another path, which lacks its first slash.
    pub fn find_at<'a>(&self, method: &Method, path: &'a str) -> RouteMatch<'a> {
        self.find_below("/", method, path)
    }

    /// Finds the route of a path that lacks `root`.
    fn find_below<'a>(&self, root: &str, method: &Method, path: &'a str) -> RouteMatch<'a> {
        let (mut allowed, mut action) = (Vec::new(), None);
        for (index, route) in self.routes.iter().enumerate() {
            // Most routes end differently.
            if root.is_empty() && !path.ends_with(route.end) {
                continue;
            }
            let params = route.path.strip_prefix(root).and_then(|pattern| self.parameters(pattern, path));
            let Some(params) = params else { continue };
            if *method == route.method {
                return RouteMatch::Route(RouteId(index), params, route.action);
            }
            allowed.push(&route.method);
            action.get_or_insert(route.action);
        }
        RouteMatch::Methods(allowed, action)
    }

    /// The parameters in `path`, if it matches `pattern`.
    fn parameters<'a>(&self, pattern: &'static str, path: &'a str) -> Option<Params<'a>> {
        let mut params = Params::default();
        if pattern == "*" {
            return Some(params);
        }
        let (mut pattern, mut path) = (pattern, path);
        for place in &mut params.0 {
            let Some((literal, rest)) = pattern.split_once('{') else { break };
            let (name, rest) = rest.split_once('}')?;
            let (segment, after) = first_segment(path.strip_prefix(literal)?);
            if segment.is_empty() || !(self.accepts)(name, segment) {
                return None;
            }
            *place = Some((name, segment));
            (pattern, path) = (rest, after);
        }
        (pattern == path).then_some(params)
    }
}

/// The parameters in a path, by name, in its order.
#[derive(Clone, Copy, Debug, Default)]
pub struct Params<'a>([Option<(&'static str, &'a str)>; 2]);

impl<'a> Params<'a> {
    /// The parameters, in the order of the path.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'a str)> {
        self.0.iter().flatten().copied()
    }

    /// The value of a parameter, [decoded](decode). `None` if the route has no such parameter.
    pub fn get(&self, name: &str) -> Option<Cow<'a, str>> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| decode(value))
    }
}

/// Undoes the percent-encoding of a path segment; bytes that are not UTF-8 become replacement characters.
pub fn decode(segment: &str) -> Cow<'_, str> {
    // Most segments are plain, and short.
    if segment.bytes().all(|byte| byte != b'%') {
        return Cow::Borrowed(segment);
    }
    percent_encoding::percent_decode_str(segment).decode_utf8_lossy()
}

/// The first segment of a path, and the rest with its slash. Segments are a few bytes long, so a plain loop is faster than
/// `find`, which prepares for long texts.
fn first_segment(path: &str) -> (&str, &str) {
    let end = path.bytes().position(|byte| byte == b'/').unwrap_or(path.len());
    path.split_at_checked(end).unwrap_or((path, ""))
}

#[cfg(test)]
mod tests;
