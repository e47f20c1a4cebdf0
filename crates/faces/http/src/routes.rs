//! Routes, and finding a request's route: by its path, then by its method.

use std::borrow::Cow;

use hyper::http::request::Parts;
use hyper::{HeaderMap, Method, StatusCode};
use nereid_protocol::ApiGroup;

use crate::face::Face;
use crate::mount::RouteMatch;
use crate::reply::{self, Reply};

/// A route.
#[derive(Debug)]
pub struct Route<A> {
    /// The method.
    pub method: Method,
    /// The path: a segment `{name}` is a parameter; `*` alone matches every path.
    pub path: &'static str,
    /// The API group it belongs to, which may be restricted.
    pub group: Option<ApiGroup>,
    /// What it does.
    pub action: A,
}

impl<A> Route<A> {
    /// A route that belongs to an API group.
    pub const fn new(method: Method, path: &'static str, group: ApiGroup, action: A) -> Self {
        Self { method, path, group: Some(group), action }
    }

    /// A route that cannot be restricted.
    pub const fn open(method: Method, path: &'static str, action: A) -> Self {
        Self { method, path, group: None, action }
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

/// Finds the route of a request among those of one face.
pub(crate) fn find<'a, F: Face>(face: &F, head: &'a Parts) -> RouteMatch<'a, F::Action> {
    find_below("", face, &head.method, head.uri.path(), &head.headers)
}

/// Finds the route that a request would have at another path, as it would be found on its own face. The path lacks its first
/// slash.
pub fn redirected<'a, F: Face>(
    face: &F,
    method: &Method,
    path: &'a str,
    headers: &HeaderMap,
) -> RouteMatch<'a, F::Action> {
    find_below("/", face, method, path, headers)
}

/// Finds the route of a path that lacks `root`.
fn find_below<'a, F: Face>(
    root: &str,
    face: &F,
    method: &Method,
    path: &'a str,
    headers: &HeaderMap,
) -> RouteMatch<'a, F::Action> {
    let mut allowed = Vec::new();
    for route in F::ROUTES {
        let Some(pattern) = route.path.strip_prefix(root).filter(|pattern| matches::<F>(pattern, path))
        else {
            continue;
        };
        if let Some(refused) = route.group.and_then(|group| restricted(face, group, headers)) {
            return RouteMatch::Refused(refused);
        }
        if *method == route.method {
            return RouteMatch::Route(route.action, Params { pattern, path });
        }
        allowed.push(&route.method);
    }
    RouteMatch::Methods(allowed)
}

/// The refusal of a request without the key of an API group, if the group is restricted.
pub fn restricted<F: Face>(face: &F, group: ApiGroup, headers: &HeaderMap) -> Option<Box<Reply>> {
    let key = face.restrictions()?.key(group)?;
    if headers.get(&key.name).is_some_and(|value| key.matches(value.as_bytes())) {
        return None;
    }
    let message = format!("this API is restricted: header '{}' is missing or wrong", key.name);
    Some(Box::new(reply::error_text(StatusCode::FORBIDDEN, &message)))
}

/// Whether `path` matches `pattern`.
fn matches<F: Face>(pattern: &str, path: &str) -> bool {
    if pattern == "*" {
        return true;
    }
    let (mut segments, mut patterns) = (Some(path), Some(pattern));
    while let (Some(path), Some(pattern)) = (segments, patterns) {
        let (segment, segments_left) = cut(path);
        let (pattern, patterns_left) = cut(pattern);
        let fits = match parameter(pattern) {
            Some(name) => !segment.is_empty() && F::accepts(name, segment),
            None => pattern == segment,
        };
        if !fits {
            return false;
        }
        (segments, patterns) = (segments_left, patterns_left);
    }
    segments.is_none() && patterns.is_none()
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
