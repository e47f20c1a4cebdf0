//! The traces of the requests that a call sends to its model, with stamps of the call's arrival and of its answer.

use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Instant;

use nereid_core::ResponseStream;
use nereid_core::backend_api::{Response, Result, Trace};
use nereid_http::{Call, Reply, reply};

/// The traces of a call. There are several if it asks for several choices; most calls have none.
#[derive(Default)]
pub(crate) struct Traces(Mutex<Vec<Arc<Trace>>>);

impl Traces {
    /// Adds the trace of a request that is about to be sent.
    pub(crate) fn add(&self, trace: &Arc<Trace>, call: &Call<'_>) {
        if let Some((head, body)) = call.arrived {
            trace.stamp("HTTP_RECV_START", head);
            trace.stamp("HTTP_RECV_END", body);
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::clone(trace));
    }

    /// The reply, which stamps the traces when it is sent.
    pub(crate) fn follow(self, reply: Reply) -> Reply {
        let traces = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        if traces.is_empty() {
            return reply;
        }
        stamp(&traces, "HTTP_SEND_START");
        reply::guarded(reply, SendEnd(traces))
    }
}

fn stamp(traces: &[Arc<Trace>], name: &'static str) {
    let now = Instant::now();
    traces.iter().for_each(|trace| trace.stamp(name, now));
}

/// Stamps traces when the reply was handed to the connection or dropped.
struct SendEnd(Vec<Arc<Trace>>);

impl Drop for SendEnd {
    fn drop(&mut self) {
        stamp(&self.0, "HTTP_SEND_END");
    }
}

/// The responses to a request, with a stamp of each on its trace.
pub(crate) struct Answers {
    stream: ResponseStream,
    trace: Option<Arc<Trace>>,
}

impl Answers {
    pub(crate) fn new(stream: ResponseStream, trace: Option<Arc<Trace>>) -> Self {
        Self { stream, trace }
    }

    fn answered(&self) {
        if let Some(trace) = &self.trace {
            trace.stamp("INFER_RESPONSE_COMPLETE", Instant::now());
        }
    }

    /// See [`ResponseStream::poll_next`].
    pub(crate) fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<Response>>> {
        let answer = ready!(self.stream.poll_next(context));
        if answer.is_some() {
            self.answered();
        }
        Poll::Ready(answer)
    }

    /// See [`ResponseStream::next`].
    pub(crate) async fn next(&mut self) -> Option<Result<Response>> {
        let answer = self.stream.next().await;
        if answer.is_some() {
            self.answered();
        }
        answer
    }

    /// See [`ResponseStream::single`].
    pub(crate) async fn single(&mut self) -> Result<Response> {
        let answer = self.stream.single().await;
        self.answered();
        answer
    }
}
