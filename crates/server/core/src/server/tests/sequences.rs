//! Sequences through the whole server: unloads, changed instances, clients that leave, backends that fail.

use nereid_backend_api::{CorrelationId, Request, SequenceFlags};

use super::*;
use crate::scope::ScopedName;
use crate::source::{BlockingSource, Overrides};
use nereid_scheduling::rate_limiter::ResourceLimit;

/// A source of one model, whose configuration the test changes.
struct Given(Mutex<ModelConfig>);

impl Given {
    /// Differs with the number of instances.
    fn looks(&self) -> Fingerprint {
        let count = self.0.lock().unwrap().instance_group[0].count;
        Fingerprint { config: count.unsigned_abs().into(), ..Fingerprint::default() }
    }
}

impl BlockingSource for Given {
    fn names(&self) -> Result<Vec<String>> {
        Ok(vec!["m".into()])
    }

    fn read(&self, _: &ModelId, _: &Overrides) -> Result<ModelSpec> {
        let (_, spec) = spec(self.0.lock().unwrap().clone(), &[1]);
        Ok(ModelSpec { fingerprint: self.looks(), ..spec? })
    }

    fn fingerprint_of(&self, _: &ModelId) -> Result<Fingerprint> {
        Ok(self.looks())
    }
}

/// Sequences that may be idle for an hour, in slots of this number of instances.
fn configured(strategy: &str, instances: i32) -> ModelConfig {
    let text = format!("sequence_batching {{ {strategy} max_sequence_idle_microseconds: 3600000000 }}");
    let scheduling = nereid_model_config::parse_text(&text).unwrap().scheduling_choice;
    let group = ModelInstanceGroup { count: instances, ..ModelInstanceGroup::default() };
    ModelConfig { scheduling_choice: scheduling, instance_group: vec![group], max_batch_size: 1, ..config() }
}

fn serving(script: Script, config: ModelConfig, options: ServerOptions) -> (Arc<Server>, Arc<Given>) {
    let source = Arc::new(Given(Mutex::new(config)));
    let options = ServerOptions { model_control: ModelControl::Explicit, ..options };
    let server = Server::new(options, backends(scripted(script)), Arc::<Given>::clone(&source));
    server.start(Some(vec!["m".to_owned()])).unwrap();
    (server, source)
}

fn load(server: &Server) {
    let (done, outcome) = channel();
    server
        .load_model(ScopedName::everywhere("m"), Overrides::default(), move |result| {
            done.send(result).unwrap()
        })
        .unwrap();
    outcome.recv().unwrap().unwrap();
}

fn unload(server: &Server) {
    let (done, outcome) = channel();
    server.unload_model(ScopedName::everywhere("m"), move |result| done.send(result).unwrap()).unwrap();
    outcome.recv().unwrap().unwrap();
}

/// The index once no version is being unloaded.
fn settled(server: &Server) -> Vec<String> {
    loop {
        let index = index(server);
        if index.iter().all(|line| !line.contains("UNLOADING")) {
            return index;
        }
        thread::yield_now();
    }
}

/// A request of a sequence: `7^` begins it, `7$` ends it.
fn of(text: &str) -> InferRequest {
    let number = text.trim_end_matches(['^', '$']).parse().unwrap();
    InferRequest {
        correlation_id: CorrelationId::Number(number),
        sequence: SequenceFlags { start: text.contains('^'), end: text.contains('$') },
        ..request()
    }
}

async fn all(server: &Server, texts: &[&str]) {
    for text in texts {
        ask(server, of(text)).await.unwrap_or_else(|error| panic!("{text}: {error}"));
    }
}

const STRATEGIES: [&str; 2] = ["direct { }", "oldest { max_candidate_sequences: 1 }"];

#[tokio::test]
async fn an_unload_answers_what_waits_and_does_not_wait_for_idle_sequences() {
    for strategy in STRATEGIES {
        let (server, _) = serving(echo, configured(strategy, 1), options());
        all(&server, &["1^", "1"]).await;
        let mut waiting = infer(&server, of("2^")).unwrap();
        let mut behind = infer(&server, of("3^$")).unwrap();
        assert_eq!(server.model(ScopedName::everywhere("m"), None).unwrap().pending(), 2);
        unload(&server);
        waiting.single().await.unwrap();
        behind.single().await.unwrap();
        drop((waiting, behind));
        assert_eq!(settled(&server), ["m/1 UNAVAILABLE: unloaded"]);
    }
}

#[tokio::test]
async fn sequences_go_on_where_they_are_when_instances_are_changed() {
    for strategy in STRATEGIES {
        let (server, source) = serving(echo, configured(strategy, 1), options());
        all(&server, &["1^"]).await;
        for instances in [2, 3] {
            *source.0.lock().unwrap() = configured(strategy, instances);
            load(&server);
            let number = instances.to_string();
            all(&server, &["1", &format!("{number}^"), &number]).await;
        }
        assert_eq!(server.model(ScopedName::everywhere("m"), None).unwrap().pool().len(), 3);
        // The first and the second began before the last change.
        all(&server, &["1", "2", "3", "2$", "1$"]).await;
        for over in ["1", "2", "4"] {
            let error = ask(&server, of(over)).await.unwrap_err();
            assert_eq!(error.code(), ErrorCode::InvalidArg);
        }
        all(&server, &["1^", "3$", "1"]).await;
        unload(&server);
        assert_eq!(settled(&server), ["m/1 UNAVAILABLE: unloaded"]);
    }
}

#[tokio::test]
async fn a_client_that_leaves_ends_its_sequence() {
    for strategy in STRATEGIES {
        let (server, _) = serving(echo, configured(strategy, 1), options());
        all(&server, &["1^"]).await;
        let model = server.model(ScopedName::everywhere("m"), None).unwrap();
        let left = infer(&server, of("2^")).unwrap();
        let mut behind = infer(&server, of("2")).unwrap();
        let mut stays = infer(&server, of("3^$")).unwrap();
        assert_eq!(model.pending(), 3);
        drop(left);
        assert_eq!(behind.single().await.unwrap_err().code(), ErrorCode::Cancelled);
        assert_eq!(model.pending(), 1);
        all(&server, &["1$"]).await;
        stays.single().await.unwrap();
        assert_eq!(ask(&server, of("2")).await.unwrap_err().code(), ErrorCode::InvalidArg);
    }
}

#[tokio::test]
async fn a_backend_that_panics_or_drops_a_request_does_not_hold_up_its_sequence() {
    let scripts: [Script; 2] = [|_| panic!("a backend that panics"), |batch| drop(batch)];
    for (strategy, script) in STRATEGIES.into_iter().flat_map(|it| scripts.map(|script| (it, script))) {
        let (server, _) = serving(script, configured(strategy, 1), options());
        for text in ["1^", "1", "1$", "2^$"] {
            assert_eq!(ask(&server, of(text)).await.unwrap_err().code(), ErrorCode::Internal);
        }
    }
}

#[tokio::test]
async fn a_request_that_is_wrong_is_not_counted_and_one_that_fails_is() {
    let (server, _) =
        serving(|batch| batch.fail(Error::internal("broken")), configured("direct { }", 1), options());
    let counted = || {
        let snapshot = server.model(ScopedName::everywhere("m"), None).unwrap().statistics().snapshot();
        (snapshot.success.count, snapshot.fail.count)
    };
    ask(&server, of("1")).await.unwrap_err();
    ask(&server, InferRequest { correlation_id: CorrelationId::None, ..of("1^") }).await.unwrap_err();
    assert_eq!(counted(), (0, 0));
    ask(&server, of("1^")).await.unwrap_err();
    assert_eq!(counted(), (0, 1));
}

#[tokio::test]
async fn the_rate_limiter_lets_sequences_execute_in_turn() {
    for strategy in STRATEGIES {
        let limiter = r#"instance_group { count: 3 rate_limiter { resources { name: "R" count: 2 } } }"#;
        let groups = nereid_model_config::parse_text(limiter).unwrap().instance_group;
        let config = ModelConfig { instance_group: groups, ..configured(strategy, 1) };
        let resources = vec![ResourceLimit { name: "R".into(), count: 3, device: None }];
        let options = ServerOptions { rate_limit: RateLimit::ExecutionCount(resources), ..options() };
        let (server, _) = serving(echo, config, options);
        let texts = ["1^", "2^", "3^", "4^", "1", "2", "3", "4", "1$", "2$", "3$", "4$"];
        let mut answers: Vec<_> = texts.iter().map(|text| infer(&server, of(text)).unwrap()).collect();
        for (answer, text) in answers.iter_mut().zip(texts) {
            answer.single().await.unwrap_or_else(|error| panic!("{text}: {error}"));
        }
        server.unload_all();
    }
}

#[tokio::test]
async fn a_generation_stops_when_its_client_leaves() {
    for strategy in STRATEGIES {
        // It comes again for ever.
        let script: Script = |batch| batch.into_requests().into_iter().for_each(Request::reschedule);
        let strategy = format!("{strategy} iterative_sequence: true");
        let (server, _) = serving(script, configured(&strategy, 1), options());
        let model = server.model(ScopedName::everywhere("m"), None).unwrap();
        let generation = infer(&server, request()).unwrap();
        let behind = infer(&server, request()).unwrap();
        let (sender, ended) = channel();
        model.when_sequences_end(Box::new(move || sender.send(()).unwrap_or_default()));
        assert!(ended.try_recv().is_err());
        drop((generation, behind));
        ended.recv_timeout(Duration::from_secs(20)).expect(&strategy);
    }
}
