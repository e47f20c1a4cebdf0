//! A request on its way: from its body to the model that it names, and to the requests for that model.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use hyper::HeaderMap;
use nereid_core::backend_api::{Error, ErrorCode, InferRequest, RequestTrace};
use nereid_core::{Admission, Caller, Model, ModelId, ResolvedModel, ScopedName, Usage};
use nereid_http::{self as http, Call, Encoding, Reply, RequestBody};
use nereid_protocol::{Action, request_head, trace_parent};
use nereid_tasks::long_work;
use serde::Deserialize;
use tokio::task::{JoinError, spawn_blocking};

use crate::OpenAi;
use crate::adapters::{self, AdapterName};
use crate::contract::TextContract;
use crate::error::{Failure, Outcome};
use crate::metrics::{Measured, Operation};
use crate::profile::Profile;
use crate::traces::{Answers, Traces};

/// The reply to a request that is refused.
pub(crate) struct Refusal(pub Box<Reply>);

impl From<Box<Failure>> for Refusal {
    fn from(failure: Box<Failure>) -> Self {
        Self(Box::new(failure.reply()))
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Box::<Failure>::from(error).into()
    }
}

impl From<Box<Reply>> for Refusal {
    fn from(reply: Box<Reply>) -> Self {
        Self(reply)
    }
}

/// A request with the model that it names.
pub(crate) struct Exchange<'a> {
    face: &'a OpenAi,
    call: &'a Call<'a>,
    traces: &'a Traces,
    /// Holds the share of the budget until a request to the model takes it.
    body: RequestBody,
    /// The JSON.
    pub json: Bytes,
    /// The model's name as the client wrote it.
    pub name: String,
    /// The adapter in that name.
    pub lora: Option<String>,
    /// As which model limits count the request, if not as its model.
    counted_as: Option<ModelId>,
    /// Where the request goes.
    target: ResolvedModel,
    /// The version that describes the model.
    pub model: Arc<Model>,
    /// The model's profile.
    pub profile: Arc<Profile>,
    /// Counts the tokens that the request generates, once it is admitted.
    pub meter: Option<Arc<dyn Usage>>,
}

impl<'a> Exchange<'a> {
    /// Reads the body and finds its model, which the caller may run.
    ///
    /// # Errors
    /// The reply to a request that is refused.
    pub(crate) async fn begin(
        face: &'a OpenAi,
        call: &'a Call<'a>,
        mut body: RequestBody,
        traces: &'a Traces,
    ) -> Result<Self, Refusal> {
        match Encoding::of_request(call.headers) {
            Ok(Encoding::Identity) => {}
            Ok(Encoding::Gzip | Encoding::Deflate) => {
                // Boxed because it is rare, so that it takes no space in the future of every request.
                let decompressed =
                    Box::pin(http::decompress(body, face.options.input_limit(), face.server.bodies()));
                body = decompressed.await?;
            }
            Err(unknown) => return Err(Refusal(Box::new(http::unknown_encoding(&unknown)))),
        }
        let json = body.take_joined(body.len()).unwrap_or_default();
        let named = json.clone();
        let name = long_work::run_sized(json.len(), move || model_name(&named)).await??;
        let (target, adapter) = resolve(face, call, &name).await?;
        let model = Arc::clone(target.model());
        let profile = face.profiles.of(&model).await?;
        let counted_as = adapter.map(|adapter| adapter.counted_as(call, Action::Infer, model.id()));
        let lora = adapter.map(|name| name.adapter.to_owned());
        Ok(Self {
            face,
            call,
            traces,
            body,
            json,
            name,
            lora,
            counted_as,
            target,
            model,
            profile,
            meter: None,
        })
    }

    /// Reads the request on another thread if it is long.
    ///
    /// # Errors
    /// The errors of `plan`.
    pub(crate) async fn plan<T: Send + 'static>(
        &self,
        plan: impl FnOnce(&Request) -> Outcome<T> + Send + 'static,
    ) -> Result<T, Refusal> {
        let request = self.request();
        Ok(long_work::run_sized(self.json.len(), move || plan(&request)).await??)
    }

    /// Like [`plan`](Self::plan), on another thread in any case, because `plan` may wait.
    ///
    /// # Errors
    /// The errors of `plan`.
    pub(crate) async fn plan_waiting<T: Send + 'static>(
        &self,
        plan: impl FnOnce(&Request) -> Outcome<T> + Send + 'static,
    ) -> Result<T, Refusal> {
        let request = self.request();
        let plan = move || plan(&request);
        Ok(match long_work::is_long(self.json.len()) {
            true => long_work::run(plan).await??,
            false => waiting(plan).await??,
        })
    }

    fn request(&self) -> Request {
        Request {
            json: self.json.clone(),
            name: self.name.clone(),
            lora: self.lora.clone(),
            model: Arc::clone(&self.model),
            profile: Arc::clone(&self.profile),
            default_max_tokens: self.face.options.default_max_tokens,
        }
    }

    /// Counts a request against the sender's limits while the result exists.
    ///
    /// # Errors
    /// The reply to a request beyond a limit.
    pub(crate) fn admit(&mut self) -> Result<Option<Admission>, Refusal> {
        let counted_as = self.counted_as.as_ref().unwrap_or(self.model.id());
        let admission = self.call.admit(counted_as, self.json.len())?;
        self.meter = admission.as_ref().and_then(|admission| admission.usage.clone());
        Ok(admission)
    }

    /// Sends a request to the model.
    ///
    /// # Errors
    /// The reply to a request that is refused.
    pub(crate) fn infer(&mut self, mut request: InferRequest) -> Result<Answers, Refusal> {
        let admission = self.admit()?;
        if let Some(pattern) = &self.face.options.forwarded_headers {
            let headers = self.call.spelled_headers().filter(|(name, _)| !self.call.is_secret(name));
            pattern.forward(headers, &mut request.parameters)?;
        }
        request.deadline =
            http::time_limit(self.call.headers).and_then(|limit| Instant::now().checked_add(limit));
        let header = |name: &str| self.call.headers.get(name)?.to_str().ok();
        let trace = self.face.server.trace().draw(self.model.name(), || trace_parent(header));
        if let Some(trace) = &trace {
            self.traces.add(trace, self.call);
        }
        request.trace = trace.clone().map(RequestTrace::new);
        let caller = Caller::default().with_principal(self.call.caller.principal.clone());
        let caller = caller.with_body(self.body.take_share()).with_admission(admission);
        Ok(Answers::new(self.face.server.infer(&self.target, request, caller)?, trace))
    }

    /// Begins to measure a request for text, which a client streams or not. `None` if the model's backend does.
    pub(crate) fn measure(&self, operation: Operation, streams: bool) -> Option<Measured> {
        let is_decoupled = self.profile.text.is_some_and(TextContract::is_decoupled);
        self.face.metrics.begin(&self.model, operation, streams && is_decoupled)
    }

    /// The HTTP side of the request.
    pub(crate) fn call(&self) -> &'a Call<'a> {
        self.call
    }
}

/// Runs what may wait for a disk, on another thread.
///
/// # Errors
/// The work panicked, or the runtime ended first.
pub(crate) async fn waiting<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Outcome<T> {
    let unfinished = |error: JoinError| Error::unavailable(format!("the request was not read: {error}"));
    Ok(spawn_blocking(work).await.map_err(unfinished)?)
}

/// The input of a request's reader.
pub(crate) struct Request {
    /// The JSON.
    pub json: Bytes,
    /// The model's name as the client wrote it.
    pub name: String,
    /// The adapter in that name.
    pub lora: Option<String>,
    /// The model.
    pub model: Arc<Model>,
    /// The model's profile.
    pub profile: Arc<Profile>,
    /// The limit of tokens of a request without one.
    pub default_max_tokens: u64,
}

/// The field `model` of a request.
fn model_name(json: &[u8]) -> Outcome<String> {
    #[derive(Deserialize)]
    struct Named<'a> {
        #[serde(borrow)]
        model: Option<Cow<'a, str>>,
    }
    let named: Named<'_> = serde_json::from_slice(json)
        .map_err(|error| Failure::invalid(format!("the request body is invalid: {error}")))?;
    match named.model {
        Some(name) if !name.is_empty() => Ok(name.into_owned()),
        _ => Err(Failure::invalid_field("model", "'model' is missing")),
    }
}

/// The model of this name, or else the model with the adapter in `MODEL:ADAPTER`. The caller needs the right to run it.
async fn resolve<'n>(
    face: &OpenAi,
    call: &Call<'_>,
    name: &'n str,
) -> Result<(ResolvedModel, Option<AdapterName<'n>>), Refusal> {
    let head = || {
        let headers = call.headers.iter().filter(|(name, _)| !call.is_secret(name.as_str()));
        request_head(headers.map(|(name, value)| (name.as_str(), value.as_bytes())))
    };
    let unknown = |error: Error| match error.code() {
        ErrorCode::NotFound => Failure::unknown_model(format!("Unknown model: {name}")),
        _ => error.into(),
    };
    let scope = call.scope_of(Action::Infer);
    let scoped = ScopedName::new(name, &scope);
    let Some(adapter) = AdapterName::parse(name) else {
        call.permit(Action::Infer, name)?;
        return Ok((face.server.resolve_with(scoped, None, head).await.map_err(unknown)?, None));
    };
    if call.may(Action::Infer, Some(name)) {
        match face.server.resolve_with(scoped, None, head).await {
            Ok(model) => return Ok((model, None)),
            Err(error) if error.code() == ErrorCode::NotFound => {}
            Err(error) => return Err(error.into()),
        }
    }
    adapter.permit(call, Action::Infer)?;
    let scope = adapter.scope(call, Action::Infer);
    let scoped = ScopedName::new(adapter.model, &scope);
    let model = face.server.resolve_with(scoped, None, head).await.map_err(unknown)?;
    if adapters::listed(&model).is_some_and(|mut listed| !listed.any(|one| one == adapter.adapter)) {
        return Err(Failure::unknown_model(format!("Unknown model: {name}")).into());
    }
    Ok((model, Some(adapter)))
}

/// The identifier of a request: the client's, if it is a plain text, or a new one.
pub(crate) fn request_id(headers: &HeaderMap) -> String {
    let given = headers.get("x-request-id").and_then(|id| id.to_str().ok());
    let given = given.filter(|id| !id.is_empty() && id.len() <= 128);
    given.map_or_else(|| random_id("req_"), str::to_owned)
}

/// A new identifier with a prefix.
pub(crate) fn random_id(prefix: &str) -> String {
    format!("{prefix}{:032x}", fastrand::u128(..))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_is_read_without_the_rest() {
        for (json, expected) in [
            (r#"{"messages": [{"model": "no"}], "model": "m"}"#, Some("m")),
            (r#"{"model": "\u006d:l"}"#, Some("m:l")),
            (r#"{"model": ""}"#, None),
            (r#"{"model": null}"#, None),
            (r#"{"model": 1}"#, None),
            ("{}", None),
            ("", None),
            ("{\"model\": \"m\"", None),
        ] {
            assert_eq!(model_name(json.as_bytes()).ok().as_deref(), expected, "{json}");
        }
    }

    #[test]
    fn identifiers_are_the_clients_or_new() {
        let id = |value: &str| {
            let mut headers = HeaderMap::new();
            headers.insert("x-request-id", value.parse().unwrap());
            request_id(&headers)
        };
        assert_eq!(id("abc"), "abc");
        for other in ["", &"x".repeat(129), "é"] {
            assert!(id(other).starts_with("req_"), "{other}");
        }
        assert_ne!(request_id(&HeaderMap::new()), request_id(&HeaderMap::new()));
    }
}
