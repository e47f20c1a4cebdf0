//! Serves the side channel of a process: its messages, and the server's replies.

use std::cell::RefCell;
use std::collections::HashMap;
use std::future::poll_fn;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use bytes::Bytes;
use nereid_backend_api::{
    Answer, Canceller, Error, ErrorCode, InnerRequest, Overrides, Peers, Pending, Request, Responder,
    Response, Result,
};
use nereid_worker_protocol::side::{self, Reply};
use nereid_worker_protocol::tensor::Failure;
use nereid_worker_protocol::{Incoming, Malformed, Message, Reader, Sender};

use crate::convert;
use crate::label::Label;
use crate::metrics::Metrics;
use crate::mirror::Mirror;
use crate::requests::Requests;
use crate::wake::Tasks;

/// While more bytes than this wait for a process to read them, its inner requests get no further answers.
const MAX_BACKLOG: usize = 1 << 20;

/// Prefix of the path of a file in a load, as in load requests of clients.
const FILE: &str = "file:";

/// Serves one process. Everything happens on one thread.
pub(crate) struct Service {
    name: Label,
    requests: Arc<Requests>,
    peers: Arc<dyn Peers>,
    answers: Answers,
    metrics: Metrics,
    mirror: Mirror,
    /// Messages handled so far.
    handled: u64,
}

/// Where answers go.
#[derive(Clone)]
struct Answers {
    sender: Rc<RefCell<Sender>>,
    /// Inner requests in progress, by their numbers.
    inner: Rc<RefCell<HashMap<u64, Inner>>>,
    /// Inner requests whose answers the process does not read.
    waiting: Rc<RefCell<Vec<Waker>>>,
}

/// How far an inner request is.
enum Inner {
    /// Waiting for the model to be found, or loaded.
    Resolving(Waker),
    /// Cancelled while it waited.
    Cancelled,
    /// Queued at the model.
    Sent(Canceller),
}

impl Service {
    pub(crate) fn new(
        name: Label,
        requests: Arc<Requests>,
        peers: Arc<dyn Peers>,
        mut sender: Sender,
        tasks: &mut Tasks,
    ) -> Self {
        // Neither end may wait for the other to read: both would.
        sender.keep_backlog();
        let sender = Rc::new(RefCell::new(sender));
        let answers = Answers { sender, inner: Rc::default(), waiting: Rc::default() };
        tasks.spawn(report_cancellations(Arc::clone(&requests), answers.clone()));
        Self {
            name,
            requests,
            peers,
            answers,
            metrics: Metrics::default(),
            mirror: Mirror::default(),
            handled: 0,
        }
    }

    /// Sends of what waits what the process takes now. Whether anything is left.
    pub(crate) fn flush(&self) -> bool {
        let mut sender = self.answers.sender.borrow_mut();
        // The end of a process is handled elsewhere.
        let _ = sender.flush();
        let left = sender.backlog();
        drop(sender);
        if left < MAX_BACKLOG {
            std::mem::take(&mut *self.answers.waiting.borrow_mut()).into_iter().for_each(Waker::wake);
        }
        left > 0
    }

    /// Handles a message.
    ///
    /// # Errors
    /// The message is malformed.
    pub(crate) fn handle(&mut self, incoming: &Incoming, tasks: &mut Tasks) -> Result<(), Malformed> {
        let mut reader = incoming.reader();
        let reader = &mut reader;
        match incoming.kind() {
            side::RESPOND => self.respond(reader)?,
            // If it has no final response, it gets an error.
            side::RELEASE => drop(self.requests.take(reader.u64()?)),
            side::IS_CANCELLED => {
                let (number, handle) = (reader.u64()?, reader.u64()?);
                let request = self.requests.get(handle);
                let cancelled = request.is_some_and(|request| request.responder().is_cancelled());
                self.answers.last(number, |answer| answer.bool_reply(cancelled));
            }
            side::INFER => self.infer(reader, tasks)?,
            side::CANCEL => self.answers.cancel(reader.u64()?),
            side::LOAD => self.load(reader, tasks)?,
            side::UNLOAD => {
                let (number, model, dependents) = (reader.u64()?, reader.text()?, reader.bool()?);
                self.answers.spawn_done(tasks, number, self.peers.unload(model, dependents));
            }
            side::MODEL_READY => {
                let (number, model, version) = (reader.u64()?, reader.text()?, reader.i64()?);
                let ready = self.peers.model_ready(model, u64::try_from(version).ok());
                let answers = self.answers.clone();
                tasks.spawn(async move {
                    let ready = ready.await.is_ok();
                    answers.last(number, |answer| answer.bool_reply(ready));
                });
            }
            side::NEW_FAMILY => {
                let number = reader.u64()?;
                let made = self.metrics.family(&*self.peers, reader)?;
                self.answers.outcome(number, made, |answer, handle| answer.handle_reply(handle));
            }
            side::NEW_METRIC => {
                let number = reader.u64()?;
                let made = self.metrics.metric(reader)?;
                self.answers.outcome(number, made, |answer, handle| answer.handle_reply(handle));
            }
            side::METRIC => {
                let number = reader.u64()?;
                let outcome = self.metrics.operate(reader)?;
                self.answers.outcome(number, outcome, |answer, value| match value {
                    Some(value) => answer.number_reply(value),
                    None => answer.done_reply(),
                });
            }
            side::PROGRESS => self.requests.advance_instance(),
            side::METRICS => self.mirror.update(&*self.peers, reader)?,
            side::DROP_METRIC => self.metrics.drop(reader.u64()?),
            side::LOG => {
                let (level, text) = (reader.u8()?, reader.text()?);
                match level {
                    0 => tracing::info!("{text}"),
                    1 => tracing::warn!("{text}"),
                    2 => tracing::error!("{text}"),
                    _ => tracing::debug!("{text}"),
                }
            }
            _ => return Err(Malformed("unknown kind of message")),
        }
        reader.end()?;
        self.handled += 1;
        self.requests.advance(self.handled);
        Ok(())
    }

    fn respond(&self, reader: &mut Reader<'_>) -> Result<(), Malformed> {
        let (handle, last) = (reader.u64()?, reader.bool()?);
        let reply = reader.reply()?;
        self.requests.advance_instance();
        // The turn of one that was held is dropped after the answer.
        let (request, held) = if last {
            let held = self.requests.take(handle);
            (held.as_ref().map(|held| Arc::clone(&held.request)), held)
        } else {
            (self.requests.get(handle), None)
        };
        let outputs = self.requests.outputs();
        let wants =
            |output: &str| request.as_ref().is_some_and(|request| convert::wants(request, outputs, output));
        let answer = match reply {
            Reply::Nothing => None,
            Reply::Response(response) => Some(convert::response(response, wants)),
            Reply::Failure(failure) => Some(Err(convert::error(failure))),
            _ => return Err(Malformed("a request is answered with something else than a response")),
        };
        // The request may have ended by itself: its process has no way to know.
        let Some(request) = &request else { return Ok(()) };
        if let Some(held) = &held {
            held.complete_execution(matches!(answer, Some(Err(_))));
        }
        deliver(request.responder(), answer, last);
        Ok(())
    }

    fn infer(&self, reader: &mut Reader<'_>, tasks: &mut Tasks) -> Result<(), Malformed> {
        let (number, parent) = (reader.u64()?, reader.u64()?);
        let (model, version, decoupled) = (reader.text()?.to_owned(), reader.i64()?, reader.bool()?);
        let (request, inputs) = reader.request()?;
        let request = convert::inner_request(request, inputs);
        let parent = self.requests.get(parent);
        let resolved = self.peers.resolve(&model, u64::try_from(version).ok());
        let answers = self.answers.clone();
        if answers.inner.borrow_mut().insert(number, Inner::Resolving(Waker::noop().clone())).is_some() {
            return Err(Malformed("the number of an inner request is in use"));
        }
        tasks.spawn(async move {
            let outcome = answers.infer(number, resolved, request, parent, decoupled).await;
            answers.inner.borrow_mut().remove(&number);
            match outcome {
                Ok(AnswersEnd::WithAnswer) => {}
                Ok(AnswersEnd::After) => answers.last(number, |answer| answer.nothing_reply()),
                Err(error) => answers.last(number, |answer| answer.failure_reply(inner_failure(&error))),
            }
        });
        Ok(())
    }

    fn load(&self, reader: &mut Reader<'_>, tasks: &mut Tasks) -> Result<(), Malformed> {
        let (number, model) = (reader.u64()?, reader.text()?);
        let config = reader.optional_text()?.map(str::to_owned);
        let files = (0..reader.count(8)?)
            .map(|_| {
                let name = reader.text()?;
                let path = PathBuf::from(name.strip_prefix(FILE).unwrap_or(name));
                Ok((path, Bytes::copy_from_slice(reader.bytes()?)))
            })
            .collect::<Result<_, Malformed>>()?;
        self.answers.spawn_done(tasks, number, self.peers.load(model, Overrides { config, files }));
        Ok(())
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let inner = std::mem::take(&mut *self.answers.inner.borrow_mut());
        if !inner.is_empty() {
            tracing::debug!("{}: {} inner requests are cancelled", self.name, inner.len());
        }
    }
}

/// Reports cancelled requests to a process that executes continuously.
async fn report_cancellations(requests: Arc<Requests>, answers: Answers) {
    poll_fn(|context| {
        for handle in requests.poll_cancelled(context) {
            answers.send(side::CANCELLED, |message| {
                message.u64(handle);
                Ok(())
            });
        }
        Poll::<()>::Pending
    })
    .await;
}

/// Passes an answer on.
pub(crate) fn deliver(responder: &Responder, answer: Option<Answer>, last: bool) {
    match (answer, last) {
        (Some(answer), true) => responder.finish_with(answer),
        (Some(answer), false) => responder.send(answer),
        (None, true) => responder.finish(),
        (None, false) => {}
    }
}

impl Answers {
    /// Sends a message. The end of the process is handled elsewhere.
    fn send(&self, kind: u16, write: impl FnOnce(&mut Message<'_>) -> Result<()>) -> bool {
        let mut sender = self.sender.borrow_mut();
        let mut message = sender.message(kind);
        write(&mut message).is_ok() && message.send().is_ok()
    }

    fn answer(
        &self,
        number: u64,
        last: bool,
        write: impl FnOnce(&mut Message<'_>) -> Result<()>,
    ) -> Result<()> {
        let mut failed = Ok(());
        self.send(side::ANSWER, |message| {
            message.u64(number);
            message.bool(last);
            failed = write(message);
            failed.clone()
        });
        failed
    }

    fn last(&self, number: u64, write: impl FnOnce(&mut Message<'_>)) {
        let _ = self.answer(number, true, |message| {
            write(message);
            Ok(())
        });
    }

    fn outcome<T>(&self, number: u64, outcome: Result<T>, write: impl FnOnce(&mut Message<'_>, T)) {
        self.last(number, |answer| match outcome {
            Ok(value) => write(answer, value),
            Err(error) => answer.failure_reply(convert::failure(&error)),
        });
    }

    fn spawn_done(&self, tasks: &mut Tasks, number: u64, outcome: Pending<Result<()>>) {
        let answers = self.clone();
        tasks.spawn(async move {
            let outcome = outcome.await;
            answers.outcome(number, outcome, |answer, ()| answer.done_reply());
        });
    }

    /// Makes an inner request, and sends its answers.
    async fn infer(
        &self,
        number: u64,
        resolved: Pending<Result<Arc<dyn nereid_backend_api::PeerModel>>>,
        request: Result<nereid_backend_api::InferRequest>,
        parent: Option<Arc<Request>>,
        decoupled: bool,
    ) -> Result<AnswersEnd> {
        let request = request?;
        let model = self.unless_cancelled(number, resolved).await?;
        if model.is_decoupled() && !decoupled {
            return Err(Error::unsupported(format!(
                "model '{}' is decoupled: an inner request to it needs decoupled=True",
                model.name()
            )));
        }
        let inner = match parent {
            Some(parent) => InnerRequest::of(&parent, request),
            None => InnerRequest::new(request),
        };
        let mut responses = model.infer(inner)?;
        drop(model);
        self.inner.borrow_mut().insert(number, Inner::Sent(responses.canceller()));
        while let Some(answer) = responses.next().await {
            let last = responses.ended_with_answer();
            match answer {
                Ok(response) => self.answer(number, last, |message| put_response(message, &response))?,
                Err(error) => self.answer(number, last, |message| {
                    message.failure_reply(inner_failure(&error));
                    Ok(())
                })?,
            }
            if last {
                return Ok(AnswersEnd::WithAnswer);
            }
            self.room().await;
        }
        Ok(AnswersEnd::After)
    }

    /// Waits for the model of an inner request, unless the request is cancelled first.
    async fn unless_cancelled<T>(&self, number: u64, mut resolved: Pending<Result<T>>) -> Result<T> {
        poll_fn(|context| {
            if let Some(Inner::Cancelled) = self.inner.borrow().get(&number) {
                return Poll::Ready(Err(Error::cancelled("the request was cancelled before it was queued")));
            }
            let polled = resolved.as_mut().poll(context);
            if polled.is_pending() {
                self.inner.borrow_mut().insert(number, Inner::Resolving(context.waker().clone()));
            }
            polled
        })
        .await
    }

    /// Cancels an inner request, unless it is over.
    fn cancel(&self, number: u64) {
        let canceller = match self.inner.borrow_mut().get_mut(&number) {
            None | Some(Inner::Cancelled) => return,
            Some(Inner::Sent(canceller)) => Arc::clone(canceller),
            Some(resolving) => {
                if let Inner::Resolving(waker) = std::mem::replace(resolving, Inner::Cancelled) {
                    waker.wake();
                }
                return;
            }
        };
        canceller();
    }

    /// Waits while the process reads no answers.
    async fn room(&self) {
        poll_fn(|context| {
            if self.sender.borrow().backlog() < MAX_BACKLOG {
                return Poll::Ready(());
            }
            self.waiting.borrow_mut().push(context.waker().clone());
            Poll::Pending
        })
        .await;
    }
}

/// How the answers to an inner request ended.
enum AnswersEnd {
    /// The last answer was marked as such.
    WithAnswer,
    /// A separate message follows the last answer.
    After,
}

/// The error of an inner request. Models see two codes: internal errors and cancellations.
fn inner_failure(error: &Error) -> Failure<'_> {
    let code = match error.code() {
        ErrorCode::Cancelled => ErrorCode::Cancelled,
        _ => ErrorCode::Internal,
    };
    Failure { code: code as u8, message: error.message() }
}

fn put_response(message: &mut Message<'_>, response: &Response) -> Result<()> {
    message.response_reply(convert::values(&response.parameters));
    message.count(response.outputs.len());
    response.outputs.iter().try_for_each(|output| convert::put_tensor(message, output))
}

#[cfg(test)]
mod tests;
