//! Calls as clients make them: answers, access, and what happens when the client stops waiting.

use std::sync::{Mutex, mpsc};
use std::time::Duration;

use http_body_util::{BodyExt, Full};
use nereid_core::backend_api::{
    Error, ErrorCode, ParameterValue, Request as ModelRequest, Response as Answer,
};
use nereid_core::{Caller, Interceptor, Model, ScopedName, Step};
use nereid_protocol::{
    Access, Authentication, Authenticator, Authorizer, Denied, Identity, Origin, Restrictions,
};
use prost::Message;
use tonic::{Code, Request as Call};

use super::*;
use crate::proto::grpc_inference_service_client::GrpcInferenceServiceClient;
use crate::proto::infer_parameter::ParameterChoice;
use crate::proto::*;
use crate::testing::{NUMBER, Serving, code, echo, echoed, input_number, number, parameter};

#[tokio::test]
async fn answers_carry_names_id_parameters_and_raw_contents() {
    let serving = Serving::new(NUMBER, |request| {
        let mut response = echoed(&request);
        for (name, value) in [
            ("b", ParameterValue::Bool(true)),
            ("i", ParameterValue::Int(-1)),
            ("d", ParameterValue::Double(0.5)),
            ("s", ParameterValue::String("x".into())),
        ] {
            response.parameters.set(name, value);
        }
        request.answer(Ok(response));
    });
    let answer = serving.client().model_infer(number("m", "7", 5)).await.unwrap().into_inner();
    let expected = ModelInferResponse {
        model_name: "m".into(),
        model_version: "1".into(),
        id: "7".into(),
        parameters: [
            ("b", ParameterChoice::BoolParam(true)),
            ("i", ParameterChoice::Int64Param(-1)),
            ("d", ParameterChoice::DoubleParam(0.5)),
            ("s", ParameterChoice::StringParam("x".into())),
        ]
        .map(|(name, value)| (name.to_owned(), parameter(value)))
        .into(),
        outputs: vec![model_infer_response::InferOutputTensor {
            name: "OUT".into(),
            datatype: "INT32".into(),
            shape: vec![1],
            ..Default::default()
        }],
        raw_output_contents: vec![Bytes::from_static(&[5, 0, 0, 0])],
    };
    assert_eq!(answer, expected);
}

#[tokio::test]
async fn errors_map_to_grpc_status_codes() {
    let serving = Serving::new(NUMBER, |request| {
        let codes = [
            ErrorCode::Unknown,
            ErrorCode::Internal,
            ErrorCode::NotFound,
            ErrorCode::InvalidArg,
            ErrorCode::Unavailable,
            ErrorCode::Unsupported,
            ErrorCode::AlreadyExists,
            ErrorCode::Cancelled,
        ];
        let chosen = codes[usize::try_from(input_number(&request)).unwrap()];
        request.answer(Err(Error::new(chosen, "as asked")));
    });
    let mut client = serving.client();
    let mut seen = Vec::new();
    for chosen in 0..8 {
        let status = client.model_infer(number("m", "", chosen)).await.unwrap_err();
        assert_eq!(status.message(), "as asked");
        seen.push(status.code());
    }
    let expected = [
        Code::Unknown,
        Code::Internal,
        Code::NotFound,
        Code::InvalidArgument,
        Code::Unavailable,
        Code::Unimplemented,
        Code::AlreadyExists,
        Code::Cancelled,
    ];
    assert_eq!(seen, expected);
}

#[tokio::test]
async fn unary_calls_to_decoupled_models_are_refused() {
    let serving = Serving::new(&format!("{NUMBER} model_transaction_policy {{ decoupled: true }}"), echo);
    assert_eq!(code(serving.client().model_infer(number("m", "", 1)).await), Code::Unimplemented);
    assert_eq!(code(serving.client().model_infer(number("n", "", 1)).await), Code::NotFound);
}

/// The status of a call with this body.
async fn raw(calls: &Calls, path: &str, body: &'static [u8]) -> (u16, Option<String>) {
    let request = Request::post(format!("http://x{path}")).header("content-type", "application/grpc");
    let response =
        calls.clone().call(request.body(Full::new(Bytes::from_static(body))).unwrap()).await.unwrap();
    let (parts, body) = response.into_parts();
    let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
    let status = parts.headers.get("grpc-status").or_else(|| trailers.get("grpc-status"));
    (parts.status.as_u16(), status.map(|status| status.to_str().unwrap().to_owned()))
}

#[tokio::test]
async fn malformed_messages_are_refused() {
    let serving = Serving::new(NUMBER, echo);
    let infer = "/inference.GRPCInferenceService/ModelInfer";
    for (body, code) in [
        (&b""[..], Code::Internal),
        // A length and less than that.
        (b"\0\0\0\0\x05ab", Code::Internal),
        (b"\0\0\0", Code::Internal),
        // A field that begins and does not end.
        (b"\0\0\0\0\x02\x0a\x05", Code::Internal),
        (b"\0\0\0\0\x02\xff\xff", Code::Internal),
        // A compression that was not announced, and an unknown one.
        (b"\x01\0\0\0\0", Code::Internal),
        (b"\x02\0\0\0\0", Code::Internal),
        // More than 2 GiB, and just as much, of which little comes.
        (b"\0\xff\xff\xff\xff", Code::ResourceExhausted),
        (b"\0\x80\0\0\0", Code::ResourceExhausted),
        (b"\0\x7f\xff\xff\xffab", Code::Internal),
        // Only defaults: a model without a name.
        (b"\0\0\0\0\0", Code::NotFound),
    ] {
        let answer = raw(&serving.calls, infer, body).await;
        assert_eq!(answer, (200, Some((code as i32).to_string())), "{body:?}");
    }
    for path in ["/inference.GRPCInferenceService/Nothing", "/inference.Other/ModelInfer", "/"] {
        let unimplemented = (Code::Unimplemented as i32).to_string();
        assert_eq!(raw(&serving.calls, path, b"\0\0\0\0\0").await, (200, Some(unimplemented)), "{path}");
    }
}

#[test]
fn every_call_is_listed_and_belongs_to_an_api_group() {
    let descriptors = prost_types::FileDescriptorSet::decode(FILE_DESCRIPTORS).unwrap();
    let services: Vec<_> = descriptors.file.iter().flat_map(|file| &file.service).collect();
    let [service] = services.as_slice() else { panic!("{services:?}") };
    let mut listed = NAMES.to_vec();
    listed.sort_unstable();
    let mut defined: Vec<_> = service.method.iter().map(|method| method.name()).collect();
    defined.sort_unstable();
    assert_eq!(listed, defined);
    assert_eq!(calls().filter(|(_, action)| *action == Action::Describe).count(), 1);
    for method in &service.method {
        assert_ne!(action(&format!("{SERVICE}{}", method.name())), Action::Describe, "{}", method.name());
    }
}

#[tokio::test]
async fn restricted_group_requires_its_key() {
    let restricted = "health,shared-memory:Key=open".parse().unwrap();
    let restrictions = Restrictions::new([restricted]).unwrap().prefixed(RESTRICTED_PREFIX);
    let options = GrpcOptions { access: restrictions.into(), ..GrpcOptions::default() };
    let mut client = Serving::of_models(&[("m", NUMBER.into())], options, echo).client();
    let with = |key: Option<&'static str>| {
        let mut call = Call::new(ServerLiveRequest {});
        if let Some(key) = key {
            call.metadata_mut().insert("triton-grpc-protocol-key", key.parse().unwrap());
        }
        call
    };
    for (key, expected) in
        [(None, Code::Unavailable), (Some("shut"), Code::Unavailable), (Some("open"), Code::Ok)]
    {
        assert_eq!(code(client.server_live(with(key)).await), expected, "{key:?}");
    }
    let status = client.system_shared_memory_status(SystemSharedMemoryStatusRequest::default()).await;
    assert_eq!(code(status), Code::Unavailable);
    assert_eq!(code(client.server_metadata(ServerMetadataRequest {}).await), Code::Ok);
}

/// Notes who makes requests.
#[derive(Clone, Default)]
struct Callers(Arc<Mutex<Vec<Option<Principal>>>>);

impl Interceptor for Callers {
    fn intercept(&self, _: &Arc<Model>, _: &mut ModelRequest, caller: &Caller) -> Step {
        self.0.lock().unwrap().push(caller.principal().cloned());
        Step::Proceed
    }
}

#[tokio::test]
async fn requests_have_the_principal_of_their_connection() {
    let callers = Callers::default();
    let interceptors = [Arc::new(callers.clone()) as Arc<dyn Interceptor>].into_iter().collect();
    let models = [("m", NUMBER.to_owned())];
    let serving = Serving::with_interceptors(&models, GrpcOptions::default(), interceptors, echo);
    for principal in [None, Some(Principal::new("a")), Some(Principal::new("b"))] {
        let client = GrpcInferenceServiceClient::new(
            serving
                .calls
                .clone()
                .of(Identity::of_connection(Origin { certificate: principal.clone(), ..Origin::default() })),
        );
        // Plain and compressed messages use different codecs.
        for mut client in [client.clone(), client.send_compressed(CompressionEncoding::Gzip)] {
            client.model_infer(number("m", "", 1)).await.unwrap();
            let requests = futures_util::stream::iter([number("m", "", 2), number("m", "", 3)]);
            let mut answers = client.model_stream_infer(requests).await.unwrap().into_inner();
            while answers.message().await.unwrap().is_some() {}
        }
        let found = std::mem::take(&mut *callers.0.lock().unwrap());
        assert_eq!(found, vec![principal; 6]);
    }
}

/// Takes the principal from metadata, at once or after a while, and lets each run the model of its name.
#[derive(Debug)]
struct ByName {
    waits: bool,
}

impl Authenticator for ByName {
    fn authenticate<'a>(&'a self, identity: Identity, head: &'a dyn Head) -> Authentication<'a> {
        let outcome = match head.header("authorization") {
            Some(name) => Ok(identity.with_principal(Principal::new(String::from_utf8_lossy(name)))),
            None => Err(Denied::Unauthenticated("who are you?".to_owned())),
        };
        match self.waits {
            false => Authentication::Done(outcome),
            true => Authentication::Pending(Box::pin(async {
                tokio::task::yield_now().await;
                outcome
            })),
        }
    }
}

impl Authorizer for ByName {
    fn check(&self, caller: &Identity, _: Action, model: Option<&str>) -> Result<(), Denied> {
        let name = caller.principal.as_ref().map_or("", Principal::name);
        match model {
            Some(model) if model != name => Err(Denied::Forbidden(format!("{name} may not"))),
            _ => Ok(()),
        }
    }
}

#[tokio::test]
async fn calls_pass_the_authenticator_and_the_models_authorizer() {
    for waits in [false, true] {
        let access = Access::default()
            .with_authenticator(Arc::new(ByName { waits }))
            .with_authorizer(Arc::new(ByName { waits }));
        let options = GrpcOptions { access, ..GrpcOptions::default() };
        let models = [("ann", NUMBER.into()), ("bob", NUMBER.into())];
        let mut client = Serving::of_models(&models, options, echo).client();
        fn by<T>(name: &'static str, message: T) -> Call<T> {
            let mut call = Call::new(message);
            call.metadata_mut().insert("authorization", name.parse().unwrap());
            call
        }
        let (own, other) = (number("ann", "", 1), number("bob", "", 1));
        assert_eq!(code(client.server_live(ServerLiveRequest {}).await), Code::Unauthenticated);
        assert_eq!(code(client.model_infer(own.clone()).await), Code::Unauthenticated);
        assert_eq!(code(client.server_live(by("ann", ServerLiveRequest {})).await), Code::Ok);
        for (model, expected) in [("ann", Code::Ok), ("bob", Code::PermissionDenied)] {
            let (name, version) = (model.to_owned(), String::new());
            let infer = number(model, "", 1);
            assert_eq!(code(client.model_infer(by("ann", infer)).await), expected);
            let config = ModelConfigRequest { name: name.clone(), version: version.clone() };
            assert_eq!(code(client.model_config(by("ann", config)).await), expected);
            let metadata = ModelMetadataRequest { name: name.clone(), version: version.clone() };
            assert_eq!(code(client.model_metadata(by("ann", metadata)).await), expected);
            let ready = ModelReadyRequest { name: name.clone(), version: version.clone() };
            assert_eq!(code(client.model_ready(by("ann", ready)).await), expected);
            let statistics = ModelStatisticsRequest { name: name.clone(), version };
            assert_eq!(code(client.model_statistics(by("ann", statistics)).await), expected);
            let settings = TraceSettingRequest { model_name: name, ..TraceSettingRequest::default() };
            assert_eq!(code(client.trace_setting(by("ann", settings)).await), expected);
            let compressed = client.clone().send_compressed(CompressionEncoding::Gzip);
            let compressed = compressed.clone().model_infer(by("ann", number(model, "", 1))).await;
            assert_eq!(code(compressed), expected);
        }
        let index = RepositoryIndexRequest::default();
        let index = client.repository_index(by("ann", index)).await.unwrap().into_inner().models;
        assert_eq!(index.iter().map(|model| model.name.as_str()).collect::<Vec<_>>(), ["ann"]);
        let all = ModelStatisticsRequest::default();
        let all = client.model_statistics(by("ann", all)).await.unwrap().into_inner().model_stats;
        assert_eq!(all.iter().map(|model| model.name.as_str()).collect::<Vec<_>>(), ["ann"]);
        for model in ["ann", "bob"] {
            let expected = if model == "ann" { Code::Ok } else { Code::PermissionDenied };
            let load = RepositoryModelLoadRequest {
                model_name: model.into(),
                ..RepositoryModelLoadRequest::default()
            };
            assert_eq!(code(client.repository_model_load(by("ann", load)).await), expected);
        }
        let unload = RepositoryModelUnloadRequest {
            model_name: "bob".into(),
            ..RepositoryModelUnloadRequest::default()
        };
        assert_eq!(code(client.repository_model_unload(by("ann", unload)).await), Code::PermissionDenied);
        let requests = futures_util::stream::iter([other, own]);
        let mut answers = client.model_stream_infer(by("ann", requests)).await.unwrap().into_inner();
        let refused = answers.message().await.unwrap().unwrap();
        assert!(refused.error_message.contains("ann may not"), "{}", refused.error_message);
        assert_eq!(answers.message().await.unwrap().unwrap().error_message, "");
    }
}

/// Refuses one action.
#[derive(Debug)]
struct Without(Action);

impl Authorizer for Without {
    fn check(&self, _: &Identity, action: Action, _: Option<&str>) -> Result<(), Denied> {
        if action == self.0 { Err(Denied::Forbidden("not permitted".to_owned())) } else { Ok(()) }
    }
}

#[tokio::test]
async fn parts_of_a_request_may_need_further_rights() {
    let without = |action| {
        let access = Access::default().with_authorizer(Arc::new(Without(action)));
        let options = GrpcOptions { access, ..GrpcOptions::default() };
        Serving::of_models(&[("m", NUMBER.into())], options, echo).client()
    };
    let mut region = number("m", "", 1);
    region.raw_input_contents.clear();
    region.inputs[0].parameters = [
        ("shared_memory_region".to_owned(), parameter(ParameterChoice::StringParam("r".into()))),
        ("shared_memory_byte_size".to_owned(), parameter(ParameterChoice::Int64Param(4))),
    ]
    .into();
    let mut client = without(Action::UseRegions);
    assert_eq!(code(client.model_infer(region.clone()).await), Code::PermissionDenied);
    assert_eq!(code(client.model_infer(number("m", "", 1)).await), Code::Ok);
    let requests = futures_util::stream::iter([region.clone(), number("m", "", 2)]);
    let mut answers = client.model_stream_infer(requests).await.unwrap().into_inner();
    assert_eq!(answers.message().await.unwrap().unwrap().error_message, "not permitted");
    assert_eq!(answers.message().await.unwrap().unwrap().error_message, "");
    // The region does not exist.
    assert_ne!(code(without(Action::LoadFiles).model_infer(region).await), Code::PermissionDenied);

    for (name, expected) in [(None, Code::Ok), (Some("config"), Code::PermissionDenied)] {
        let value = ModelRepositoryParameter::default();
        let load = RepositoryModelLoadRequest {
            model_name: "m".into(),
            parameters: name.map(|name| (name.to_owned(), value)).into_iter().collect(),
            ..RepositoryModelLoadRequest::default()
        };
        assert_eq!(code(without(Action::LoadFiles).repository_model_load(load).await), expected);
    }
}

#[tokio::test]
async fn credentials_are_not_forwarded_to_models() {
    let pattern = nereid_protocol::HeaderPattern::new(".*-key|authorization").unwrap();
    let access = Access::default().with_authenticator(Arc::new(KeyInHeader));
    let options = GrpcOptions { access, forwarded_headers: Some(pattern), ..GrpcOptions::default() };
    let mut client = Serving::of_models(&[("m", NUMBER.into())], options, echo).client();
    let mut call = Call::new(number("m", "", 1));
    call.metadata_mut().insert("x-key", "secret".parse().unwrap());
    call.metadata_mut().insert("y-key", "2".parse().unwrap());
    let answer = client.model_infer(call).await.unwrap().into_inner();
    assert_eq!(answer.parameters.keys().collect::<Vec<_>>(), ["y-key"]);
}

/// Reads a key that models must not receive.
#[derive(Debug)]
struct KeyInHeader;

impl Authenticator for KeyInHeader {
    fn authenticate<'a>(&'a self, identity: Identity, _: &'a dyn Head) -> Authentication<'a> {
        Authentication::Done(Ok(identity))
    }

    fn is_secret(&self, name: &str) -> bool {
        name == "x-key"
    }
}

#[tokio::test]
async fn headers_are_forwarded_as_parameters() {
    let pattern = nereid_protocol::HeaderPattern::new("^x-|priority|^te|grpc").unwrap();
    let options = GrpcOptions { forwarded_headers: Some(pattern), ..GrpcOptions::default() };
    let mut client = Serving::of_models(&[("m", NUMBER.into())], options, echo).client();
    let mut call = Call::new(number("m", "", 1));
    call.metadata_mut().insert("x-one", "1".parse().unwrap());
    call.metadata_mut().insert("other", "2".parse().unwrap());
    call.metadata_mut().insert("triton_grpc_error", "true".parse().unwrap());
    call.set_timeout(Duration::from_secs(60));
    let answer = client.model_infer(call).await.unwrap().into_inner();
    let forwarded = [("x-one".to_owned(), parameter(ParameterChoice::StringParam("1".into())))];
    assert_eq!(answer.parameters, forwarded.into());
    let mut call = Call::new(number("m", "", 1));
    call.metadata_mut().insert("priority", "1".parse().unwrap());
    assert_eq!(code(client.model_infer(call).await), Code::InvalidArgument);
}

/// A model with one instance that holds each request until released, and reports its state then.
fn holding() -> (Serving, mpsc::Receiver<i32>, mpsc::Sender<()>, mpsc::Receiver<bool>) {
    let (began, begins) = mpsc::channel();
    let (release, released) = mpsc::channel::<()>();
    let (ended, ends) = mpsc::channel();
    let released = Mutex::new(released);
    let serving = Serving::new(NUMBER, move |request: ModelRequest| {
        began.send(input_number(&request)).unwrap();
        released.lock().unwrap().recv().unwrap();
        ended.send(request.responder().is_cancelled()).unwrap();
        request.answer(Ok(Answer::default()));
    });
    (serving, begins, release, ends)
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_clients_call_is_cancelled_at_any_stage() {
    let (serving, begins, release, ends) = holding();
    let ask = |value| {
        let mut client = serving.client();
        tokio::spawn(async move { client.model_infer(number("m", "", value)).await })
    };
    let executing = ask(1);
    assert_eq!(begins.recv().unwrap(), 1);
    let model = serving.server.model(ScopedName::everywhere("m"), None).unwrap();
    let queued = ask(2);
    while model.pending() < 1 {
        tokio::task::yield_now().await;
    }
    queued.abort();
    assert!(queued.await.unwrap_err().is_cancelled());
    assert_eq!(model.pending(), 0, "the place in the queue is free");
    executing.abort();
    assert!(executing.await.unwrap_err().is_cancelled());
    release.send(()).unwrap();
    assert!(ends.recv().unwrap(), "its backend is notified");
    // The instance is free for another, and what was queued is not executed.
    let last = ask(3);
    assert_eq!(begins.recv().unwrap(), 3);
    release.send(()).unwrap();
    assert!(!ends.recv().unwrap());
    last.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn deadline_ends_call_and_cancels_request() {
    let (serving, begins, release, ends) = holding();
    let mut call = Call::new(number("m", "", 1));
    // Long enough for the execution to begin.
    call.set_timeout(Duration::from_secs(1));
    let status = serving.client().model_infer(call).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
    assert_eq!(begins.recv().unwrap(), 1);
    release.send(()).unwrap();
    assert!(ends.recv().unwrap(), "its backend is notified");
}
