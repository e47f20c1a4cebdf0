//! Streams: requests and responses on one call.

use futures_util::stream::poll_fn;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use super::{Service, convert, proto, status};
use crate::{Code, Error, InferRequest, InferResponse};

/// Requests that may wait to be sent.
const CAPACITY: usize = 4;

type Incoming = Streaming<proto::ModelStreamInferResponse>;

/// The sending half of a stream. On drop, the stream ends once all requests are answered.
#[derive(Clone, Debug)]
pub struct Requests(mpsc::Sender<proto::ModelInferRequest>);

impl Requests {
    /// Sends a request, as soon as there is room for it.
    ///
    /// # Errors
    /// The request is invalid, or the stream has ended.
    pub async fn send(&self, request: InferRequest) -> Result<(), Error> {
        let message = convert::infer_request(request)?;
        self.0.send(message).await.map_err(|_| Error::Lost("the stream has ended".into()))
    }
}

/// The responses of a stream, as they arrive. Dropped early, it cancels the requests.
#[derive(Debug)]
pub struct Responses(State);

#[derive(Debug)]
enum State {
    /// Servers may send the head of their response with the first answer.
    Opening(JoinHandle<Result<Response<Incoming>, Status>>),
    Open(Box<Incoming>),
    Closed,
}

/// Opens a stream.
pub(super) fn open(mut service: Service, metadata: MetadataMap) -> (Requests, Responses) {
    let (sender, mut receiver) = mpsc::channel(CAPACITY);
    let mut request = Request::new(poll_fn(move |context| receiver.poll_recv(context)));
    *request.metadata_mut() = metadata;
    // A task, so that requests are sent before anybody waits for responses.
    let call = tokio::spawn(async move { service.model_stream_infer(request).await });
    (Requests(sender), Responses(State::Opening(call)))
}

impl Responses {
    /// The next response, of any request; `None` at the end.
    ///
    /// # Errors
    /// A request failed, or the stream did. After a request's failure, the stream continues.
    pub async fn next(&mut self) -> Result<Option<InferResponse>, Error> {
        if let State::Opening(call) = &mut self.0 {
            let opened = call.await;
            self.0 = State::Closed;
            let opened = opened.map_err(|error| Error::Lost(error.to_string()))?;
            self.0 = State::Open(Box::new(opened.map_err(status::error)?.into_inner()));
        }
        let State::Open(incoming) = &mut self.0 else { return Ok(None) };
        let message = match incoming.message().await {
            Ok(Some(message)) => message,
            Ok(None) => {
                self.0 = State::Closed;
                return Ok(None);
            }
            Err(error) => {
                self.0 = State::Closed;
                return Err(status::error(error));
            }
        };
        if !message.error_message.is_empty() {
            let (code, message) = (Code::Unknown, message.error_message);
            return Err(Error::Status { code, message, retry_after: None });
        }
        convert::infer_response(message.infer_response.unwrap_or_default(), &[]).map(Some)
    }
}

impl Drop for Responses {
    fn drop(&mut self) {
        if let State::Opening(call) = &self.0 {
            call.abort();
        }
    }
}
