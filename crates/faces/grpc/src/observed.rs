//! The observable side of calls: logging, and the delay that client tests can configure.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use http::{Request, Response};
use http_body::Body as _;
use http_body_util::BodyExt as _;
use nereid_http2::{Incoming, Service};
use nereid_load_report::TrailerReport;
use nereid_protocol::LoggedRequest;
use tokio::time::sleep;
use tonic::Code;
use tonic::body::Body;
use tonic::codegen::BoxFuture;

use crate::calls::{Calls, PendingAnswer};

/// The calls of a connection. They are answered without a copy of this for each, which would touch counts that all
/// connections share.
pub(crate) struct ObservedCalls {
    pub calls: Calls,
    /// Delay of answers to calls other than inference.
    pub delay: Option<Duration>,
}

impl Service for ObservedCalls {
    type Body = Body;
    type Future = ObservedAnswer;

    fn call(&self, request: Request<Incoming>) -> ObservedAnswer {
        let path = request.uri().path();
        let mut logged = LoggedRequest::begin(self.calls.principal(), || format!("gRPC {path}"));
        let delay = self.delay.filter(|_| !path.ends_with("Infer"));
        let report = self.calls.load_report(&request);
        let answer = self.calls.answer(request, logged.as_deref_mut());
        let answer = match delay {
            None => Answer::Prompt(answer),
            Some(delay) => Answer::Delayed(Box::pin(async move {
                let answer = answer.await;
                sleep(delay).await;
                answer
            })),
        };
        ObservedAnswer { answer, logged, report }
    }
}

/// An answer that is logged once its head is known.
pub(crate) struct ObservedAnswer {
    answer: Answer,
    logged: Option<Box<LoggedRequest>>,
    /// Set if the answer reports the load.
    report: Option<TrailerReport>,
}

enum Answer {
    Prompt(PendingAnswer),
    Delayed(BoxFuture<Response<Body>, Infallible>),
}

impl Future for ObservedAnswer {
    type Output = Response<Body>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let Ok(response) = ready!(match &mut self.answer {
            Answer::Prompt(answer) => Pin::new(answer).poll(context),
            Answer::Delayed(answer) => answer.as_mut().poll(context),
        });
        if let Some(logged) = self.logged.take() {
            logged.answered(code(&response), response.body().size_hint().exact());
        }
        Poll::Ready(match self.report.take() {
            None => response,
            Some(report) => with_trailer(response, report),
        })
    }
}

/// Adds a report of the server's load to the trailers of a response, or to its head if it has no more than that.
fn with_trailer(mut response: Response<Body>, report: TrailerReport) -> Response<Body> {
    if response.headers().contains_key("grpc-status") {
        response.headers_mut().extend(report.trailer());
        return response;
    }
    response.map(|body| {
        Body::new(body.map_frame(move |mut frame| {
            if let Some(trailers) = frame.trailers_mut() {
                trailers.extend(report.trailer());
            }
            frame
        }))
    })
}

/// The code of a response: an error has it in its head; a stream may still fail.
fn code(response: &Response<Body>) -> String {
    let code =
        response.headers().get("grpc-status").map_or(Code::Ok, |code| Code::from_bytes(code.as_bytes()));
    format!("{code:?}")
}
