//! The one table of routes, and finding a request's place in it.

use hyper::body::Incoming;
use hyper::{Method, Request};
use hyper::{StatusCode, http::request::Parts};
use nereid_core::backend_api::{Error, Result};
use std::borrow::Cow;

use crate::body::{Pieces, decoded};
use crate::infer::{self, generate};
use crate::pace::Pace;
use crate::reply::{self, Reply};
use crate::service::Face;
use crate::{metadata, repository};

/// What a route does.
#[derive(Clone, Copy, Debug)]
enum Action {
    Live,
    Ready,
    ServerMetadata,
    ModelMetadata,
    ModelConfig,
    ModelReady,
    ModelStatistics,
    AllStatistics,
    RepositoryIndex,
    LoadModel,
    UnloadModel,
    Infer,
    Generate,
    GenerateStream,
}

/// Every route: the one method it has, its path, and what it does. The first match counts.
const ROUTES: &[(Method, &str, Action)] = &[
    (Method::POST, "/v2/models/{model}/infer", Action::Infer),
    (Method::POST, "/v2/models/{model}/versions/{version}/infer", Action::Infer),
    (Method::POST, "/v2/models/{model}/generate", Action::Generate),
    (Method::POST, "/v2/models/{model}/versions/{version}/generate", Action::Generate),
    (Method::POST, "/v2/models/{model}/generate_stream", Action::GenerateStream),
    (Method::POST, "/v2/models/{model}/versions/{version}/generate_stream", Action::GenerateStream),
    (Method::GET, "/v2/health/live", Action::Live),
    (Method::GET, "/v2/health/ready", Action::Ready),
    (Method::GET, "/v2", Action::ServerMetadata),
    (Method::GET, "/v2/models/stats", Action::AllStatistics),
    (Method::GET, "/v2/models/{model}", Action::ModelMetadata),
    (Method::GET, "/v2/models/{model}/versions/{version}", Action::ModelMetadata),
    (Method::GET, "/v2/models/{model}/config", Action::ModelConfig),
    (Method::GET, "/v2/models/{model}/versions/{version}/config", Action::ModelConfig),
    (Method::GET, "/v2/models/{model}/ready", Action::ModelReady),
    (Method::GET, "/v2/models/{model}/versions/{version}/ready", Action::ModelReady),
    (Method::GET, "/v2/models/{model}/stats", Action::ModelStatistics),
    (Method::GET, "/v2/models/{model}/versions/{version}/stats", Action::ModelStatistics),
    (Method::POST, "/v2/repository/index", Action::RepositoryIndex),
    (Method::POST, "/v2/repository/models/{model}/load", Action::LoadModel),
    (Method::POST, "/v2/repository/models/{model}/unload", Action::UnloadModel),
];

/// The model and version that a path names.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Target<'a> {
    pub model: Cow<'a, str>,
    version: Option<Cow<'a, str>>,
}

impl Target<'_> {
    /// The version as a number; `None` if the path names none.
    ///
    /// # Errors
    /// `InvalidArg` if it is not a number.
    pub(crate) fn version(&self) -> Result<Option<u64>> {
        self.version
            .as_deref()
            .map(|version| {
                version.parse().map_err(|_| {
                    Error::invalid_arg(format!(
                        "'{version}' is not a version of model '{}': a version is a whole number",
                        self.model
                    ))
                })
            })
            .transpose()
    }
}

/// Answers a request.
pub(crate) async fn answer(face: &Face, request: Request<Incoming>, pace: &Pace) -> Reply {
    let (head, body) = request.into_parts();
    let (action, target) = match find(&head) {
        Ok(found) => found,
        Err(reply) => return *reply,
    };
    let body = if head.method == Method::POST {
        match Pieces::read(body, face.options.max_body_size, pace).await {
            Ok(body) => body,
            Err(reply) => return *reply,
        }
    } else {
        Pieces::default()
    };
    let _busy = pace.busy();
    let server = &face.server;
    let answer = match action {
        Action::Infer => infer::answer(face, &target, &head.headers, body).await,
        Action::Generate => generate::one(face, &target, &head.headers, body).await,
        Action::GenerateStream => generate::stream(face, &target, &head.headers, body, pace).await,
        Action::RepositoryIndex => repository::index(server, body),
        Action::LoadModel => repository::load(server, &target, body).await,
        Action::UnloadModel => repository::unload(server, &target, body).await,
        Action::Live => Ok(reply::empty(StatusCode::OK)),
        Action::Ready => Ok(metadata::server_ready(server)),
        Action::ServerMetadata => Ok(metadata::server(server)),
        Action::ModelMetadata => metadata::model(server, &target),
        Action::ModelConfig => metadata::configuration(server, &target),
        Action::ModelReady => metadata::model_ready(server, &target),
        Action::ModelStatistics => metadata::statistics(server, Some(&target)),
        Action::AllStatistics => metadata::statistics(server, None),
    };
    answer.unwrap_or_else(|error| reply::error(&error))
}

fn find(head: &Parts) -> std::result::Result<(Action, Target<'_>), Box<Reply>> {
    let path = head.uri.path();
    for (method, pattern, action) in ROUTES {
        if let Some(target) = matched(pattern, path) {
            return if head.method == *method {
                Ok((*action, target))
            } else {
                let allowed = if *method == Method::POST { "POST" } else { "GET" };
                Err(Box::new(reply::wrong_method(allowed)))
            };
        }
    }
    Err(Box::new(reply::error_text(StatusCode::NOT_FOUND, "Not Found")))
}

/// The names in `path` if it has the form of `pattern`.
fn matched<'a>(pattern: &str, path: &'a str) -> Option<Target<'a>> {
    let mut target = Target::default();
    let mut segments = path.split('/');
    for expected in pattern.split('/') {
        let segment = segments.next()?;
        match expected {
            "{model}" if !segment.is_empty() => target.model = decoded(segment),
            "{version}" if !segment.is_empty() => target.version = Some(decoded(segment)),
            _ if expected == segment => {}
            _ => return None,
        }
    }
    segments.next().is_none().then_some(target)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_gives_its_model_and_version() {
        let target =
            matched("/v2/models/{model}/versions/{version}/infer", "/v2/models/a%20b/versions/3/infer");
        let target = target.unwrap();
        assert_eq!((target.model.as_ref(), target.version().unwrap()), ("a b", Some(3)));
    }

    #[test]
    fn a_version_must_be_a_number() {
        let target = matched("/v2/models/{model}/versions/{version}", "/v2/models/m/versions/new").unwrap();
        assert!(target.version().is_err());
    }

    #[test]
    fn a_path_of_another_form_does_not_match() {
        for path in ["/v2/models//infer", "/v2/models/m/infer/", "/v2/models/m", "v2/models/m/infer", ""] {
            assert_eq!(matched("/v2/models/{model}/infer", path), None, "{path}");
        }
    }
}
