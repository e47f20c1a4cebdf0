//! Follows redirects and other links between servers, with rules:
//!
//! - A link from TLS does not lead to a server without TLS.
//! - A link does not lead to an address of less reach than the servers before it: from the Internet neither to a private
//!   network nor to this machine, unless the user allows it.
//! - Credentials are not sent to another host.
//! - The number of redirects is limited.

use hyper::header::{AUTHORIZATION, CONTENT_TYPE, COOKIE, HOST, HeaderMap, HeaderValue, LOCATION};
use hyper::{Method, Uri};
use object_store::Result;
use object_store::client::{HttpRequest, HttpRequestBody, HttpResponse};

use crate::connector::Connector;
use crate::reach::Reach;
use crate::replies::{document, problem};
use crate::resolver::refusal;
use crate::url::{SafeUrl, redacted, resolve};

/// The most redirects that are followed.
const REDIRECTS: usize = 5;

/// Sends requests and follows redirects.
#[derive(Clone, Debug)]
pub struct Client(Connector);

/// The server that sent an answer. Attached to answers of [`Client`].
#[derive(Clone, Debug)]
pub struct Origin {
    uri: Uri,
    /// The greatest reach of the servers on the way to it.
    reach: Reach,
}

impl Client {
    /// A client over these connections.
    pub fn new(connector: Connector) -> Self {
        Self(connector)
    }

    /// Sends a request without a body, with the credentials of its URL, if any.
    ///
    /// # Errors
    /// No answer, or a redirect against the rules.
    pub async fn send(&self, method: Method, url: &SafeUrl, headers: &HeaderMap) -> Result<HttpResponse> {
        self.follow(method, url, headers.clone(), None).await
    }

    /// Reads a document, with its headers.
    ///
    /// # Errors
    /// As [`send`](Self::send), and if the status is not one of success.
    pub async fn document(&self, url: &SafeUrl, headers: &HeaderMap) -> Result<(HeaderMap, Vec<u8>)> {
        document(self.send(Method::GET, url, headers).await?, url).await
    }

    /// Reads a document at a URL that a server has named. The rules for redirects apply.
    ///
    /// # Errors
    /// As [`document`](Self::document).
    pub async fn linked_document(
        &self,
        origin: Option<&Origin>,
        url: &SafeUrl,
        headers: &HeaderMap,
    ) -> Result<Vec<u8>> {
        let answer = self.follow(Method::GET, url, headers.clone(), origin).await?;
        Ok(document(answer, url).await?.1)
    }

    /// Posts a form to a URL that a server has named, and reads the document in the answer. The form may contain a
    /// secret, so redirects are not followed.
    ///
    /// # Errors
    /// As [`document`](Self::document).
    pub async fn post_form(&self, origin: Option<&Origin>, url: &SafeUrl, form: String) -> Result<Vec<u8>> {
        let uri = url.uri().ok_or_else(|| not_a_url(url.as_str()))?;
        let minimum = self.minimum(origin, &uri)?;
        let mut request = HttpRequest::new(HttpRequestBody::from(form));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        let content_type = HeaderValue::from_static("application/x-www-form-urlencoded");
        request.headers_mut().insert(CONTENT_TYPE, content_type);
        let answer = self.0.send(request, minimum).await.map_err(problem)?;
        Ok(document(answer, url).await?.1)
    }

    async fn follow(
        &self,
        method: Method,
        url: &SafeUrl,
        mut headers: HeaderMap,
        origin: Option<&Origin>,
    ) -> Result<HttpResponse> {
        let mut uri = url.uri().ok_or_else(|| not_a_url(url.as_str()))?;
        if let Some(login) = url.authorization() {
            headers.entry(AUTHORIZATION).or_insert(login);
        }
        let mut minimum = self.minimum(origin, &uri)?;
        for _ in 0..=REDIRECTS {
            let mut request = HttpRequest::new(HttpRequestBody::empty());
            *request.method_mut() = method.clone();
            *request.uri_mut() = uri.clone();
            *request.headers_mut() = headers.clone();
            if let Some(authority) = uri.authority() {
                let host = HeaderValue::from_str(authority.as_str()).map_err(problem)?;
                request.headers_mut().insert(HOST, host);
            }
            let mut answer = self.0.send(request, minimum).await.map_err(problem)?;
            let origin = Origin { reach: self.0.reach(&uri, &answer).max(minimum), uri: uri.clone() };
            let to = answer.headers().get(LOCATION).and_then(|to| to.to_str().ok());
            let Some(to) = to.filter(|_| is_redirect(answer.status().as_u16())) else {
                answer.extensions_mut().insert(origin);
                return Ok(answer);
            };
            let to = resolve(&uri, to).ok_or_else(|| not_a_url(&redacted(to)))?;
            minimum = self.minimum(Some(&origin), &to)?;
            if (to.authority(), to.scheme()) != (uri.authority(), uri.scheme()) {
                headers.remove(AUTHORIZATION);
                headers.remove(COOKIE);
            }
            uri = to;
        }
        Err(problem(format!("'{url}' redirects more than {REDIRECTS} times")))
    }

    /// The minimum reach of a server that a link leads to.
    ///
    /// # Errors
    /// The link is against the rules.
    fn minimum(&self, origin: Option<&Origin>, to: &Uri) -> Result<Reach> {
        let Some(origin) = origin else { return Ok(Reach::Machine) };
        if origin.uri.scheme_str() == Some("https") && to.scheme_str() != Some("https") {
            let (from, to) = (redacted(&origin.uri.to_string()), redacted(&to.to_string()));
            return Err(problem(format!("redirect from '{from}' to '{to}' refused: it drops TLS")));
        }
        if self.0.has_private_redirects {
            return Ok(Reach::Machine);
        }
        let host = to.host().unwrap_or_default();
        match Reach::of_host(host).filter(|reach| *reach < origin.reach) {
            Some(reach) => Err(problem(refusal(&format!("'{host}'"), reach))),
            None => Ok(origin.reach),
        }
    }
}

fn is_redirect(status: u16) -> bool {
    matches!(status, 301 | 302 | 303 | 307 | 308)
}

fn not_a_url(url: &str) -> object_store::Error {
    problem(format!("'{url}' is not a URL of HTTP"))
}

#[cfg(test)]
mod tests;
