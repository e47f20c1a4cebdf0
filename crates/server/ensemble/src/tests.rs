//! Requests to ensembles, through a whole server, with scripted members.

mod executors;
mod flow;
mod lifecycle;
mod random_flows;
mod random_graphs;
mod streams;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

use nereid_backend_api::{
    Backend, Batch, CorrelationId, DataType, Error, ErrorCode, Flow, InferRequest, ParameterValue,
    PolicyContents, Request, RequestedOutput, Response, Result, SequenceFlags, Tensor,
};
use nereid_testkit::{ScriptedBackend, ScriptedModel, normalised};

use nereid_core::{
    Caller, ExecutorFactory, ModelId, ModelSource, ModelSpec, ResponseStream, ScopedName, Server,
    ServerOptions,
};

use crate::EnsembleFactory;

/// The behaviour of members, by the parameter `act` of their configuration:
/// - `add` (the default): output `Y` is the sum of all present inputs and of the parameter `plus`; output `Z`, if requested, is
///   three times the sum;
/// - `fail`: an error;
/// - `repeat`: numbered responses, their count is the input;
/// - `hold`: like `add`, once the test [releases](Members::release) the request;
/// - `unready`: like `add`, but the model is not ready;
/// - `tell`: like `add`, and the response's parameters contain the request's sequence;
/// - see [`flow::ACTS`] for the others.
#[derive(Clone, Default)]
struct Members {
    held: Arc<Mutex<Vec<Request>>>,
    /// Whether loads of models with `act` `breakable` fail.
    broken: Arc<Mutex<bool>>,
    /// Number of models with `act` `slow` whose load waits for the test.
    loading: Arc<(Mutex<usize>, Condvar)>,
}

impl Members {
    fn backend(&self) -> ScriptedBackend {
        let members = self.clone();
        ScriptedBackend::new(move |context| {
            let parameter =
                |name: &str| context.config.parameters.get(name).map(|it| it.string_value.clone());
            let act = parameter("act").unwrap_or_default();
            if act == "breakable" && *members.broken.lock().unwrap() {
                return Err(Error::internal("broken on purpose"));
            }
            if act == "slow" {
                let (loading, changed) = &*members.loading;
                *loading.lock().unwrap() += 1;
                changed.notify_all();
                drop(changed.wait_while(loading.lock().unwrap(), |loading| *loading > 0).unwrap());
            }
            let plus = parameter("plus").map_or(0, |plus| plus.parse().unwrap());
            let (held, acting) = (Arc::clone(&members.held), act.clone());
            let model = ScriptedModel::new(move |batch| execute(batch, &acting, plus, &held));
            Ok(match act.as_str() {
                "hold" => model,
                "unready" => model.at_once().ready(|| Err(Error::unavailable("not ready on purpose"))),
                _ => model.at_once(),
            })
        })
    }
}

fn execute(mut batch: Batch, act: &str, plus: i64, held: &Mutex<Vec<Request>>) {
    batch.inputs_ready();
    batch.outputs_ready();
    match act {
        "fail" => batch.fail(Error::internal("failed on purpose")),
        "hold" => held.lock().unwrap().extend(batch.into_requests()),
        "repeat" | "count" => {
            batch.into_requests().into_iter().for_each(|request| repeat(&request, act == "count"));
        }
        act if flow::ACTS.contains(&act) => {
            let outcomes: Vec<_> = batch.requests().iter().map(|it| flow::answered(it, plus, act)).collect();
            batch.complete(outcomes);
        }
        act => {
            let outcomes: Vec<_> =
                batch.requests().iter().map(|request| Ok(added(request, plus, act))).collect();
            batch.complete(outcomes);
        }
    }
}

impl Members {
    /// The held requests. Waits until there are `count`.
    fn held(&self, count: usize) -> Vec<Request> {
        loop {
            let mut held = self.held.lock().unwrap();
            if held.len() >= count {
                return std::mem::take(&mut *held);
            }
            drop(held);
            thread::yield_now();
        }
    }

    /// Answers a held request.
    fn release(&self, request: Request) {
        let response = added(&request, 0, "add");
        request.answer(Ok(response));
    }
}

fn numbers(tensor: &Tensor) -> Vec<i64> {
    let bytes = tensor.contiguous().unwrap();
    bytes.chunks(8).map(|bytes| i64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

fn tensor(name: &str, shape: &[i64], numbers: &[i64]) -> Tensor {
    let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
    Tensor::new(name, DataType::Int64, shape, bytes)
}

fn added(request: &Request, plus: i64, act: &str) -> Response {
    let first = request.inputs.first();
    let mut sum = first.map_or(vec![plus], |first| vec![plus; numbers(first).len()]);
    for input in &request.inputs {
        sum.iter_mut().zip(numbers(input)).for_each(|(sum, number)| *sum += number);
    }
    let shape = first.map_or([1, 1].into(), |first| first.shape.clone());
    let tripled: Vec<_> = sum.iter().map(|number| number * 3).collect();
    let all = [tensor("Y", &shape, &sum), tensor("Z", &shape, &tripled)];
    let mut response = Response::new(all.into_iter().filter(|output| request.wants(&output.name)).collect());
    if act == "tell" {
        let number = if let CorrelationId::Number(number) = request.correlation_id { number } else { 0 };
        response.parameters.set("sequence_id", ParameterValue::Int(number as i64 + 1));
        response.parameters.set("sequence_start", ParameterValue::Bool(!request.sequence.start));
    }
    response
}

fn repeat(request: &Request, ends_with_answer: bool) {
    let times = numbers(&request.inputs[0])[0];
    for number in 0..times {
        let answer = Ok(Response::new(vec![tensor("Y", &[1, 1], &[number])]));
        match ends_with_answer && number + 1 == times {
            true => request.responder().finish_with(answer),
            false => request.responder().send(answer),
        }
    }
    request.responder().finish();
}

/// A model with this configuration.
fn spec(name: &str, text: &str) -> ModelSpec {
    ModelSpec::new(ModelId::plain(name), name, normalised(name, text), [1])
}

fn io(inputs: &str, outputs: &str) -> String {
    let tensors = |role: &str, names: &str| {
        let tensor = |name| format!("{role} {{ name: '{name}' data_type: TYPE_INT64 dims: [ 1 ] }} ");
        names.split(' ').map(tensor).collect::<String>()
    };
    tensors("input", inputs) + &tensors("output", outputs)
}

/// A member with inputs `X` and more, and outputs `Y` and more.
fn member(name: &str, inputs: &str, act: &str, plus: i64) -> (String, ModelSpec) {
    let text = format!(
        "backend: 'members' max_batch_size: 8 {}
         parameters {{ key: 'act' value {{ string_value: '{act}' }} }}
         parameters {{ key: 'plus' value {{ string_value: '{plus}' }} }}
         model_transaction_policy {{ decoupled: {} }}",
        io(inputs, "Y Z"),
        matches!(act, "repeat" | "count")
    );
    (name.to_owned(), spec(name, &text))
}

/// An ensemble of steps like `model: X=a W=b -> Y=c`.
fn ensemble(name: &str, inputs: &str, outputs: &str, steps: &[&str]) -> (String, ModelSpec) {
    let text =
        format!("platform: 'ensemble' max_batch_size: 4 {} {}", io(inputs, outputs), scheduling(steps));
    (name.to_owned(), spec(name, &text))
}

fn scheduling(steps: &[&str]) -> String {
    let map = |role: &str, pairs: &str| {
        let pair = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap();
            format!("{role} {{ key: '{key}' value: '{value}' }} ")
        };
        pairs.split_whitespace().map(pair).collect::<String>()
    };
    let step = |step: &&str| {
        let (model, maps) = step.split_once(": ").unwrap();
        let (inputs, outputs) = maps.split_once(" -> ").unwrap();
        let (inputs, outputs) = (map("input_map", inputs), map("output_map", outputs));
        format!("step {{ model_name: '{model}' model_version: -1 {inputs} {outputs} }} ")
    };
    format!("ensemble_scheduling {{ {} }}", steps.iter().map(step).collect::<String>())
}

fn options() -> ServerOptions {
    let executors = [Arc::new(EnsembleFactory) as Arc<dyn ExecutorFactory>].into_iter().collect();
    ServerOptions { strict_readiness: true, load_threads: 2, executors, ..ServerOptions::default() }
}

fn server_of(members: &Members, options: ServerOptions, source: Arc<dyn ModelSource>) -> Arc<Server> {
    let backend = Arc::new(members.backend()) as Arc<dyn Backend>;
    Server::new(options, BTreeMap::from([("members".to_owned(), backend)]), source)
}

/// A server that has loaded these models.
fn serving<const N: usize>(models: [(String, ModelSpec); N]) -> (Arc<Server>, Members) {
    let members = Members::default();
    let models: BTreeMap<_, _> = models.into_iter().map(|(name, spec)| (name, Ok(spec))).collect();
    let server = server_of(&members, options(), Arc::new(models));
    let failures = server.start(None).unwrap();
    assert!(failures.is_empty() && server.is_ready(), "{failures:?}");
    (server, members)
}

fn request(inputs: &[(&str, i64)]) -> InferRequest {
    let inputs = inputs.iter().map(|(name, number)| tensor(name, &[1, 1], &[*number])).collect();
    InferRequest { id: "r".into(), inputs, ..InferRequest::default() }
}

fn infer(server: &Server, model: &str, request: InferRequest) -> Result<ResponseStream> {
    server.infer(&server.model(ScopedName::everywhere(model), None)?, request, Caller::default())
}

async fn ask(server: &Server, model: &str, request: InferRequest) -> Result<Response> {
    infer(server, model, request)?.single().await
}

/// The first number of each output, by name.
fn outputs(response: &Response) -> Vec<(&str, i64)> {
    response.outputs.iter().map(|output| (output.name.as_str(), numbers(output)[0])).collect()
}

#[tokio::test]
async fn steps_run_once_their_tensors_are_complete_and_share_them() {
    let (server, _) = serving([
        member("one", "X", "add", 1),
        member("two", "X W", "add", 10),
        // A diamond: 'a' is read twice, and 'one' is a step three times. The steps stand in the wrong order.
        ensemble(
            "e",
            "IN",
            "OUT SIDE",
            &["two: X=b W=c -> Y=OUT", "one: X=a -> Y=b Z=SIDE", "one: X=a -> Y=c", "one: X=IN -> Y=a"],
        ),
    ]);
    let response = ask(&server, "e", request(&[("IN", 5)])).await.unwrap();
    // a = 6, b = c = 7, SIDE = 21.
    assert_eq!(outputs(&response), [("OUT", 24), ("SIDE", 21)]);
    assert_eq!(response.outputs[0].shape, [1, 1].into());
    let count =
        |name: &str| server.model(ScopedName::everywhere(name), None).unwrap().statistics().snapshot();
    assert_eq!((count("one").success.count, count("two").success.count), (3, 1));
    let of_ensemble = count("e");
    assert_eq!(
        (of_ensemble.success.count, of_ensemble.inference_count, of_ensemble.execution_count),
        (1, 1, 1)
    );
    assert_eq!(of_ensemble.batches[&1].compute_infer.count, 1);
    // It was computed as long as its members.
    let infer = count("one").compute_input.ns + count("two").compute_input.ns;
    assert_eq!((of_ensemble.compute_input.count, of_ensemble.compute_input.ns), (1, infer));
}

#[tokio::test]
async fn only_steps_that_lead_to_a_requested_output_run() {
    let (server, _) = serving([
        member("one", "X", "add", 1),
        member("other", "X", "add", 10),
        ensemble("e", "IN", "A B", &["one: X=IN -> Y=A", "other: X=A -> Y=B"]),
    ]);
    let wanting =
        |name: &str| InferRequest { outputs: vec![RequestedOutput::new(name)], ..request(&[("IN", 5)]) };
    assert_eq!(outputs(&ask(&server, "e", wanting("A")).await.unwrap()), [("A", 6)]);
    assert_eq!(
        server.model(ScopedName::everywhere("other"), None).unwrap().statistics().snapshot().success.count,
        0
    );
    // The output of a step that another step reads is computed although it is not requested.
    assert_eq!(outputs(&ask(&server, "e", wanting("B")).await.unwrap()), [("B", 16)]);
}

#[tokio::test]
async fn properties_of_the_request_are_passed_on_to_members() {
    let (server, members) =
        serving([member("hold", "X", "hold", 0), ensemble("e", "IN", "OUT", &["hold: X=IN -> Y=OUT"])]);
    let mut given = request(&[("IN", 5)]);
    given.parameters.set("mine", ParameterValue::Bool(true));
    given.correlation_id = CorrelationId::Text("s".into());
    given.sequence = SequenceFlags { start: true, end: false };
    given.priority = 3;
    given.flow = Flow { id: 9, weight: NonZeroU32::new(2).unwrap() };
    given.timeout = Some(std::time::Duration::from_secs(60));
    let (parameters, timeout, flow) = (given.parameters.clone(), given.timeout, given.flow);
    let contents = |input: &str, number| PolicyContents {
        input: input.into(),
        policy: "near".into(),
        buffers: tensor(input, &[1, 1], &[number]).buffers,
    };
    given.policy_contents = vec![contents("NONE", 6), contents("IN", 7)];
    let mut answers = infer(&server, "e", given).unwrap();
    let held = members.held(1).remove(0);
    let [own] = &held.policy_contents[..] else { panic!("the step reads one input") };
    assert_eq!((own.input.as_str(), own.policy.as_str()), ("X", "near"));
    assert_eq!(own.buffers[0].as_host().unwrap()[..], 7_i64.to_le_bytes());
    assert_eq!((held.id.as_str(), &held.parameters), ("r", &parameters));
    assert_eq!((&held.correlation_id, held.sequence.start), (&CorrelationId::Text("s".into()), true));
    assert_eq!((held.priority, held.timeout, held.flow, held.model_name()), (3, timeout, flow, "hold"));
    assert_eq!(held.outputs, [RequestedOutput::new("Y")]);
    members.release(held);
    let response = answers.single().await.unwrap();
    assert_eq!(response.parameters.get("sequence_id"), Some(&ParameterValue::String("s".into())));
}

#[tokio::test]
async fn response_of_a_step_sets_the_sequence_of_the_next() {
    let (server, _) = serving([
        member("tell", "X", "tell", 0),
        ensemble("e", "IN", "OUT", &["tell: X=IN -> Y=a", "tell: X=a -> Y=OUT"]),
    ]);
    let mut given = request(&[("IN", 5)]);
    given.correlation_id = CorrelationId::Number(7);
    let response = ask(&server, "e", given).await.unwrap();
    assert_eq!(response.parameters.get("sequence_id"), Some(&ParameterValue::Int(9)));
    assert_eq!(response.parameters.get("sequence_start"), Some(&ParameterValue::Bool(false)));
}

#[tokio::test]
async fn failed_step_fails_the_request_and_cancels_the_others() {
    let (server, members) = serving([
        member("one", "X", "hold", 0),
        member("other", "X", "hold", 0),
        member("two", "X W", "add", 0),
        ensemble("e", "IN", "OUT", &["one: X=IN -> Y=a", "other: X=IN -> Y=b", "two: X=a W=b -> Y=OUT"]),
    ]);
    let mut answers = infer(&server, "e", request(&[("IN", 5)])).unwrap();
    let (one, other) = members.held(2).into_iter().partition::<Vec<_>, _>(|held| held.model_name() == "one");
    other.into_iter().for_each(|held| held.answer(Err(Error::internal("failed on purpose"))));
    let error = answers.single().await.unwrap_err();
    assert_eq!((error.code(), error.message()), (ErrorCode::Internal, "in ensemble 'e', failed on purpose"));
    assert!(one[0].responder().is_cancelled());
    let counted =
        |name: &str| server.model(ScopedName::everywhere(name), None).unwrap().statistics().snapshot();
    assert_eq!((counted("e").fail.count, counted("e").execution_count), (1, 0));
    assert_eq!(counted("two").success.count, 0);
}

#[tokio::test]
async fn cancelled_request_is_cancelled_at_the_members() {
    let (server, members) = serving([
        member("hold", "X", "hold", 0),
        ensemble("inner", "IN", "OUT", &["hold: X=IN -> Y=OUT"]),
        ensemble("e", "IN", "OUT", &["inner: IN=IN -> OUT=a", "hold: X=a -> Y=OUT"]),
    ]);
    let answers = infer(&server, "e", request(&[("IN", 5)])).unwrap();
    let held = members.held(1).remove(0);
    assert!(!held.responder().is_cancelled());
    drop(answers);
    assert!(held.responder().is_cancelled());
    let counted = |name: &str| {
        server.model(ScopedName::everywhere(name), None).unwrap().statistics().snapshot().cancel.count
    };
    assert_eq!((counted("e"), counted("inner")), (1, 1));
    members.release(held);
    // The next member received no request.
    assert_eq!(members.held.lock().unwrap().len(), 0);
}

#[tokio::test]
async fn request_that_does_not_fit_a_member_fails() {
    let one_row = "backend: 'members' input { name: 'X' data_type: TYPE_INT64 dims: [ 1 ] }
                   output { name: 'Y' data_type: TYPE_INT64 dims: [ 1 ] }";
    let (server, _) = serving([
        ("row".to_owned(), spec("row", one_row)),
        ensemble("e", "IN", "OUT", &["row: X=IN -> Y=OUT"]),
    ]);
    assert_eq!(outputs(&ask(&server, "e", request(&[("IN", 5)])).await.unwrap()), [("OUT", 5)]);
    let mut two_rows = request(&[]);
    two_rows.inputs = vec![tensor("IN", &[2, 1], &[1, 2])];
    let error = ask(&server, "e", two_rows).await.unwrap_err();
    assert!(
        error.message().starts_with("in ensemble 'e', request 'r': unexpected shape for input 'X'"),
        "{error}"
    );
    assert_eq!(error.code(), ErrorCode::InvalidArg);
    // The ensemble's own inputs are checked first.
    let missing = ask(&server, "e", request(&[])).await.unwrap_err();
    assert!(missing.message().contains("missing 'IN'"), "{missing}");
}

#[tokio::test]
async fn omitted_optional_input_is_omitted_from_its_step() {
    let optional = |spec: &mut ModelSpec, index: usize| spec.config.input[index].optional = true;
    let (mut two, mut e) =
        (member("two", "X W", "add", 10), ensemble("e", "A B", "OUT", &["two: X=A W=B -> Y=OUT"]));
    optional(&mut two.1, 1);
    optional(&mut e.1, 1);
    let (server, _) = serving([two, e]);
    assert_eq!(outputs(&ask(&server, "e", request(&[("A", 5)])).await.unwrap()), [("OUT", 15)]);
    assert_eq!(outputs(&ask(&server, "e", request(&[("A", 5), ("B", 2)])).await.unwrap()), [("OUT", 17)]);
}

#[tokio::test]
async fn ensemble_is_ready_if_the_backends_of_its_members_are() {
    let (server, _) = serving([
        member("one", "X", "add", 1),
        member("unready", "X", "unready", 1),
        ensemble("good", "IN", "OUT", &["one: X=IN -> Y=OUT"]),
        ensemble("bad", "IN", "OUT", &["unready: X=IN -> Y=OUT"]),
        ensemble("worse", "IN", "OUT", &["good: IN=IN -> OUT=a", "bad: IN=a -> OUT=OUT"]),
    ]);
    let ready = |name: &str| server.model(ScopedName::everywhere(name), None).unwrap().ready();
    ready("good").await.unwrap();
    for name in ["bad", "worse"] {
        assert_eq!(ready(name).await.unwrap_err().message(), "not ready on purpose");
    }
}

#[test]
fn ensemble_depends_on_the_models_of_its_steps_once_each_and_other_models_on_none() {
    for (text, expected) in [
        ("backend: 'x'", None),
        ("backend: 'x' dynamic_batching { }", None),
        ("backend: 'x' sequence_batching { }", None),
        ("ensemble_scheduling { }", Some(vec![])),
        ("ensemble_scheduling { step { model_name: 'b' } step { model_name: 'a' } }", Some(vec!["a", "b"])),
        ("ensemble_scheduling { step { model_name: 'b' } step { model_name: 'b' } }", Some(vec!["b"])),
    ] {
        let config = nereid_model_config::parse_text(text).unwrap();
        let found = EnsembleFactory.dependencies(&config);
        let expected = expected.map(|names| names.into_iter().map(str::to_owned).collect());
        assert_eq!(found, expected, "{text}");
        let spec = ModelSpec::new(ModelId::plain("m"), "m", config, [1]);
        assert_eq!(EnsembleFactory.accepts(&spec), found.is_some(), "{text}");
    }
}

#[test]
fn ensemble_without_steps_is_refused() {
    let config = nereid_model_config::parse_text("backend: 'members' ensemble_scheduling { }").unwrap();
    let spec = ModelSpec::new(ModelId::plain("e"), "e", config, [1]);
    let models = BTreeMap::from([("e".to_owned(), Ok(spec))]);
    let server = server_of(&Members::default(), options(), Arc::new(models));
    let failures = server.start(None).unwrap();
    assert!(failures[0].1.message().contains("ensemble_scheduling"), "{failures:?}");
    assert!(!server.is_ready());
}
