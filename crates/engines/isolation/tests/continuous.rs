//! An engine with continuous batching in a process of its own: requests join those that execute, as far as the engine has room, and
//! leave it one by one.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::task::{Wake, Waker};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nereid_backend_api::{
    Answer, Backend, BackendCapabilities, Batch, InferRequest, InstanceContext, InstanceKind, Intake,
    IntakeSource, Model, Next, Request, ResponseSink,
};
use nereid_isolation::{Isolation, Processes, Settings};
use nereid_testkit::{Executions, Recorder};
use nereid_worker::{Launch, SandboxSettings};

const MODEL: &str = "model_transaction_policy { decoupled: true }
    input [ { name: 'X' data_type: TYPE_INT8 dims: [ 1 ] } ]
    output [ { name: 'COUNTS' data_type: TYPE_UINT64 dims: [ 2 ] } ]";

/// The queue of a model, in place of the server's.
#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    executions: Arc<Executions>,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Batch>,
    held: usize,
    has_ended: bool,
    has_news: bool,
}

impl Queue {
    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state.lock().unwrap();
        change(&mut state);
        state.has_news = true;
        self.changed.notify_all();
    }

    /// Queues a request with this id.
    fn push(self: &Arc<Self>, id: &str) -> Arc<Recorder> {
        let (mut request, recorder) =
            Recorder::request(InferRequest { id: id.to_owned(), ..InferRequest::default() }, 1);
        request.redirect_answers(|next| Arc::new(HeldSink { queue: Arc::clone(self), next }));
        let batch = self.executions.batch(vec![request]);
        self.change(|state| state.waiting.push_back(batch));
        recorder
    }

    fn waiting(&self) -> usize {
        self.state.lock().unwrap().waiting.len()
    }
}

/// Lives as long as its request.
struct HeldSink {
    queue: Arc<Queue>,
    next: Arc<dyn ResponseSink>,
}

impl ResponseSink for HeldSink {
    fn deliver(&self, answer: Option<Answer>, last: bool) {
        self.next.deliver(answer, last);
    }

    fn next(&self) -> Option<&dyn ResponseSink> {
        Some(&*self.next)
    }
}

impl Drop for HeldSink {
    fn drop(&mut self) {
        self.queue.change(|state| state.held -= 1);
    }
}

struct Source(Arc<Queue>);

impl IntakeSource for Source {
    fn try_next(&mut self, fits: &mut dyn FnMut(&Request) -> bool) -> Next {
        let mut state = self.0.state.lock().unwrap();
        state.has_news = false;
        let fits = state.held == 0 || state.waiting.front().is_some_and(|batch| fits(&batch.requests()[0]));
        match if fits { state.waiting.pop_front() } else { None } {
            Some(batch) => {
                state.held += 1;
                Next::Request(batch)
            }
            None if !state.waiting.is_empty() => Next::Full,
            None if state.has_ended => Next::Ended,
            None => Next::Nothing,
        }
    }

    fn wait(&mut self) {
        let waits = |state: &mut State| !state.has_news;
        drop(self.0.changed.wait_while(self.0.state.lock().unwrap(), waits).unwrap());
    }

    fn waker(&self) -> Waker {
        Arc::new(WakeQueue(Arc::clone(&self.0))).into()
    }
}

struct WakeQueue(Arc<Queue>);

impl Wake for WakeQueue {
    fn wake(self: Arc<Self>) {
        self.0.change(|_| ());
    }
}

/// An instance in a process, on a thread of its own, as in the server.
struct Running {
    queue: Arc<Queue>,
    thread: JoinHandle<()>,
    _model: Box<dyn Model>,
}

impl Running {
    fn start() -> Self {
        Self::with_limit(None)
    }

    /// With a limit for each step.
    fn with_limit(limit: Option<Duration>) -> Self {
        let mut program: PathBuf = std::env::current_exe().unwrap();
        program.pop();
        program.pop();
        program.push("examples/continuous_host");
        let launch = Launch { program, ..Launch::default() };
        let settings = Settings { isolation: Some(Isolation::Process), load: None, execute: limit.map(Some) };
        let backend =
            Processes::new(launch, settings, SandboxSettings::default(), BackendCapabilities::default())
                .unwrap();
        let context = nereid_testkit::context("m", nereid_testkit::normalised("m", MODEL));
        let model = backend.load(context).unwrap();
        let mut instance = model.create_instance(InstanceContext::new("m_0", InstanceKind::Cpu)).unwrap();
        assert_eq!(model.engine().as_deref(), Some("counters 7 (tests)"));
        assert!(instance.executes_continuously());
        assert_eq!(instance.capacity(), 2);
        let queue = Arc::<Queue>::default();
        let source = Source(Arc::clone(&queue));
        let thread = thread::spawn(move || instance.run(Intake::new(source)));
        Self { queue, thread, _model: model }
    }

    /// Ends the queue, and waits for the instance.
    fn end(self) {
        self.queue.change(|state| state.has_ended = true);
        self.thread.join().unwrap();
        assert_eq!(self.queue.state.lock().unwrap().held, 0);
    }
}

fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        thread::yield_now();
    }
}

/// The counts and the numbers of requests that the engine held, by response.
fn counts(answers: Vec<Answer>) -> Vec<[u64; 2]> {
    let counts = |answer: Answer| {
        let response = answer.unwrap();
        let contents = response.outputs[0].contiguous().unwrap().into_owned();
        [0, 8].map(|at| u64::from_le_bytes(contents[at..at + 8].try_into().unwrap()))
    };
    answers.into_iter().map(counts).collect()
}

#[test]
fn requests_execute_together_and_get_all_their_responses() {
    let running = Running::start();
    let lengths = [50, 1, 30, 7, 50, 2];
    let recorders = lengths.map(|length| running.queue.push(&length.to_string()));
    for (recorder, length) in recorders.iter().zip(lengths) {
        let found = counts(recorder.answers());
        assert!(found.iter().map(|[count, _]| *count).eq(0..length), "{found:?}");
        assert_eq!(recorder.ends(), 1);
    }
    let executions = running.queue.executions.all();
    assert_eq!(executions.len(), lengths.len());
    // An execution ends with the last response.
    let longest = executions.iter().map(|(_, times)| times.ended - times.started).max().unwrap();
    assert!(longest >= Duration::from_millis(50), "{longest:?}");
    running.end();
}

#[test]
fn requests_beyond_the_capacity_stay_in_the_queue() {
    let running = Running::start();
    let endless = [running.queue.push("forever"), running.queue.push("forever")];
    let waiting = [running.queue.push("1"), running.queue.push("1")];
    eventually("both execute", || endless.iter().all(|recorder| recorder.count() > 10));
    assert_eq!((running.queue.waiting(), waiting[0].count()), (2, 0));
    endless[0].cancel();
    let last = endless[0].answers().pop().unwrap().unwrap_err();
    assert_eq!(last.message(), "the engine saw the cancellation");
    assert_eq!(counts(waiting[0].answers()), [[0, 2]]);
    assert_eq!(counts(waiting[1].answers()), [[0, 2]]);
    endless[1].cancel();
    assert!(endless[1].answers().pop().unwrap().is_err());
    running.end();
}

#[test]
fn end_of_the_process_fails_its_requests_and_no_others() {
    for ending in ["aborts", "panics"] {
        let running = Running::start();
        let endless = running.queue.push("forever");
        eventually("it executes", || endless.count() > 0);
        let ending = running.queue.push(ending);
        let error = endless.answers().pop().unwrap().unwrap_err();
        assert!(error.message().starts_with("the process of model instance 'm_0'"), "{error}");
        assert!(ending.answers().pop().unwrap().is_err());
        assert_eq!(counts(running.queue.push("3").answers()).len(), 3);
        running.end();
    }
}

#[test]
fn instance_without_progress_is_killed_and_starts_again() {
    let limit = Duration::from_secs(2);
    let running = Running::with_limit(Some(limit));
    // Slow requests are no reason: this one has no response for longer than the limit.
    let started = Instant::now();
    assert_eq!(counts(running.queue.push("silent").answers()).len(), 1);
    assert!(started.elapsed() > limit);
    let others = running.queue.push("forever");
    eventually("it executes", || others.count() > 0);
    let hanging = running.queue.push("hangs");
    for recorder in [hanging, others] {
        let error = recorder.answers().pop().unwrap().unwrap_err();
        let expected = "the process of model instance 'm_0' was killed, because it made no progress with its requests in time";
        assert_eq!(error.message(), expected);
    }
    assert_eq!(counts(running.queue.push("3").answers()).len(), 3);
    running.end();
}

#[test]
fn queue_that_ends_is_finished_first() {
    let running = Running::start();
    let recorders = ["20", "20", "20"].map(|id| running.queue.push(id));
    running.end();
    assert!(recorders.iter().all(|recorder| counts(recorder.answers()).len() == 20));
}
