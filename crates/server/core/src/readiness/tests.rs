//! Backends that are ready, not ready, slow to answer, or panic.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::mpsc::{Receiver, Sender, channel};

use nereid_backend_api::{ErrorCode, Instance, InstanceContext, ModelCapabilities};

use super::*;

/// Answers with what it is sent.
struct Asked {
    answers: Mutex<Receiver<Result<()>>>,
    questions: AtomicUsize,
}

impl Model for Asked {
    fn create_instance(&self, _: InstanceContext) -> Result<Box<dyn Instance>> {
        Err(Error::unsupported("it is only asked"))
    }

    fn capabilities(&self) -> ModelCapabilities {
        ModelCapabilities { readiness: ReadinessReports::WhenAsked, ..ModelCapabilities::default() }
    }

    fn ready(&self) -> Result<()> {
        self.questions.fetch_add(1, SeqCst);
        self.answers.lock().unwrap().recv().expect("an answer")
    }
}

struct Silent;

impl Model for Silent {
    fn create_instance(&self, _: InstanceContext) -> Result<Box<dyn Instance>> {
        Err(Error::unsupported("it is only asked"))
    }

    fn ready(&self) -> Result<()> {
        Err(Error::internal("nobody asks one that has nothing to tell"))
    }
}

fn readiness_of(timer: &Timer, limit: Duration) -> (Arc<Asked>, Sender<Result<()>>, Arc<Readiness>) {
    let (sender, answers) = channel();
    let model = Arc::new(Asked { answers: Mutex::new(answers), questions: AtomicUsize::new(0) });
    let readiness = Readiness::new(Arc::clone(&model) as _, timer, Events::default(), limit);
    (model, sender, readiness)
}

const NEVER: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn those_who_ask_together_share_one_question_and_each_later_one_asks_anew() {
    let timer = Timer::default();
    let (model, sender, readiness) = readiness_of(&timer, NEVER);
    let (one, other) = (readiness.ask(), readiness.ask());
    sender.send(Err(Error::unavailable("not yet"))).unwrap();
    let answers = (one.await, other.await);
    assert_eq!(answers.0, Err(Error::unavailable("not yet")));
    assert_eq!(answers.0, answers.1);
    assert_eq!(model.questions.load(SeqCst), 1);
    sender.send(Ok(())).unwrap();
    assert_eq!(readiness.ask().await, Ok(()));
    assert_eq!(model.questions.load(SeqCst), 2);
}

#[tokio::test]
async fn a_backend_that_does_not_answer_is_not_ready_until_it_does() {
    let timer = Timer::default();
    let (model, sender, readiness) = readiness_of(&timer, Duration::from_millis(20));
    let error = readiness.ask().await.unwrap_err();
    assert_eq!(error.code(), ErrorCode::Unavailable);
    assert!(error.message().contains("within 20 ms"), "{error}");
    // The next caller waits for the rest of the time only, and starts no second check.
    assert_eq!(readiness.ask().await, Err(error));
    assert_eq!(model.questions.load(SeqCst), 1);
    sender.send(Ok(())).unwrap();
    sender.send(Ok(())).unwrap();
    while readiness.ask().await.is_err() {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_backend_that_panics_is_not_ready() {
    let timer = Timer::default();
    let (_, sender, readiness) = readiness_of(&timer, NEVER);
    drop(sender);
    let error = readiness.ask().await.unwrap_err();
    assert!(error.message().contains("panicked"), "{error}");
}

#[tokio::test]
async fn a_model_that_has_nothing_to_tell_is_not_asked() {
    let readiness = Readiness::new(Arc::new(Silent), &Timer::default(), Events::default(), NEVER);
    assert_eq!(readiness.ask().await, Ok(()));
}
