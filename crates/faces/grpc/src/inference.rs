//! The calls ModelInfer and ModelStreamInfer.

use std::convert::Infallible;
use std::sync::Arc;

use bytes::Bytes;
use futures_util::future::FutureExt;
use futures_util::stream::{StreamExt, iter};
use http::request::Parts;
use http::{Extensions, HeaderMap, Request, Response};
use nereid_protocol::Action;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::{BoxFuture, StdError};
use tonic::metadata::MetadataMap;

use crate::codec::{Compressor, Incoming, Outgoing};
use crate::infer::CallContext;
use crate::stream::InferStream;
use crate::{Face, infer, status};

/// Serves an inference call. `counts`: whether its messages still have to be charged to the budget.
pub(crate) fn call<B>(
    face: &Arc<Face>,
    request: Request<B>,
    counts: bool,
) -> BoxFuture<Response<Body>, Infallible>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    let (Parts { uri, headers, extensions, .. }, body) = request.into_parts();
    let face = Arc::clone(face);
    let compressor = Compressor::new(&headers, face.options.compression, face.server.bodies());
    if uri.path().ends_with("/ModelStreamInfer") {
        let requests = Incoming::new(body, face.body_budget(counts).clone());
        let response = stream(face, headers, &extensions, requests, compressor);
        return Box::pin(async move { Ok(response) });
    }
    // Boxed directly: an async block around it would reserve space for the whole call a second time.
    Box::pin(
        single(face, headers, extensions, body, counts, compressor)
            .map(|answer| Ok(answer.unwrap_or_else(Status::into_http))),
    )
}

/// Answers ModelInfer.
async fn single<B>(
    face: Arc<Face>,
    mut headers: HeaderMap,
    extensions: Extensions,
    body: B,
    counts: bool,
    compressor: Option<Compressor>,
) -> Result<Response<Body>, Status>
where
    B: http_body::Body<Data = Bytes> + Unpin,
    B::Error: Into<StdError>,
{
    let mut message = {
        let mut requests = Incoming::new(body, face.body_budget(counts));
        let message = requests.next().await.ok_or_else(|| Status::internal("the call has no message"))??;
        // Its trailers are behind its last message.
        while let Some(further) = requests.next().await {
            further?;
        }
        headers.extend(requests.take_trailers().unwrap_or_default());
        message
    };
    face.permit(&extensions, Action::Infer, Some(&message.model_name))?;
    let call = CallContext::new(&face, MetadataMap::from_headers(headers), &extensions);
    message.admission =
        face.admit(&call.caller, &message, &call.scope).map_err(|denied| status::denied(&denied))?;
    match infer::answer(&face, &call, &mut message).await {
        (Ok(reply), trace) => {
            let mut response = Outgoing::response(iter([Ok(reply)]), compressor);
            if let Some(trace) = trace {
                response.extensions_mut().insert(trace);
            }
            Ok(response)
        }
        (Err(error), trace) => {
            if let Some(trace) = trace {
                trace.end();
            }
            Err(face.region_refusal(&call.caller, &error).unwrap_or_else(|| status::of(&error)))
        }
    }
}

/// Answers ModelStreamInfer.
fn stream<B>(
    face: Arc<Face>,
    headers: HeaderMap,
    extensions: &Extensions,
    requests: Incoming<B>,
    compressor: Option<Compressor>,
) -> Response<Body>
where
    B: http_body::Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    let call = CallContext::new(&face, MetadataMap::from_headers(headers), extensions);
    Outgoing::response(InferStream::new(face, call, requests), compressor)
}
