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
    /// The path: a segment `{name}` is a parameter; `*` alone matches every path.
    pub path: &'static str,
    /// The action that needs a right.
    pub action: Action,
    /// The face's own name for the operation.
    pub handler: A,
}

impl<A> Route<A> {
    /// A route.
    pub const fn new(method: Method, path: &'static str, action: Action, handler: A) -> Self {
        Self { method, path, action, handler }
    }
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
            let pattern = route.path.strip_prefix(root);
            let Some(pattern) = pattern.filter(|pattern| self.matches(pattern, path)) else { continue };
            if *method == route.method {
                return RouteMatch::Route(RouteId(index), Params { pattern, path }, route.action);
            }
            allowed.push(&route.method);
            action.get_or_insert(route.action);
        }
        RouteMatch::Methods(allowed, action)
    }

    /// Whether `path` matches `pattern`.
    fn matches(&self, pattern: &str, path: &str) -> bool {
        if pattern == "*" {
            return true;
        }
        let (mut segments, mut patterns) = (Some(path), Some(pattern));
        while let (Some(path), Some(pattern)) = (segments, patterns) {
            let (segment, segments_left) = cut(path);
            let (pattern, patterns_left) = cut(pattern);
            let fits = match parameter(pattern) {
                Some(name) => !segment.is_empty() && (self.accepts)(name, segment),
                None => pattern == segment,
            };
            if !fits {
                return false;
            }
            (segments, patterns) = (segments_left, patterns_left);
        }
        segments.is_none() && patterns.is_none()
    }
}

/// The parameters in a path.
#[derive(Clone, Copy, Debug, Default)]
pub struct Params<'a> {
    /// The pattern that the path matches.
    pattern: &'static str,
    path: &'a str,
}

impl<'a> Params<'a> {
    /// The parameters, in the order of the path.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &'a str)> + use<'a> {
        let (mut segments, mut patterns) = (Some(self.path), Some(self.pattern));
        std::iter::from_fn(move || {
            loop {
                let (segment, segments_left) = cut(segments?);
                let (pattern, patterns_left) = cut(patterns?);
                (segments, patterns) = (segments_left, patterns_left);
                if let Some(name) = parameter(pattern) {
                    return Some((name, segment));
                }
            }
        })
    }

    /// The value of a parameter, [decoded](decode). `None` if the route has no such parameter.
    pub fn get(&self, name: &str) -> Option<Cow<'a, str>> {
        self.iter().find(|(known, _)| *known == name).map(|(_, value)| decode(value))
    }
}

/// Undoes the percent-encoding of a path segment; bytes that are not UTF-8 become replacement characters.
pub fn decode(segment: &str) -> Cow<'_, str> {
    percent_encoding::percent_decode_str(segment).decode_utf8_lossy()
}

/// The name in `{name}`.
fn parameter(pattern: &str) -> Option<&str> {
    pattern.strip_prefix('{')?.strip_suffix('}')
}

/// The first segment of a path, and what follows its slash. Segments are a few bytes long, so a plain loop is faster than
/// `split`, which prepares for long texts.
fn cut(path: &str) -> (&str, Option<&str>) {
    match path.bytes().position(|byte| byte == b'/') {
        Some(slash) => (&path[..slash], Some(&path[slash + 1..])),
        None => (path, None),
    }
}

#[cfg(test)]
mod tests;
