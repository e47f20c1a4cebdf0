//! Errors in OpenAI's form, and with `detail`, which clients of Triton's OpenAI frontend read.

use std::borrow::Cow;
use std::num::NonZeroU32;

use hyper::StatusCode;
use hyper::header::{HeaderName, HeaderValue, RETRY_AFTER};
use nereid_core::backend_api::{Error, ErrorCode};
use nereid_http::{Reply, reply};
use nereid_text_encoder::Refusal;
use serde::Serialize;

/// Overrides the clients' own rules about another attempt.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("x-should-retry");

/// The pause before another attempt where the server knows no better.
const PAUSE: NonZeroU32 = NonZeroU32::MIN;

/// The reason why a request is refused or failed.
#[derive(Debug)]
pub(crate) struct Failure {
    status: StatusCode,
    code: Option<&'static str>,
    param: Option<Cow<'static, str>>,
    message: Cow<'static, str>,
    retry_after: Option<NonZeroU32>,
}

/// A result whose error is a [`Failure`], boxed because it is rare.
pub(crate) type Outcome<T> = Result<T, Box<Failure>>;

impl Failure {
    fn new(status: StatusCode, message: impl Into<Cow<'static, str>>) -> Box<Self> {
        Box::new(Self { status, code: None, param: None, message: message.into(), retry_after: None })
    }

    /// 400 for a wrong request.
    pub(crate) fn invalid(message: impl Into<Cow<'static, str>>) -> Box<Self> {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    /// 400 for a field of the request.
    pub(crate) fn invalid_field(
        param: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Box<Self> {
        Box::new(Self { param: Some(param.into()), ..*Self::invalid(message) })
    }

    /// 400 for a field that is known and not supported.
    pub(crate) fn unsupported(
        param: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Box<Self> {
        Box::new(Self { code: Some("unsupported_parameter"), ..*Self::invalid_field(param, message) })
    }

    /// 400 for a text that cannot be tokenized, or 500 if the tokenizer failed. `place` is the index of the text in its field.
    pub(crate) fn of_text(field: &'static str, place: &str, refusal: &Refusal) -> Box<Self> {
        let message = format!("'{field}{place}' {refusal}");
        match refusal {
            Refusal::Failed(_) => Self::broken_model(message),
            Refusal::UnknownToken(_) => Self::invalid_field(field, message),
            Refusal::TooLong { .. } | Refusal::TooManyBytes { .. } => {
                let message = format!("{message}; with 'truncate_prompt_tokens': -1 it is cut");
                Box::new(Self {
                    code: Some("context_length_exceeded"),
                    ..*Self::invalid_field(field, message)
                })
            }
        }
    }

    /// 404 for a model.
    pub(crate) fn unknown_model(message: impl Into<Cow<'static, str>>) -> Box<Self> {
        let failure = Self::new(StatusCode::NOT_FOUND, message);
        Box::new(Self { code: Some("model_not_found"), param: Some("model".into()), ..*failure })
    }

    /// 404 for a stored answer, or 400 if a field names it.
    pub(crate) fn unknown_answer(param: &'static str, message: String) -> Box<Self> {
        let (status, code) = match param {
            "previous_response_id" => (StatusCode::BAD_REQUEST, Some("previous_response_not_found")),
            _ => (StatusCode::NOT_FOUND, None),
        };
        Box::new(Self { code, param: Some(param.into()), ..*Self::new(status, message) })
    }

    /// 500 for a fault of a model.
    pub(crate) fn broken_model(message: impl Into<Cow<'static, str>>) -> Box<Self> {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, message)
    }

    /// The message.
    pub(crate) fn message(&self) -> &str {
        &self.message
    }

    /// The JSON object.
    pub(crate) fn body(&self) -> Vec<u8> {
        document(self.status, &self.message, self.param.as_deref(), self.code)
    }

    /// The reply.
    pub(crate) fn reply(&self) -> Reply {
        let mut reply = reply::json_bytes(self.status, self.body());
        let headers = reply.headers_mut();
        if let Some(seconds) = self.retry_after {
            headers.insert(RETRY_AFTER, seconds.get().into());
        } else if self.status.is_server_error() {
            // The same request would fail again.
            headers.insert(SHOULD_RETRY, HeaderValue::from_static("false"));
        }
        reply
    }
}

impl From<Error> for Box<Failure> {
    fn from(error: Error) -> Self {
        let message = error.message().to_owned();
        let status = match error.code() {
            // OpenAI's clients repeat requests that get 501.
            ErrorCode::Unsupported => StatusCode::BAD_REQUEST,
            _ => reply::status(&error),
        };
        let is_overload = status == StatusCode::SERVICE_UNAVAILABLE;
        let retry_after = error.retry_after().or(is_overload.then_some(PAUSE));
        let failure = Failure::new(status, message);
        Box::new(Failure { retry_after, ..*failure })
    }
}

/// The JSON of an error that the transport made.
pub(crate) fn transport_error(status: StatusCode, message: &str) -> Vec<u8> {
    document(status, message, None, None)
}

fn document(status: StatusCode, message: &str, param: Option<&str>, code: Option<&str>) -> Vec<u8> {
    #[derive(Serialize)]
    struct Document<'a> {
        error: Description<'a>,
        detail: &'a str,
    }
    #[derive(Serialize)]
    struct Description<'a> {
        message: &'a str,
        r#type: &'static str,
        param: Option<&'a str>,
        code: Option<&'a str>,
    }
    let (kind, usual_code) = match status {
        StatusCode::UNAUTHORIZED => ("authentication_error", Some("invalid_api_key")),
        StatusCode::FORBIDDEN => ("permission_error", None),
        StatusCode::TOO_MANY_REQUESTS => ("rate_limit_error", Some("rate_limit_exceeded")),
        status if status.is_server_error() => ("server_error", None),
        _ => ("invalid_request_error", None),
    };
    let error = Description { message, r#type: kind, param, code: code.or(usual_code) };
    serde_json::to_vec(&Document { error, detail: message }).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn errors_of_the_server_have_the_status_and_headers_that_clients_act_on() {
        let overloaded = Error::unavailable("full");
        let loading = Error::unavailable("loading").with_retry_after(Duration::from_secs(7));
        for (error, status, kind, retry_after, should_retry) in [
            (Error::invalid_arg("x"), 400, "invalid_request_error", None, None),
            (Error::not_found("x"), 404, "invalid_request_error", None, None),
            (Error::unsupported("x"), 400, "invalid_request_error", None, None),
            (Error::internal("x"), 500, "server_error", None, Some("false")),
            (overloaded, 503, "server_error", Some("1"), None),
            (loading, 503, "server_error", Some("7"), None),
        ] {
            let message = error.message().to_owned();
            let failure = Box::<Failure>::from(error);
            let body: Value = serde_json::from_slice(&failure.body()).unwrap();
            let expected = json!({"message": message, "type": kind, "param": null, "code": null});
            assert_eq!(body, json!({"error": expected, "detail": message}));
            let reply = failure.reply();
            let header = |name: &str| reply.headers().get(name).map(|value| value.to_str().unwrap());
            assert_eq!(reply.status().as_u16(), status);
            assert_eq!((header("retry-after"), header("x-should-retry")), (retry_after, should_retry));
        }
    }

    #[test]
    fn statuses_of_the_transport_have_a_type_and_code() {
        for (status, kind, code) in [
            (StatusCode::UNAUTHORIZED, "authentication_error", json!("invalid_api_key")),
            (StatusCode::FORBIDDEN, "permission_error", json!(null)),
            (StatusCode::PAYLOAD_TOO_LARGE, "invalid_request_error", json!(null)),
            (StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", json!("rate_limit_exceeded")),
        ] {
            let body: Value = serde_json::from_slice(&transport_error(status, "no")).unwrap();
            assert_eq!((&body["error"]["type"], &body["error"]["code"]), (&json!(kind), &code));
            assert_eq!(body["detail"], "no");
        }
    }
}
