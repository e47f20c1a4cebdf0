//! Models with members: the server's readiness when these come and go, and the progress of the start.

use std::sync::Condvar;

use super::*;
use crate::scope::ScopedName;

const STEP: &str = r#"input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" }"#;

/// A model that depends on these.
pub(super) fn depending(name: &str, members: &[&str]) -> (String, Result<ModelSpec>) {
    let step = |member: &&str| format!("step {{ model_name: '{member}' model_version: -1 {STEP} }}");
    let steps: String = members.iter().map(step).collect();
    let text = format!("ensemble_scheduling {{ {steps} }}");
    let mut config = ModelConfig { name: name.into(), platform: "ensemble".into(), ..config() };
    config.scheduling_choice = nereid_model_config::parse_text(&text).unwrap().scheduling_choice;
    config.backend.clear();
    (config.output[0].dims, config.output[0].reshape) = (vec![2, 1], None);
    nereid_model_config::normalise(&mut config);
    (name.to_owned(), Ok(ModelSpec::new(ModelId::plain(name), name, config, [1])))
}

/// A model of a backend; only version 1 can be loaded.
pub(super) fn plain(name: &str, version: u64) -> (String, Result<ModelSpec>) {
    let config = ModelConfig { name: name.into(), ..config() };
    (name.to_owned(), Ok(ModelSpec::new(ModelId::plain(name), name, config, [version])))
}

pub(super) fn server_of(backend: ScriptedBackend, models: Vec<(String, Result<ModelSpec>)>) -> Arc<Server> {
    let options =
        ServerOptions { model_control: ModelControl::Explicit, executors: relay::relays(), ..options() };
    let models: BTreeMap<_, _> = models.into_iter().collect();
    Server::new(options, backends(backend), Arc::new(models))
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Load(&'static str),
    Unload(&'static str),
}
use Step::{Load, Unload};

#[test]
fn the_server_is_ready_without_a_model_whose_member_a_client_unloaded() {
    // The models to load at the start, the changes after it, the models that are served in the end, and whether the server is
    // ready. `inner` consists of `a` and `b`, `outer` of `inner` and `b`, `lame` of `a` and `broken`.
    let cases: &[(&[&str], &[Step], &str, bool)] = &[
        (&["outer"], &[], "a b inner outer", true),
        (&["outer"], &[Unload("a")], "b", true),
        (&["outer"], &[Unload("b")], "a", true),
        (&["outer"], &[Unload("inner")], "a b", true),
        (&["outer"], &[Unload("a"), Load("a")], "a b inner outer", true),
        (&["outer"], &[Unload("a"), Unload("b"), Load("a")], "a", true),
        (&["outer"], &[Unload("outer"), Unload("a"), Load("a")], "a b inner", true),
        (&["inner", "broken"], &[Unload("a")], "b", false),
        (&["inner", "broken"], &[Unload("a"), Unload("broken")], "b", true),
        // A model that was never served is still missed.
        (&["lame"], &[], "a", false),
        (&["lame"], &[Unload("broken")], "a", false),
        (&["lame"], &[Unload("lame")], "a", true),
    ];
    for (start, steps, served, is_ready) in cases {
        let models = vec![
            plain("a", 1),
            plain("b", 1),
            plain("broken", 2),
            depending("inner", &["a", "b"]),
            depending("outer", &["inner", "b"]),
            depending("lame", &["a", "broken"]),
        ];
        let server = server_of(scripted(echo), models);
        server.start(Some(start.iter().map(|name| (*name).to_owned()).collect())).unwrap();
        for step in *steps {
            let (done, outcome) = channel();
            let done = move |result: Result<()>| done.send(result).unwrap();
            match step {
                Load(name) => {
                    server.load_model(ScopedName::everywhere(name), Overrides::default(), done).unwrap()
                }
                Unload(name) => server.unload_model(ScopedName::everywhere(name), done).unwrap(),
            }
            outcome.recv().unwrap().unwrap();
        }
        let models = server.models();
        let ready: Vec<_> = models.ready().map(|model| model.name()).collect();
        assert_eq!(
            (ready.join(" "), server.is_ready()),
            ((*served).to_owned(), *is_ready),
            "{start:?} {steps:?}"
        );
    }
}

#[test]
fn the_progress_of_the_start_counts_models_that_wait_and_none_that_are_served() {
    for (members, expected) in [
        (&["fast", "slow"][..], "still loading 'slow'; 1 more are waiting"),
        (&["slow", "fast"], "still loading 'slow'; 1 more are waiting"),
        (&["fast"], "still loading 'slow'"),
    ] {
        let (loading, is_held) = (Arc::new((Mutex::new(0), Condvar::new())), Arc::new(AtomicBool::new(true)));
        let (entered, held) = (Arc::clone(&loading), Arc::clone(&is_held));
        let backend = ScriptedBackend::new(move |context| {
            if context.name == "slow" {
                let mut entered_now = entered.0.lock().unwrap();
                *entered_now += 1;
                entered.1.notify_all();
                let is_held = |_: &mut i32| held.load(AtomicOrdering::Relaxed);
                drop(entered.1.wait_while(entered_now, is_held).unwrap());
            }
            Ok(ScriptedModel::new(echo))
        });
        let server = server_of(backend, vec![plain("fast", 1), plain("slow", 1), depending("both", members)]);
        thread::scope(|scope| {
            let names = ["both", "fast", "slow"].map(str::to_owned).to_vec();
            let starting = scope.spawn(|| server.start(Some(names)));
            drop(loading.1.wait_while(loading.0.lock().unwrap(), |entered| *entered == 0).unwrap());
            let mut seen = String::new();
            for _ in 0..100_000 {
                seen = server.models.progress();
                if seen == expected {
                    break;
                }
                thread::yield_now();
            }
            is_held.store(false, AtomicOrdering::Relaxed);
            drop(loading.0.lock().unwrap());
            loading.1.notify_all();
            assert_eq!(starting.join().unwrap().unwrap(), []);
            assert_eq!(seen, expected);
        });
    }
}
