//! A server that stops: what it still takes, what it refuses, and when it has nothing left to do.

use nereid_backend_api::{CorrelationId, SequenceFlags};
use nereid_model_config::parse_text;

use super::*;
use crate::scope::ScopedName;
use crate::source::Overrides;

/// A request of sequence 7, or of none.
fn of(flags: Option<(bool, bool)>) -> InferRequest {
    let (correlation_id, sequence) = match flags {
        None => (CorrelationId::None, SequenceFlags::default()),
        Some((start, end)) => (CorrelationId::Number(7), SequenceFlags { start, end }),
    };
    InferRequest { correlation_id, sequence, ..request() }
}

const START: Option<(bool, bool)> = Some((true, false));
const MIDDLE: Option<(bool, bool)> = Some((false, false));
const LAST: Option<(bool, bool)> = Some((false, true));

fn assert_refused<T>(outcome: Result<T>, what: &str) {
    let error = outcome.err().unwrap_or_else(|| panic!("{what} is taken"));
    assert_eq!(error.code(), ErrorCode::Unavailable, "{what}");
    assert!(error.message().contains("Server is stopping"), "{what}: {error}");
}

/// A server of this model `m`, and a model `e` that relays requests to it.
fn serving_with_ensemble(scheduling: &str, script: impl Fn(Batch) + Send + Sync + 'static) -> Arc<Server> {
    let scheduling_choice = parse_text(scheduling).unwrap().scheduling_choice;
    let member = ModelConfig { scheduling_choice, ..config() };
    let steps = r#"ensemble_scheduling { step { model_name: "m" model_version: -1
        input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" } } }"#;
    let mut ensemble = ModelConfig { name: "e".into(), ..config() };
    ensemble.scheduling_choice = parse_text(steps).unwrap().scheduling_choice;
    "ensemble".clone_into(&mut ensemble.platform);
    ensemble.backend.clear();
    (ensemble.output[0].dims, ensemble.output[0].reshape) = (vec![2, 1], None);
    nereid_model_config::normalise(&mut ensemble);
    let ensemble = ModelSpec::new(ModelId::plain("e"), "e", ensemble, [1]);
    let options =
        ServerOptions { model_control: ModelControl::Explicit, executors: relay::relays(), ..options() };
    let models = vec![spec(member, &[1]), ("e".to_owned(), Ok(ensemble))];
    let models: BTreeMap<_, _> = models.into_iter().collect();
    let server = Server::new(options, backends(scripted(script)), Arc::new(models));
    let failed = server.start(Some(vec!["e".to_owned()])).unwrap();
    assert!(failed.is_empty(), "{failed:?}");
    server
}

fn infer_of(server: &Server, model: &str, flags: Option<(bool, bool)>) -> Result<ResponseStream> {
    server.infer(&server.model(ScopedName::everywhere(model), None).unwrap(), of(flags), Caller::default())
}

#[tokio::test]
async fn new_requests_are_refused_and_those_in_progress_are_answered() {
    for scheduling in ["", "dynamic_batching { }", "dynamic_batching { preserve_ordering: true }"] {
        let gate = Gate::default();
        let at_gate = gate.clone();
        let server = serving_with_ensemble(scheduling, move |batch| {
            at_gate.pass(&batch);
            echo(batch);
        });
        assert_eq!(server.work(), Work::Nothing);
        // The ensemble's request to its member may come when the server is stopping already.
        let mut taken: Vec<_> =
            ["m", "e", "m", "e"].map(|model| infer_of(&server, model, None).unwrap()).into();
        gate.entered(1);
        assert_eq!(server.work(), Work::Requests);
        server.begin_shutdown();
        assert!(!server.is_ready());
        for model in ["m", "e"] {
            assert_refused(infer_of(&server, model, None), model);
        }
        assert_refused(
            server.load_model(ScopedName::everywhere("m"), Overrides::default(), |_| ()),
            "a load",
        );
        assert_refused(server.unload_model(ScopedName::everywhere("m"), |_| ()), "an unload");
        assert_eq!(server.work(), Work::Requests);
        gate.open();
        for answers in &mut taken {
            answers.single().await.unwrap();
        }
        assert_eq!(server.work(), Work::Nothing, "{scheduling}");
    }
}

#[tokio::test]
async fn sequences_that_have_begun_go_on_and_new_ones_are_refused() {
    for strategy in ["direct { }", "oldest { max_candidate_sequences: 4 }"] {
        for model in ["m", "e"] {
            let scheduling =
                format!("sequence_batching {{ {strategy} max_sequence_idle_microseconds: 3600000000 }}");
            let server = serving_with_ensemble(&scheduling, echo);
            infer_of(&server, model, START).unwrap().single().await.unwrap();
            assert_eq!(server.work(), Work::Sequences);
            server.begin_shutdown();
            for _ in 0..3 {
                infer_of(&server, model, MIDDLE).unwrap().single().await.unwrap();
                assert_refused(infer_of(&server, model, START), "a start");
                assert_refused(infer_of(&server, model, Some((true, true))), "a sequence of one");
                assert_eq!(server.work(), Work::Sequences);
            }
            infer_of(&server, model, LAST).unwrap().single().await.unwrap();
            while server.work() != Work::Nothing {
                thread::yield_now();
            }
            assert_refused(infer_of(&server, model, MIDDLE), "a sequence that has ended");
        }
    }
}

#[tokio::test]
async fn no_request_is_left_in_progress() {
    let scripts: [Script; 5] = [
        echo,
        |batch| drop(batch),
        |_| panic!("on purpose"),
        |batch| batch.complete([]),
        |batch| batch.fail(Error::unavailable("failed on purpose")),
    ];
    for script in scripts {
        let server = serving_with_ensemble("dynamic_batching { }", script);
        for model in ["m", "e", "m"] {
            let _ = infer_of(&server, model, None).unwrap().single().await;
            drop(infer_of(&server, model, None));
            let wrong = InferRequest { inputs: Vec::new(), ..request() };
            assert!(
                server
                    .infer(
                        &server.model(ScopedName::everywhere(model), None).unwrap(),
                        wrong,
                        Caller::default()
                    )
                    .is_err()
            );
        }
        while server.work() != Work::Nothing {
            thread::yield_now();
        }
    }
}
