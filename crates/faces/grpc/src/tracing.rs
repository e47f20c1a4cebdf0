//! This face's trace events: when requests arrived, and when their answers were sent.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use http::Response;
use http_body::{Frame, SizeHint};
use nereid_core::backend_api::{RequestTrace, Trace};
use nereid_protocol::trace_parent;
use tonic::body::Body;
use tonic::metadata::MetadataMap;

use crate::Face;
use crate::proto::ModelInferRequest;

/// When the server began to wait for a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ArrivalTime(Instant);

impl ArrivalTime {
    pub(crate) fn now() -> Self {
        Self(Instant::now())
    }
}

/// The trace of a request whose answers are sent.
#[derive(Clone)]
pub(crate) struct CallTrace(Arc<Trace>);

impl CallTrace {
    /// Draws whether a request is traced that was awaited for that long.
    pub(crate) fn draw(
        face: &Face,
        message: &ModelInferRequest,
        metadata: &MetadataMap,
        called: ArrivalTime,
    ) -> Option<Self> {
        let header = |name: &str| metadata.get(name)?.to_str().ok();
        let trace = face.server.trace().draw(&message.model_name, || trace_parent(header))?;
        trace.stamp("GRPC_WAITREAD_START", called.0);
        trace.stamp("GRPC_WAITREAD_END", Instant::now());
        Some(Self(trace))
    }

    /// The trace in the form that a request carries.
    pub(crate) fn request(&self) -> RequestTrace {
        RequestTrace::new(Arc::clone(&self.0))
    }

    /// Records that the answer is ready.
    pub(crate) fn answered(&self) {
        self.0.stamp("INFER_RESPONSE_COMPLETE", Instant::now());
    }

    /// A message is about to be sent.
    pub(crate) fn begin(&self) {
        self.0.stamp("GRPC_SEND_START", Instant::now());
    }

    /// A message was handed to the connection.
    pub(crate) fn end(&self) {
        self.0.stamp("GRPC_SEND_END", Instant::now());
    }
}

/// The response to a call; its trace, if any, records when it was sent.
pub(crate) fn watched(mut response: Response<Body>) -> Response<Body> {
    match response.extensions_mut().remove::<CallTrace>() {
        Some(sending) => response.map(|body| Body::new(TracedBody { body, sending })),
        None => response,
    }
}

struct TracedBody {
    body: Body,
    sending: CallTrace,
}

impl http_body::Body for TracedBody {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for TracedBody {
    fn drop(&mut self) {
        self.sending.end();
    }
}
