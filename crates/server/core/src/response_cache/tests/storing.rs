//! When an answer is stored: before its client has it, and after the instance that gave it is free for others.

use std::sync::atomic::AtomicBool;
use std::sync::{OnceLock, Weak};
use std::task::{Context, Waker};
use std::thread::ThreadId;
use std::time::Duration;

use nereid_testkit::ScriptedModel;

use super::*;

/// Asks the model for something else whenever it stores an answer, and notes whether that is answered at once.
#[derive(Default)]
struct AskingCache {
    server: OnceLock<Weak<Server>>,
    asks: AtomicBool,
    answered_at_once: Mutex<Vec<bool>>,
}

impl ResponseCache for AskingCache {
    fn scope(&self) -> CacheScope {
        CacheScope::Server
    }

    fn lookup(&self, _: &CacheKey) -> CacheLookup {
        CacheLookup::Ready(None)
    }

    fn insert(&self, _: &CacheKey, _: CacheEntry) {
        if self.asks.swap(true, Relaxed) {
            return;
        }
        let server = self.server.get().and_then(Weak::upgrade).unwrap();
        let model = server.model("m", None).unwrap();
        model.pool().pretend_cost(Duration::from_micros(1));
        let mut answers = server.infer(&model, request(b"another"), Caller::default()).unwrap();
        let polled = answers.poll_single(&mut Context::from_waker(Waker::noop()));
        self.answered_at_once.lock().unwrap().push(polled.is_ready());
        self.asks.store(false, Relaxed);
    }
}

#[test]
fn an_instance_is_free_while_its_answer_is_stored() {
    let threads = Arc::<Mutex<Vec<ThreadId>>>::default();
    let noted = Arc::clone(&threads);
    let model = ScriptedModel::new(move |batch| {
        noted.lock().unwrap().push(thread::current().id());
        batch.into_requests().into_iter().for_each(|request| answer(request, 1));
    });
    let mut config = nereid_model_config::parse_text(&format!("name: 'm' {TENSORS} {ON}")).unwrap();
    nereid_model_config::normalise(&mut config);
    let spec = ModelSpec::new(ModelId::plain("m"), "m", config, [1]);
    let cache = Arc::<AskingCache>::default();
    let options = ServerOptions {
        load_threads: 1,
        response_cache: Some(ResponseCaching::new(Arc::clone(&cache) as _)),
        ..ServerOptions::default()
    };
    let backends = BTreeMap::from([("b".to_owned(), Arc::new(ScriptedBackend::from(model.at_once())) as _)]);
    let server = Server::new(options, backends, Arc::new(BTreeMap::from([("m".to_owned(), Ok(spec))])));
    assert!(server.start(None).unwrap().is_empty());
    cache.server.set(Arc::downgrade(&server)).unwrap();
    let model = server.model("m", None).unwrap();
    // Small answers and large ones, and errors in between.
    for contents in [vec![1], vec![2; 300], vec![99], vec![3; 3000]] {
        loop {
            threads.lock().unwrap().clear();
            cache.answered_at_once.lock().unwrap().clear();
            model.pool().pretend_cost(Duration::from_micros(1));
            let mut answers = server.infer(&model, request(&contents), Caller::default()).unwrap();
            let outcome = crate::block_on(answers.single());
            let is_error = contents == [99];
            assert_eq!(outcome.is_err(), is_error);
            if threads.lock().unwrap().first() == Some(&thread::current().id()) {
                let expected = if is_error { vec![] } else { vec![true] };
                assert_eq!(*cache.answered_at_once.lock().unwrap(), expected, "{}", contents.len());
                break;
            }
            // The instance is idle as soon as its thread is back from its start or from the last request.
            thread::yield_now();
        }
    }
}
