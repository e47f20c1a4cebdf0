//! Requests that wait, leave together, give up or are limited: the schedulers between real clients and instances.
//!
//! The rules of time are tested on a simulated clock, with the batcher. These tests assert only what happens while something
//! else cannot.

use std::num::NonZeroU32;

use nereid_backend_api::{BatchBuilder, CustomBatching, Flow, Request};

use super::*;
use crate::Admission;
use crate::scope::ScopedName;
use nereid_scheduling::rate_limiter::ResourceLimit;

fn named(id: &str) -> InferRequest {
    InferRequest { id: id.into(), ..request() }
}

fn config_with(scheduling: &str) -> ModelConfig {
    let text = format!("{}\n{scheduling}", nereid_model_config::to_text(&config()));
    nereid_model_config::parse_text(&text).unwrap()
}

fn batching(gate: &Gate, scheduling: &str) -> Arc<Server> {
    batching_with(options(), gate, scheduling)
}

fn batching_with(options: ServerOptions, gate: &Gate, scheduling: &str) -> Arc<Server> {
    let server = server_with(options, gated(gate), vec![spec(config_with(scheduling), &[1])]);
    assert!(server.is_ready(), "{:?}", index(&server));
    server
}

async fn code(mut answers: ResponseStream) -> ErrorCode {
    answers.single().await.unwrap_err().code()
}

#[tokio::test]
async fn requests_that_wait_while_the_instance_executes_leave_together() {
    let gate = Gate::default();
    let server = batching(&gate, "dynamic_batching { preferred_batch_size: 4 }");
    let first = infer(&server, named("a")).unwrap();
    gate.entered(1);
    let others = ["b", "c", "d"].map(|id| infer(&server, named(id)).unwrap());
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    assert_eq!(model.pending(), 3);
    gate.open();
    for mut answers in [first].into_iter().chain(others) {
        answers.single().await.unwrap();
    }
    assert_eq!(gate.entered(2), [vec!["a"], vec!["b", "c", "d"]]);
    let statistics = model.statistics().snapshot();
    let sizes: Vec<_> =
        statistics.batches.iter().map(|(size, batch)| (*size, batch.compute_infer.count)).collect();
    assert_eq!((statistics.inference_count, statistics.execution_count), (4, 2));
    assert_eq!((sizes, model.pending()), (vec![(1, 1), (3, 1)], 0));
}

#[tokio::test]
async fn without_dynamic_batching_each_leaves_by_itself() {
    let gate = Gate::default();
    let server = batching(&gate, "");
    let answers = ["a", "b", "c"].map(|id| infer(&server, named(id)).unwrap());
    gate.open();
    for mut answers in answers {
        answers.single().await.unwrap();
    }
    assert_eq!(gate.entered(3), [["a"], ["b"], ["c"]]);
}

#[tokio::test]
async fn a_batch_that_waits_for_company_leaves_though_none_comes() {
    let gate = Gate::opened();
    let delay = Duration::from_millis(500);
    let server =
        batching(&gate, "dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 500000 }");
    let start = Instant::now();
    let (mut one, mut two) = (infer(&server, named("a")).unwrap(), infer(&server, named("b")).unwrap());
    one.single().await.unwrap();
    two.single().await.unwrap();
    assert!(start.elapsed() >= delay);
    assert_eq!(gate.entered(1), [["a", "b"]]);
}

#[tokio::test]
async fn a_batch_of_preferred_size_leaves_though_it_might_wait_for_an_hour() {
    let gate = Gate::opened();
    let server = batching(
        &gate,
        "dynamic_batching { preferred_batch_size: 3 max_queue_delay_microseconds: 3600000000 }
         instance_group { count: 2 }",
    );
    let answers = ["a", "b", "c"].map(|id| infer(&server, named(id)).unwrap());
    for mut answers in answers {
        answers.single().await.unwrap();
    }
    assert_eq!(gate.entered(1), [["a", "b", "c"]]);
    // The end does not wait either.
    let mut last = infer(&server, named("d")).unwrap();
    server.unload_all();
    last.single().await.unwrap();
}

#[tokio::test]
async fn a_request_past_its_time_is_answered_while_every_instance_is_busy() {
    let gate = Gate::default();
    let server = batching(
        &gate,
        "dynamic_batching { default_queue_policy {
             default_timeout_microseconds: 3600000000 allow_timeout_override: true } }",
    );
    let mut first = infer(&server, named("a")).unwrap();
    gate.entered(1);
    let mut patient = infer(&server, named("patient")).unwrap();
    let hasty = InferRequest { timeout: Some(Duration::from_millis(1)), ..named("hasty") };
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    assert_eq!(code(infer(&server, hasty).unwrap()).await, ErrorCode::Unavailable);
    assert_eq!((model.pending(), model.statistics().snapshot().fail.count), (1, 1));
    gate.open();
    first.single().await.unwrap();
    patient.single().await.unwrap();
    assert_eq!(gate.entered(2), [["a"], ["patient"]]);
}

#[tokio::test]
async fn a_full_queue_refuses_and_goes_on() {
    let gate = Gate::default();
    let server = batching(&gate, "dynamic_batching { default_queue_policy { max_queue_size: 1 } }");
    let mut first = infer(&server, named("a")).unwrap();
    gate.entered(1);
    let gives_up = infer(&server, named("b")).unwrap();
    let refused = infer(&server, named("c")).unwrap();
    assert_eq!(code(refused).await, ErrorCode::Unavailable);
    // A cancelled request makes room.
    drop(gives_up);
    let mut second = infer(&server, named("d")).unwrap();
    gate.open();
    first.single().await.unwrap();
    second.single().await.unwrap();
    assert_eq!(gate.entered(2), [["a"], ["d"]]);
}

#[tokio::test]
async fn urgent_requests_overtake() {
    let gate = Gate::default();
    let server = batching(
        &gate,
        "dynamic_batching { preferred_batch_size: 1 priority_levels: 2 default_priority_level: 2 }",
    );
    let mut answers = vec![infer(&server, named("a")).unwrap()];
    gate.entered(1);
    for (id, priority) in [("b", 0), ("c", 2), ("d", 1)] {
        answers.push(infer(&server, InferRequest { priority, ..named(id) }).unwrap());
    }
    gate.open();
    for mut answers in answers {
        answers.single().await.unwrap();
    }
    assert_eq!(gate.entered(4), [["a"], ["d"], ["b"], ["c"]]);
}

#[tokio::test]
async fn senders_share_the_queue_by_their_weights() {
    let flow = |id, weight| Flow { id, weight: NonZeroU32::new(weight).unwrap() };
    let (many, one, two) = (flow(1, 1), flow(2, 1), flow(3, 2));
    let requests = [many, many, many, many, one, one, two, two, two];
    let named_by = |index: usize| index.to_string();
    for (scheduling, expected) in [
        ("", [1, 5, 7, 8, 2, 6, 9, 3, 4]),
        ("dynamic_batching { preferred_batch_size: 1 }", [1, 5, 7, 8, 2, 6, 9, 3, 4]),
    ] {
        let gate = Gate::default();
        let server = batching(&gate, scheduling);
        let mut answers = vec![infer(&server, named("0")).unwrap()];
        gate.entered(1);
        for (index, flow) in (1..).zip(requests) {
            let admission = Admission { flow, ..Admission::default() };
            let caller = Caller::default().with_admission(Some(admission));
            let model = server.model(ScopedName::everywhere("m"), None).unwrap();
            answers.push(server.infer(&model, named(&named_by(index)), caller).unwrap());
        }
        gate.open();
        for mut answers in answers {
            answers.single().await.unwrap();
        }
        let executed: Vec<_> = gate.entered(10).concat();
        let expected: Vec<_> = [0].into_iter().chain(expected).map(named_by).collect();
        assert_eq!(executed, expected, "{scheduling}");
    }
}

#[tokio::test]
async fn answers_keep_the_order_of_requests_where_configured() {
    let gate = Gate::default();
    let server = batching(
        &gate,
        "dynamic_batching { preferred_batch_size: 1 preserve_ordering: true } instance_group { count: 2 }",
    );
    let mut first = infer(&server, named("a")).unwrap();
    gate.entered(1);
    let mut second = infer(&server, named("b")).unwrap();
    gate.entered(2);
    gate.release("b");
    let statistics = || server.model(ScopedName::everywhere("m"), None).unwrap().statistics().snapshot();
    while statistics().execution_count == 0 {
        tokio::task::yield_now().await;
    }
    // It was executed, and waits for its turn.
    tokio::select! {
        biased;
        _ = second.next() => panic!("the second answer overtook the first"),
        () = tokio::task::yield_now() => {}
    }
    gate.release("a");
    first.single().await.unwrap();
    second.single().await.unwrap();
}

#[tokio::test]
async fn a_cancelled_request_of_a_batch_does_not_harm_the_others() {
    let gate = Gate::default();
    let server = batching(&gate, "dynamic_batching { preferred_batch_size: 4 }");
    let mut first = infer(&server, named("a")).unwrap();
    gate.entered(1);
    let (gone, mut stays) = (infer(&server, named("b")).unwrap(), infer(&server, named("c")).unwrap());
    gate.release("a");
    first.single().await.unwrap();
    assert_eq!(gate.entered(2)[1], ["b", "c"]);
    drop(gone);
    gate.open();
    stays.single().await.unwrap();
}

#[tokio::test]
async fn the_first_batch_waits_for_as_many_requests_as_a_test_wants() {
    let gate = Gate::opened();
    let server = batching_with(
        ServerOptions { hold_batches: 3, ..options() },
        &gate,
        "dynamic_batching { preferred_batch_size: 4 }",
    );
    let answers = ["a", "b", "c"].map(|id| infer(&server, named(id)).unwrap());
    for mut answers in answers {
        answers.single().await.unwrap();
    }
    assert_eq!(gate.entered(1), [["a", "b", "c"]]);
}

#[tokio::test]
async fn the_server_takes_no_more_than_its_limit() {
    let gate = Gate::default();
    let server = batching_with(ServerOptions { max_inflight_requests: 2, ..options() }, &gate, "");
    let mut first = infer(&server, named("a")).unwrap();
    let second = infer(&server, named("b")).unwrap();
    assert_eq!(infer(&server, named("c")).err().unwrap().code(), ErrorCode::Unavailable);
    drop(second);
    let mut third = infer(&server, named("d")).unwrap();
    gate.open();
    first.single().await.unwrap();
    third.single().await.unwrap();
}

/// A batch holds requests with the same first letter only.
struct SameLetter;

struct Letter(Option<u8>);

impl CustomBatching for SameLetter {
    fn begin(&self) -> Box<dyn BatchBuilder> {
        Box::new(Letter(None))
    }
}

impl BatchBuilder for Letter {
    fn include(&mut self, request: &Request) -> bool {
        let letter = request.id.bytes().next();
        let known = self.0.replace(letter.unwrap_or(0));
        known.is_none() || known == letter
    }
}

#[tokio::test]
async fn a_backend_has_a_say_in_what_goes_together() {
    let gate = Gate::default();
    let held = gate.clone();
    let model = ScriptedModel::new(move |batch| {
        held.pass(&batch);
        echo(batch);
    });
    let server = server(
        with_model(model.custom_batching(Arc::new(SameLetter))),
        vec![spec(config_with("dynamic_batching { preferred_batch_size: 4 }"), &[1])],
    );
    let mut answers = vec![infer(&server, named("a1")).unwrap()];
    gate.entered(1);
    answers.extend(["a2", "a3", "b1", "a4"].map(|id| infer(&server, named(id)).unwrap()));
    gate.open();
    for mut answers in answers {
        answers.single().await.unwrap();
    }
    assert_eq!(gate.entered(4), [vec!["a1"], vec!["a2", "a3"], vec!["b1"], vec!["a4"]]);
}

fn limited(count: usize) -> ServerOptions {
    let resources = vec![ResourceLimit { name: "R".into(), count, device: None }];
    ServerOptions { rate_limit: RateLimit::ExecutionCount(resources), ..options() }
}

const NEEDS_R: &str = r#"instance_group { count: 2 rate_limiter { resources { name: "R" count: 2 } } }"#;

#[tokio::test]
async fn instances_that_share_a_resource_execute_one_at_a_time() {
    for scheduling in ["", "dynamic_batching { preferred_batch_size: 1 }"] {
        let gate = Gate::default();
        let server = batching_with(limited(2), &gate, &format!("{scheduling} {NEEDS_R}"));
        let mut answers: Vec<_> = ["a", "b"].map(|id| infer(&server, named(id)).unwrap()).into();
        assert_eq!(gate.entered(1), [["a"]]);
        // Its instance is idle, but the resource is taken.
        assert_eq!(server.model(ScopedName::everywhere("m"), None).unwrap().pending(), 1);
        gate.release("a");
        assert_eq!(gate.entered(2), [["a"], ["b"]]);
        gate.open();
        answers.push(infer(&server, named("c")).unwrap());
        for mut answers in answers {
            answers.single().await.unwrap();
        }
        server.unload_all();
    }
}

#[test]
fn a_model_whose_resources_are_not_there_says_so() {
    let server = server_with(limited(1), scripted(echo), vec![spec(config_with(NEEDS_R), &[1])]);
    let status = server.models().index().next().unwrap();
    let reason = status.state.reason().unwrap();
    assert!(reason.contains("needs 2 of resource 'R', but its limit is 1"), "{reason}");
}

#[tokio::test]
async fn responses_of_a_decoupled_model_are_counted_by_their_place() {
    let config = config_with("model_transaction_policy { decoupled: true }");
    let server = server(
        scripted(|batch: Batch| {
            for request in batch.into_requests() {
                let responder = request.into_responder();
                responder.send(Ok(Response::default()));
                responder.send(Err(Error::internal("the second is an error")));
                responder.finish();
            }
        }),
        vec![spec(config, &[1])],
    );
    let mut answers = infer(&server, request()).unwrap();
    while answers.next().await.is_some() {}
    let responses =
        server.model(ScopedName::everywhere("m"), None).unwrap().statistics().snapshot().responses;
    let counts: Vec<_> = responses
        .iter()
        .map(|it| (it.success.count, it.fail.count, it.empty_response.count, it.compute_infer.count))
        .collect();
    assert_eq!(counts, [(1, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1)]);
}
