//! An answer is stored before the client receives it, and after the instance that gave it is released.

use std::sync::{OnceLock, Weak};
use std::task::{Context, Waker};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use nereid_core::ScopedName;
use nereid_testkit::ScriptedModel;

use super::*;

/// Time limit for an answer while another one is stored.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends the model another request whenever the caller's thread stores an answer, and records whether the answer to that
/// request arrives before the insertion ends.
#[derive(Default)]
struct AskingCache {
    server: OnceLock<Weak<Server>>,
    /// The thread of the caller while it stores no answer.
    caller: Mutex<Option<ThreadId>>,
    answered: Mutex<Vec<bool>>,
}

impl ResponseCache for AskingCache {
    fn scope(&self) -> CacheScope {
        CacheScope::Server
    }

    fn lookup(&self, _: &CacheKey) -> CacheLookup {
        CacheLookup::Ready(None)
    }

    fn insert(&self, _: &CacheKey, _: CacheEntry) {
        let caller = self.caller.lock().unwrap().take_if(|caller| *caller == thread::current().id());
        let Some(caller) = caller else { return };
        let server = self.server.get().and_then(Weak::upgrade).unwrap();
        let model = server.model(ScopedName::everywhere("m"), None).unwrap();
        let mut answers = server.infer(&model, request(b"another"), Caller::default()).unwrap();
        let begin = Instant::now();
        let mut is_answered = false;
        while !is_answered && begin.elapsed() < PATIENCE {
            is_answered = answers.poll_single(&mut Context::from_waker(Waker::noop())).is_ready();
            thread::yield_now();
        }
        self.answered.lock().unwrap().push(is_answered);
        *self.caller.lock().unwrap() = Some(caller);
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
    let mut config = model_config::parse_text(&format!("name: 'm' {TENSORS} {ON}")).unwrap();
    model_config::normalise(&mut config);
    let spec = ModelSpec::new(ModelId::plain("m"), "m", config, [1]);
    let cache = Arc::<AskingCache>::default();
    let options = ServerOptions {
        load_threads: 1,
        interceptors: interceptors(&ResponseCaching::new(Arc::clone(&cache) as _)),
        ..ServerOptions::default()
    };
    let backends = BTreeMap::from([("b".to_owned(), Arc::new(ScriptedBackend::from(model.at_once())) as _)]);
    let server = Server::new(options, backends, Arc::new(BTreeMap::from([("m".to_owned(), Ok(spec))])));
    assert!(server.start(None).unwrap().is_empty());
    cache.server.set(Arc::downgrade(&server)).unwrap();
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    // Small answers and large ones, and errors in between.
    for contents in [vec![1], vec![2; 300], vec![99], vec![3; 3000]] {
        loop {
            threads.lock().unwrap().clear();
            cache.answered.lock().unwrap().clear();
            *cache.caller.lock().unwrap() = Some(thread::current().id());
            let mut answers = server.infer(&model, request(&contents), Caller::default()).unwrap();
            let outcome = block_on(answers.single());
            let is_error = contents == [99];
            assert_eq!(outcome.is_err(), is_error);
            if threads.lock().unwrap().first() == Some(&thread::current().id()) {
                let expected = if is_error { vec![] } else { vec![true] };
                assert_eq!(*cache.answered.lock().unwrap(), expected, "{}", contents.len());
                break;
            }
            // The caller's thread executes once executions were short for a while and the instance is idle.
            thread::yield_now();
        }
    }
}
