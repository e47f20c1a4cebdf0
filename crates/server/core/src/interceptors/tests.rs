//! Typical interceptors: a cache that answers and stores, a quota that refuses, a delay.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Waker};
use std::thread;

use nereid_backend_api::{
    Answer, Backend, Batch, DataType, ErrorCode, InferRequest, Instance, InstanceContext, ModelContext,
    Response, SequenceFlags, Tensor,
};
use tokio::sync::Semaphore;

use super::*;
use crate::scope::ScopedName;
use crate::{Canceller, ModelId, ModelSpec, Principal, Server, ServerOptions};
use nereid_statistics::FailureReason;

/// Answers each request with its input, and notes the first byte of each.
#[derive(Clone, Default)]
struct Echo(Arc<Mutex<Vec<u8>>>);

impl Backend for Echo {
    fn load(&self, _: ModelContext) -> Result<Box<dyn nereid_backend_api::Model>> {
        Ok(Box::new(self.clone()))
    }
}

impl nereid_backend_api::Model for Echo {
    fn create_instance(&self, _: InstanceContext) -> Result<Box<dyn Instance>> {
        Ok(Box::new(self.clone()))
    }
}

impl Instance for Echo {
    fn execute(&mut self, batch: Batch) {
        let outcomes: Vec<_> = batch
            .requests()
            .iter()
            .map(|request| {
                let mut output = request.input("X")?.clone();
                self.0.lock().unwrap().push(output.contiguous()?[0]);
                output.name = "Y".into();
                Ok(Response::new(vec![output]))
            })
            .collect();
        batch.complete(outcomes);
    }
}

const TENSORS: &str = "backend: 'echo' input { name: 'X' data_type: TYPE_UINT8 dims: [ 1 ] }
                       output { name: 'Y' data_type: TYPE_UINT8 dims: [ 1 ] }";

fn server(config: &str, interceptors: impl IntoIterator<Item = Arc<dyn Interceptor>>) -> (Arc<Server>, Echo) {
    let mut config = nereid_model_config::parse_text(config).unwrap();
    nereid_model_config::normalise(&mut config);
    let spec = ModelSpec::new(ModelId::plain("m"), "m", config, [1]);
    let echo = Echo::default();
    let backend = Arc::new(echo.clone()) as Arc<dyn Backend>;
    let backends = std::collections::BTreeMap::from([("echo".to_owned(), backend)]);
    let source = std::collections::BTreeMap::from([("m".to_owned(), Ok(spec))]);
    let options = ServerOptions {
        load_threads: 1,
        max_inflight_requests: 20_000,
        interceptors: interceptors.into_iter().collect(),
        ..ServerOptions::default()
    };
    let server = Server::new(options, backends, Arc::new(source));
    let failures = server.start(None).unwrap();
    assert!(failures.is_empty(), "{failures:?}");
    (server, echo)
}

fn request(number: u8) -> InferRequest {
    let input = Tensor::new("X", DataType::Uint8, [1], vec![number]);
    InferRequest { inputs: vec![input], ..InferRequest::default() }
}

fn infer(server: &Server, request: InferRequest) -> ResponseStream {
    server
        .infer(&server.model(ScopedName::everywhere("m"), None).unwrap(), request, Caller::default())
        .unwrap()
}

fn poll(answers: &mut ResponseStream) -> Poll<Result<u8>> {
    let polled = answers.poll_single(&mut Context::from_waker(Waker::noop()));
    polled.map(|answer| answer.map(|response| response.outputs[0].contiguous().unwrap()[0]))
}

async fn answer(mut answers: ResponseStream) -> Result<u8> {
    answers.single().await.map(|response| response.outputs[0].contiguous().unwrap()[0])
}

type Stored = Arc<Mutex<HashMap<u8, Vec<u8>>>>;

/// Stores what backends answer, and answers with what it has, adding 100.
#[derive(Default)]
struct Cache {
    stored: Stored,
    lookups: AtomicUsize,
}

/// Stores the answers of a request when the last one is given.
struct Storing {
    stored: Stored,
    key: u8,
    answers: Mutex<Vec<u8>>,
    client: Arc<dyn nereid_backend_api::ResponseSink>,
}

impl nereid_backend_api::ResponseSink for Storing {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        if let Some(Ok(response)) = &answer {
            self.answers.lock().unwrap().push(response.outputs[0].contiguous().unwrap()[0]);
        }
        if last {
            // Before the last answer leaves: who has it finds it stored.
            let answers = std::mem::take(&mut *self.answers.lock().unwrap());
            self.stored.lock().unwrap().insert(self.key, answers);
        }
        self.client.deliver(answer, last);
    }

    fn next(&self) -> Option<&dyn nereid_backend_api::ResponseSink> {
        Some(&*self.client)
    }
}

impl Interceptor for Cache {
    fn intercept(&self, _: &Arc<Model>, request: &mut Request, _: &Caller) -> Step {
        self.lookups.fetch_add(1, Ordering::Relaxed);
        let key = request.input("X").unwrap().contiguous().unwrap()[0];
        let stored = self.stored.lock().unwrap().get(&key).cloned();
        let Some(answers) = stored else {
            let stored = Arc::clone(&self.stored);
            request.redirect_answers(|client| {
                Arc::new(Storing { stored, key, answers: Mutex::default(), client })
            });
            return Step::Proceed;
        };
        let responder = request.responder();
        for answer in answers {
            let output = Tensor::new("Y", DataType::Uint8, [1], vec![answer + 100]);
            responder.send(Ok(Response::new(vec![output])));
        }
        responder.finish();
        Step::Answered
    }
}

#[tokio::test]
async fn cache_stores_answers_and_answers_repeated_requests_without_execution() {
    let cache = Arc::new(Cache::default());
    let (server, echo) = server(TENSORS, [Arc::clone(&cache) as Arc<dyn Interceptor>]);
    assert_eq!(answer(infer(&server, request(7))).await, Ok(7));
    assert_eq!(answer(infer(&server, request(7))).await, Ok(107));
    assert_eq!((&*echo.0.lock().unwrap(), cache.lookups.load(Ordering::Relaxed)), (&vec![7], 2));
    // What was answered before the queue is a success that was not computed.
    let counted = server.model(ScopedName::everywhere("m"), None).unwrap().statistics().snapshot();
    assert_eq!((counted.success.count, counted.inference_count, counted.execution_count), (2, 1, 1));
    assert_eq!((counted.queue.count, counted.compute_infer.count, counted.fail.count), (2, 1, 0));
}

/// Refuses all but the first requests.
struct Quota(Semaphore);

impl Interceptor for Quota {
    fn intercept(&self, model: &Arc<Model>, request: &mut Request, _: &Caller) -> Step {
        match self.0.try_acquire() {
            Ok(permit) => permit.forget(),
            Err(_) => {
                let name = model.name();
                let used_up = format!("the quota of model '{name}' is used up");
                request.responder().finish_with(Err(Error::unavailable(used_up)));
                return Step::Answered;
            }
        }
        Step::Proceed
    }
}

#[tokio::test]
async fn quota_refuses_a_request_before_later_interceptors_see_it() {
    let cache = Arc::new(Cache::default());
    let quota: Arc<dyn Interceptor> = Arc::new(Quota(Semaphore::new(1)));
    let (server, _) = server(TENSORS, [quota, Arc::clone(&cache) as _]);
    assert_eq!(answer(infer(&server, request(1))).await, Ok(1));
    let refused = answer(infer(&server, request(1))).await.unwrap_err();
    assert_eq!(
        (refused.code(), refused.message()),
        (ErrorCode::Unavailable, "the quota of model 'm' is used up")
    );
    assert_eq!(cache.lookups.load(Ordering::Relaxed), 1);
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    assert_eq!(model.statistics().totals().failures[FailureReason::Rejected as usize], 1);
}

/// Gives each principal a quota of its own; those who are not known share one.
struct QuotaOfPrincipals(Mutex<HashMap<Option<Principal>, usize>>);

impl Interceptor for QuotaOfPrincipals {
    fn intercept(&self, _: &Arc<Model>, request: &mut Request, caller: &Caller) -> Step {
        let mut used = self.0.lock().unwrap();
        let used = used.entry(caller.principal().cloned()).or_default();
        *used += 1;
        if *used > 2 {
            request.responder().finish_with(Err(Error::unavailable("used up")));
            return Step::Answered;
        }
        Step::Proceed
    }
}

#[tokio::test]
async fn quota_applies_to_each_principal() {
    let (server, _) =
        server(TENSORS, [Arc::new(QuotaOfPrincipals(Mutex::default())) as Arc<dyn Interceptor>]);
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    let mut count = HashMap::<_, usize>::new();
    for name in ["a", "b", "", "a", "a", "", "b", "", "b", "c", "a"] {
        let principal = (!name.is_empty()).then(|| Principal::new(name));
        let caller = Caller::default().with_principal(principal);
        let outcome = answer(server.infer(&model, request(1), caller).unwrap()).await;
        let used = count.entry(name).or_default();
        *used += 1;
        assert_eq!(outcome.is_ok(), *used <= 2, "{name}: {outcome:?}");
    }
}

/// Lets a request wait for a permit.
fn wait_for(permits: &Arc<Semaphore>) -> Step {
    let permits = Arc::clone(permits);
    Step::Wait(Box::new(|request| {
        Box::pin(async move {
            permits.acquire().await.ok()?.forget();
            Some(request)
        })
    }))
}

/// Lets requests wait until there are permits, as for a model that is being loaded.
struct Load(Arc<Semaphore>);

impl Load {
    fn pending() -> (Arc<Self>, Arc<Semaphore>) {
        let permits = Arc::new(Semaphore::new(0));
        (Arc::new(Self(Arc::clone(&permits))), permits)
    }
}

impl Interceptor for Load {
    fn intercept(&self, _: &Arc<Model>, _: &mut Request, _: &Caller) -> Step {
        wait_for(&self.0)
    }
}

#[tokio::test]
async fn ten_thousand_delayed_requests_take_no_threads_and_proceed_together() {
    const REQUESTS: usize = 10_000;
    let (load, permits) = Load::pending();
    let cache = Arc::new(Cache::default());
    let (server, echo) = server(TENSORS, [load as Arc<dyn Interceptor>, Arc::clone(&cache) as _]);
    let threads = || std::fs::read_dir("/proc/self/task").unwrap().count();
    let mut answers: Vec<_> = (0..REQUESTS).map(|_| infer(&server, request(1))).collect();
    // Other tests run concurrently on their own threads.
    assert!(threads() < REQUESTS / 10);
    assert!(answers.iter_mut().all(|answers| poll(answers).is_pending()));
    assert_eq!((echo.0.lock().unwrap().len(), cache.lookups.load(Ordering::Relaxed)), (0, 0));
    permits.add_permits(REQUESTS);
    for answers in answers {
        assert!(matches!(answer(answers).await, Ok(1 | 101)));
    }
    // The interceptors behind the wait saw each of them.
    assert_eq!(cache.lookups.load(Ordering::Relaxed), REQUESTS);
    assert_eq!(
        server.model(ScopedName::everywhere("m"), None).unwrap().statistics().snapshot().success.count,
        REQUESTS as u64
    );
}

#[test]
fn caller_that_only_registers_a_waker_is_woken() {
    struct Unpark(thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let (load, permits) = Load::pending();
    let (server, _) = server(TENSORS, [load as Arc<dyn Interceptor>]);
    let mut answers = infer(&server, request(3));
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    assert!(answers.poll_single(&mut context).is_pending());
    thread::scope(|scope| {
        scope.spawn(|| permits.add_permits(1));
        while answers.poll_single(&mut context).is_pending() {
            thread::park();
        }
    });
}

#[test]
fn request_cancelled_while_it_is_delayed_is_not_executed() {
    let (load, permits) = Load::pending();
    let (server, echo) = server(TENSORS, [load as Arc<dyn Interceptor>]);
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    let counted = || model.statistics().snapshot();
    drop(infer(&server, request(1)));
    assert_eq!((counted().cancel.count, counted().fail.count), (1, 1));
    let mut answers = infer(&server, request(2));
    let canceller: Canceller = answers.canceller();
    canceller.cancel();
    canceller.cancel();
    let Poll::Ready(Err(error)) = poll(&mut answers) else { panic!("it is answered at once") };
    assert_eq!(error.code(), ErrorCode::Cancelled);
    drop(answers);
    // Neither took a permit, nor holds the model.
    permits.add_permits(1);
    let mut third = infer(&server, request(3));
    while poll(&mut third).is_pending() {
        thread::yield_now();
    }
    assert_eq!((counted().cancel.count, counted().success.count), (2, 1));
    assert_eq!(*echo.0.lock().unwrap(), [3]);
    let totals = model.statistics().totals();
    assert_eq!(totals.failures[FailureReason::Cancelled as usize], 2);
}

#[test]
fn request_cancelled_after_its_delay_leaves_the_queue() {
    let (load, permits) = Load::pending();
    let batching = format!(
        "{TENSORS} max_batch_size: 4 dynamic_batching {{ max_queue_delay_microseconds: 60000000 \
                            preferred_batch_size: 4 }}"
    );
    let (server, echo) = server(&batching, [load as Arc<dyn Interceptor>]);
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    let mut rows = request(1);
    rows.inputs[0].shape = [1, 1].into();
    let answers = infer(&server, rows);
    permits.add_permits(1);
    assert_eq!(model.pending(), 1);
    drop(answers);
    assert_eq!((model.pending(), model.statistics().snapshot().cancel.count), (0, 1));
    assert_eq!(echo.0.lock().unwrap().len(), 0);
}

#[test]
fn unloading_the_server_answers_delayed_requests() {
    let (load, permits) = Load::pending();
    let (server, echo) = server(TENSORS, [load as Arc<dyn Interceptor>]);
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    let mut answers: Vec<_> = (0..100).map(|_| infer(&server, request(1))).collect();
    server.begin_shutdown();
    assert!(answers.iter_mut().all(|answers| poll(answers).is_pending()));
    server.unload_all();
    let late = model.infer(request(1), Caller::default()).unwrap();
    for mut answers in answers.into_iter().chain([late]) {
        let Poll::Ready(Err(error)) = poll(&mut answers) else { panic!("it is answered") };
        assert_eq!(error.code(), ErrorCode::Unavailable);
        assert!(error.message().contains("'m' is being unloaded"), "{error}");
    }
    permits.add_permits(100);
    assert_eq!(echo.0.lock().unwrap().len(), 0);
    assert_eq!(Arc::strong_count(&model), 1);
}

#[test]
fn request_dropped_by_an_interceptor_is_answered() {
    struct Careless;
    impl Interceptor for Careless {
        fn intercept(&self, _: &Arc<Model>, request: &mut Request, _: &Caller) -> Step {
            match request.input("X").unwrap().contiguous().unwrap()[0] {
                0 => Step::Answered,
                1 => Step::Wait(Box::new(|request| {
                    Box::pin(async {
                        drop(request);
                        None
                    })
                })),
                _ => Step::Wait(Box::new(|request| {
                    Box::pin(async move { panic!("{} on purpose", request.id) })
                })),
            }
        }
    }
    let (server, _) = server(TENSORS, [Arc::new(Careless) as Arc<dyn Interceptor>]);
    for number in 0..3 {
        let Poll::Ready(Err(error)) = poll(&mut infer(&server, request(number))) else {
            panic!("it is answered")
        };
        assert_eq!(error.code(), ErrorCode::Internal);
    }
}

/// Lets the first request wait, and no other.
struct FirstWaits {
    permits: Arc<Semaphore>,
    seen: AtomicUsize,
}

impl Interceptor for FirstWaits {
    fn intercept(&self, _: &Arc<Model>, _: &mut Request, _: &Caller) -> Step {
        if self.seen.fetch_add(1, Ordering::Relaxed) > 0 {
            return Step::Proceed;
        }
        wait_for(&self.permits)
    }
}

#[tokio::test]
async fn requests_of_a_sequence_keep_their_order_and_delay_no_others() {
    let permits = Arc::new(Semaphore::new(0));
    let first_waits = FirstWaits { permits: Arc::clone(&permits), seen: AtomicUsize::new(0) };
    let sequences = format!("{TENSORS} sequence_batching {{ max_sequence_idle_microseconds: 60000000 }}");
    let two = "instance_group { count: 2 }";
    let (server, echo) =
        server(&format!("{sequences} {two}"), [Arc::new(first_waits) as Arc<dyn Interceptor>]);
    let of = |sequence: u64, number: u8, (start, end): (bool, bool)| InferRequest {
        correlation_id: CorrelationId::Number(sequence),
        sequence: SequenceFlags { start, end },
        ..request(number)
    };
    let first = infer(&server, of(1, 10, (true, false)));
    let second = infer(&server, of(1, 11, (false, false)));
    let taken_back = infer(&server, of(1, 12, (false, false)));
    let last = infer(&server, of(1, 13, (false, true)));
    assert_eq!(answer(infer(&server, of(2, 20, (true, true)))).await, Ok(20));
    drop(taken_back);
    permits.add_permits(1);
    for (answers, number) in [(first, 10), (second, 11), (last, 13)] {
        assert_eq!(answer(answers).await, Ok(number));
    }
    assert_eq!(*echo.0.lock().unwrap(), [20, 10, 11, 13]);
}

#[tokio::test]
async fn permits_of_a_caller_are_released_when_the_request_is_over() {
    let (load, permits) = Load::pending();
    let (server, _) = server(TENSORS, [load as Arc<dyn Interceptor>]);
    let bodies = nereid_budgets::Budget::new(100);
    let caller = Caller::default().with_permit(bodies.try_acquire(80).unwrap());
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    let answers = server.infer(&model, request(1), caller).unwrap();
    assert!(bodies.try_acquire(80).is_none());
    permits.add_permits(1);
    assert_eq!(answer(answers).await, Ok(1));
    // The instance's thread may hold it a moment longer.
    while !bodies.is_unused() {
        tokio::task::yield_now().await;
    }
}

/// Records the numbers of the requests that reach the queue.
#[derive(Clone, Default)]
struct ListeningInterceptor(Arc<Mutex<Vec<u8>>>);

struct Listener {
    number: u8,
    heard: ListeningInterceptor,
}

impl QueueListener for Listener {
    fn queued(&self) {
        self.heard.0.lock().unwrap().push(self.number);
    }
}

impl Interceptor for ListeningInterceptor {
    fn intercept(&self, _: &Arc<Model>, request: &mut Request, _: &Caller) -> Step {
        let number = request.input("X").unwrap().contiguous().unwrap()[0];
        Step::Listen(Arc::new(Listener { number, heard: self.clone() }))
    }
}

#[tokio::test]
async fn listener_is_notified_once_for_each_request() {
    for behind_a_wait in [false, true] {
        for behind_the_listener in [false, true] {
            let heard = ListeningInterceptor::default();
            let (load, permits) = Load::pending();
            let quota = Arc::new(Quota(Semaphore::new(2))) as Arc<dyn Interceptor>;
            let listening = Arc::new(heard.clone()) as Arc<dyn Interceptor>;
            let mut passed = vec![listening, quota];
            if behind_a_wait {
                passed.insert(0, Arc::clone(&load) as _);
            }
            if behind_the_listener {
                passed.push(load);
            }
            let (server, echo) = server(TENSORS, passed);
            let answers: Vec<_> = (1..=3).map(|number| infer(&server, request(number))).collect();
            permits.add_permits(100);
            for (answers, number) in answers.into_iter().zip(1..) {
                let expected = if number < 3 { Ok(number) } else { Err(ErrorCode::Unavailable) };
                assert_eq!(answer(answers).await.map_err(|error| error.code()), expected);
            }
            assert_eq!(*heard.0.lock().unwrap(), [1, 2, 3], "{behind_a_wait} {behind_the_listener}");
            assert_eq!(echo.0.lock().unwrap().len(), 2);
        }
    }
}
