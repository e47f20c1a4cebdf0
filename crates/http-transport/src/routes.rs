//! Routes, and finding a request's route: by its path, then by its method.

use std::borrow::Cow;

use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use nereid_protocol::ApiGroup;

use crate::face::Face;
use crate::mount::Found;
use crate::reply;

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
#[derive(Clone, Copy, Debug)]
pub struct Params<'a> {
    /// The pattern that the path matches.
    pattern: &'static str,
    path: &'a str,
}

impl<'a> Params<'a> {
    /// The parameters in order, as they stand in the path.
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
pub(crate) fn find<'a, F: Face>(face: &F, head: &'a Parts) -> Found<'a, F::Action> {
    let path = head.uri.path();
    let mut allowed = Vec::new();
    for route in F::ROUTES {
        if !matches::<F>(route.path, path) {
            continue;
        }
        let key = route.group.and_then(|group| face.restrictions()?.key(group));
        if let Some(key) = key
            && !head.headers.get(&key.name).is_some_and(|value| key.matches(value.as_bytes()))
        {
            let message = format!("this API is restricted: header '{}' is missing or wrong", key.name);
            return Found::Refused(Box::new(reply::error_text(StatusCode::FORBIDDEN, &message)));
        }
        if head.method == route.method {
            return Found::Route(route.action, Params { pattern: route.path, path });
        }
        allowed.push(&route.method);
    }
    Found::Methods(allowed)
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
