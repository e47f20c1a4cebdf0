//! The conformance suite of schedulers. Each of them runs it behind a whole server.

use nereid_backend_api::{CorrelationId, SequenceFlags};

use super::*;
use crate::scope::ScopedName;

/// A scheduler, by the configuration that chooses it.
struct Case {
    scheduling: &'static str,
    /// Requests belong to sequences.
    sequences: bool,
    /// Whether the model relays requests to a member, which has the backend.
    relays: bool,
}

const SEQUENCES: Case = Case { scheduling: "", sequences: true, relays: false };

const CASES: [Case; 6] = [
    Case { scheduling: "", sequences: false, relays: false },
    Case { scheduling: "dynamic_batching { preferred_batch_size: 4 }", sequences: false, relays: false },
    Case { scheduling: "dynamic_batching { preserve_ordering: true }", sequences: false, relays: false },
    Case { scheduling: "sequence_batching { direct { } }", ..SEQUENCES },
    Case { scheduling: "sequence_batching { oldest { max_candidate_sequences: 4 } }", ..SEQUENCES },
    Case {
        scheduling: r#"ensemble_scheduling { step { model_name: "member" model_version: -1
            input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } }"#,
        sequences: false,
        relays: true,
    },
];

impl Case {
    /// A server whose model `m` has this scheduler.
    fn serve(&self, backend: ScriptedBackend) -> Arc<Server> {
        let mut models = vec![];
        let mut scheduled = config();
        scheduled.scheduling_choice =
            nereid_model_config::parse_text(self.scheduling).unwrap().scheduling_choice;
        if self.relays {
            let member = ModelConfig { name: "member".into(), ..config() };
            models.push((
                "member".to_owned(),
                Ok(ModelSpec::new(ModelId::plain("member"), "member", member, [1])),
            ));
            "ensemble".clone_into(&mut scheduled.platform);
            scheduled.backend.clear();
            let output = &mut scheduled.output[0];
            (output.dims, output.reshape) = (vec![2, 1], None);
        }
        nereid_model_config::normalise(&mut scheduled);
        models.push(spec(scheduled, &[1]));
        let options = ServerOptions { executors: relay::relays(), ..options() };
        let server = server_with(options, backend, models);
        assert!(server.is_ready(), "{}: {:?}", self.scheduling, index(&server));
        server
    }

    /// A request whose id and contents are its number; a sequence of its own, if it has to be of one.
    fn request(&self, number: u8) -> InferRequest {
        self.request_of(number, number, SequenceFlags { start: true, end: true })
    }

    /// A request that has a place in a sequence, if it has to be of one.
    fn request_of(&self, sequence: u8, number: u8, flags: SequenceFlags) -> InferRequest {
        let input = Tensor::new("IN", DataType::Uint8, [1, 2], vec![number; 2]);
        let mut request = InferRequest { id: number.to_string(), inputs: vec![input], ..request() };
        if self.sequences {
            request.correlation_id = CorrelationId::Number(u64::from(sequence) + 1);
            request.sequence = flags;
        }
        request
    }

    fn send(&self, server: &Server, number: u8) -> ResponseStream {
        infer(server, self.request(number)).unwrap()
    }
}

/// Checks that exactly one answer was sent, and that it answers the request with this number.
async fn assert_answered(case: &Case, number: u8, mut answers: ResponseStream) {
    let response = answers.next().await.expect("an answer").unwrap_or_else(|error| {
        panic!("{}: request {number} failed: {error}", case.scheduling);
    });
    assert_eq!(&*response.outputs[0].contiguous().unwrap(), [number; 2], "{}", case.scheduling);
    assert!(answers.next().await.is_none(), "{}: request {number} was answered twice", case.scheduling);
}

/// The ids of the executed requests, in the order of execution, but for those that only fill a slot.
fn executed(gate: &Gate) -> Vec<String> {
    gate.entered(0).into_iter().flatten().filter(|id| !id.is_empty()).collect()
}

#[test]
fn every_request_is_answered_once_however_many_ask_at_the_same_time() {
    for case in &CASES {
        let server = case.serve(scripted(echo));
        thread::scope(|scope| {
            for client in 0..4 {
                let server = &server;
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
                    let numbers = (0..50).map(|number| client * 50 + number);
                    let sent: Vec<_> = numbers.map(|number| (number, case.send(server, number))).collect();
                    // The last answer is read first: an unread answer delays no other.
                    for (number, answers) in sent.into_iter().rev() {
                        runtime.block_on(assert_answered(case, number, answers));
                    }
                });
            }
        });
        let model = server.model(ScopedName::everywhere("m"), None).unwrap();
        let statistics = model.statistics().snapshot();
        let counts = (statistics.success.count, statistics.fail.count, statistics.cancel.count);
        assert_eq!((counts, model.pending()), ((200, 0, 0), 0), "{}", case.scheduling);
    }
}

#[tokio::test]
async fn a_cancelled_request_is_not_executed_and_harms_no_other() {
    for case in &CASES {
        let gate = Gate::default();
        let server = case.serve(gated(&gate));
        let mut sent = vec![(0, case.send(&server, 0))];
        gate.entered(1);
        sent.extend((1..=6).map(|number| (number, case.send(&server, number))));
        sent.retain(|(number, _)| number % 2 == 0);
        gate.open();
        for (number, answers) in sent {
            assert_answered(case, number, answers).await;
        }
        let mut executed = executed(&gate);
        executed.sort_unstable();
        assert_eq!(executed, ["0", "2", "4", "6"], "{}", case.scheduling);
    }
}

#[tokio::test]
async fn requests_are_executed_in_the_order_in_which_they_came() {
    for case in &CASES {
        let gate = Gate::default();
        let server = case.serve(gated(&gate));
        let send = |number: u8| {
            let flags = SequenceFlags { start: number == 0, end: number == 6 };
            infer(&server, case.request_of(0, number, flags)).unwrap()
        };
        let first = send(0);
        gate.entered(1);
        let others: Vec<_> = (1..=6).map(send).collect();
        gate.open();
        for (number, answers) in (0..).zip([first].into_iter().chain(others)) {
            assert_answered(case, number, answers).await;
        }
        assert_eq!(executed(&gate), ["0", "1", "2", "3", "4", "5", "6"], "{}", case.scheduling);
    }
}

#[tokio::test]
async fn closing_answers_all_that_was_taken_and_refuses_what_comes_later() {
    for case in &CASES {
        let gate = Gate::default();
        let server = case.serve(gated(&gate));
        let model = server.model(ScopedName::everywhere("m"), None).unwrap();
        let mut sent = vec![(0, case.send(&server, 0))];
        gate.entered(1);
        sent.extend((1..=6).map(|number| (number, case.send(&server, number))));
        server.begin_shutdown();
        thread::scope(|scope| {
            scope.spawn(|| server.unload_all());
            gate.open();
        });
        for (number, answers) in sent {
            assert_answered(case, number, answers).await;
        }
        let mut late = model.infer(case.request(9), Caller::default()).unwrap();
        assert_eq!(late.single().await.unwrap_err().code(), ErrorCode::Unavailable, "{}", case.scheduling);
    }
}

#[tokio::test]
async fn a_backend_that_misbehaves_fails_its_requests_and_the_scheduler_goes_on() {
    let scripts: [Script; 4] = [
        |batch| drop(batch),
        |_| panic!("a backend that panics"),
        |batch| batch.complete([]),
        |batch| batch.fail(Error::unavailable("failed on purpose")),
    ];
    for (case, script) in CASES.iter().flat_map(|case| scripts.map(|script| (case, script))) {
        let server = case.serve(scripted(script));
        let mut sent: Vec<_> = (0..6).map(|number| case.send(&server, number)).collect();
        for answers in &mut sent {
            assert!(answers.next().await.expect("an answer").is_err(), "{}", case.scheduling);
            assert!(answers.next().await.is_none(), "{}", case.scheduling);
        }
        let model = server.model(ScopedName::everywhere("m"), None).unwrap();
        assert_eq!(
            (model.statistics().snapshot().fail.count, model.pending()),
            (6, 0),
            "{}",
            case.scheduling
        );
    }
}
