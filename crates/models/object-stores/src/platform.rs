//! Detects whether this machine runs in a cloud that provides credentials.

use std::time::Duration;

use hyper::{Method, StatusCode};
use nereid_http_client::{Connector, Environment};
use object_store::client::{HttpRequest, HttpRequestBody, HttpService};
use tokio::time::timeout;

/// The metadata services of clouds.
const ADDRESS: &str = "http://169.254.169.254";

/// The limit for a metadata service to answer: they are on the machine's own network.
const WAIT: Duration = Duration::from_millis(500);

/// The cloud.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Platform {
    Amazon,
    Google,
    Azure,
}

impl Platform {
    /// The address of its service.
    pub(crate) fn endpoint(self, environment: &Environment) -> String {
        let named = match self {
            Self::Amazon => environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT"),
            Self::Google => environment
                .first(&["GCE_METADATA_HOST", "GCE_METADATA_ROOT"])
                .map(|host| format!("http://{host}")),
            Self::Azure => environment.get("AZURE_POD_IDENTITY_AUTHORITY_HOST"),
        };
        named.map_or_else(|| ADDRESS.to_owned(), |named| named.trim_end_matches('/').to_owned())
    }

    /// Whether its service answers. On other networks, something else may accept connections at the same address.
    pub(crate) async fn answers(self, environment: &Environment, connector: &Connector) -> bool {
        let (method, path, header, value) = match self {
            Self::Amazon => (Method::PUT, "/latest/api/token", "x-aws-ec2-metadata-token-ttl-seconds", "60"),
            Self::Google => (Method::GET, "/computeMetadata/v1/", "metadata-flavor", "Google"),
            Self::Azure => (Method::GET, "/metadata/instance?api-version=2021-02-01", "metadata", "true"),
        };
        let mut request = HttpRequest::new(HttpRequestBody::empty());
        *request.method_mut() = method;
        let Ok(uri) = format!("{}{path}", self.endpoint(environment)).parse() else { return false };
        *request.uri_mut() = uri;
        if let Ok(value) = value.parse() {
            request.headers_mut().insert(header, value);
        }
        let answer = timeout(WAIT, connector.call(request)).await;
        answer.is_ok_and(|answer| answer.is_ok_and(|answer| answer.status() == StatusCode::OK))
    }
}
