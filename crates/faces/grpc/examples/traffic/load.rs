//! The load: a fixed number of requests in flight; each answer triggers the next request.
//!
//! The client speaks HTTP/2 without a gRPC library, so that it costs little CPU time compared with the server.

use std::error::Error;
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::str::FromStr;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use h2::client::{self, SendRequest};
use h2::{RecvStream, SendStream};
use http::Request;
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::extent::{Extent, Permits};
use crate::proto::model_infer_request::InferInputTensor;
use crate::proto::{ModelInferRequest, ModelInferResponse, ModelStreamInferResponse};

type Failure = Box<dyn Error + Send + Sync>;

/// Flow-control window of a connection and of each of its streams.
const WINDOW: u32 = 16 << 20;

/// The bytes before each message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The kind of request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// One unary call per request.
    Unary,
    /// One bidirectional stream per connection.
    Stream,
    /// One stream per connection to the model `decoupled`, which answers each request a thousand times.
    Decoupled,
}

/// Each byte of the tensors.
const FILLING: u8 = 0x3f;

/// Answers of the decoupled model to a request.
const ANSWERS: usize = 1000;

impl FromStr for Way {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "unary" => Ok(Self::Unary),
            "stream" => Ok(Self::Stream),
            "decoupled" => Ok(Self::Decoupled),
            _ => Err(format!("'{name}' is not unary, stream or decoupled")),
        }
    }
}

/// The load to generate.
pub struct Load {
    pub address: SocketAddr,
    pub way: Way,
    pub connections: usize,
    /// Over all connections.
    pub in_flight: usize,
    pub extent: Extent,
    /// The server's process, if each request waits until it sleeps.
    pub server: Option<u32>,
    /// The size of the tensor.
    pub bytes: usize,
}

/// The results, printed in the format that the measurement parses.
pub struct Seen {
    duration: Duration,
    /// Latency of each answer.
    latencies: Vec<Duration>,
}

impl Load {
    /// Sends until the load is over. Every answer is checked; a wrong one fails the run.
    pub async fn run(&self) -> Result<Seen, Failure> {
        if self.connections == 0 || !self.in_flight.is_multiple_of(self.connections) || self.in_flight == 0 {
            return Err("requests in flight have to be a multiple of the connections".into());
        }
        let (model, answers) = match self.way {
            Way::Unary | Way::Stream => ("identity", 1),
            Way::Decoupled => ("decoupled", ANSWERS),
        };
        let message = message(model, self.bytes);
        let whole = matches!(self.extent, Extent::Requests(_));
        let expected = Expected { model, bytes: self.bytes, answers, whole };
        let start = Instant::now();
        let permits = Permits::new(self.extent, self.server);
        let each = self.in_flight / self.connections;
        let mut senders = JoinSet::new();
        for _ in 0..self.connections {
            let stream = TcpStream::connect(self.address).await?;
            stream.set_nodelay(true)?;
            let (requests, connection) = client::Builder::new()
                .initial_window_size(WINDOW)
                .initial_connection_window_size(WINDOW)
                .handshake::<_, Bytes>(stream)
                .await?;
            tokio::spawn(connection);
            match self.way {
                Way::Unary => {
                    for _ in 0..each {
                        senders.spawn(calls(
                            requests.clone(),
                            self.address,
                            message.clone(),
                            expected,
                            permits.clone(),
                        ));
                    }
                }
                Way::Stream | Way::Decoupled => {
                    let (message, permits) = (message.clone(), permits.clone());
                    senders.spawn(stream_of(requests, self.address, message, expected, each, permits));
                }
            }
        }
        let mut latencies = Vec::new();
        while let Some(sender) = senders.join_next().await {
            latencies.extend(sender??);
        }
        Ok(Seen { duration: start.elapsed(), latencies })
    }
}

impl fmt::Display for Seen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut latencies = self.latencies.clone();
        latencies.sort_unstable();
        let at = |part: f64| {
            let index = (latencies.len() as f64 * part) as usize;
            latencies.get(index).map_or(0, Duration::as_micros)
        };
        write!(
            f,
            "seen requests={} duration_us={} p50_us={} p99_us={} connect=0 read=0 write=0 status=0 timeout=0",
            latencies.len(),
            self.duration.as_micros(),
            at(0.5),
            at(0.99)
        )
    }
}

/// Encodes a request with a tensor of this size.
fn message(model: &str, bytes: usize) -> Bytes {
    let input = InferInputTensor {
        name: "INPUT0".to_owned(),
        datatype: "FP32".to_owned(),
        shape: vec![1, (bytes / 4) as i64],
        ..InferInputTensor::default()
    };
    let request = ModelInferRequest {
        model_name: model.to_owned(),
        inputs: vec![input],
        raw_input_contents: vec![Bytes::from(vec![FILLING; bytes])],
        ..ModelInferRequest::default()
    };
    let mut message = BytesMut::from(&[0][..]);
    message.extend((request.encoded_len() as u32).to_be_bytes());
    message.extend(request.encode_to_vec());
    message.freeze()
}

fn call(address: SocketAddr, name: &str) -> Result<Request<()>, http::Error> {
    Request::post(format!("http://{address}/inference.GRPCInferenceService/{name}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("grpc-accept-encoding", "identity")
        .body(())
}

/// Makes calls one after the other.
async fn calls(
    mut requests: SendRequest<Bytes>,
    address: SocketAddr,
    message: Bytes,
    expected: Expected,
    permits: Permits,
) -> Result<Vec<Duration>, Failure> {
    let mut latencies = Vec::new();
    while permits.take().await? {
        let start = Instant::now();
        requests = requests.ready().await?;
        let (answer, mut body) = requests.send_request(call(address, "ModelInfer")?, false)?;
        send(&mut body, message.clone(), true).await?;
        let mut answers = Answers { body: answer.await?.into_body(), buffer: BytesMut::new() };
        let Some(answer) = answers.next().await? else { return Err(answers.reason().await) };
        let answer = ModelInferResponse::decode(answer)?;
        check(&answer, &expected)?;
        if answers.next().await?.is_some() {
            return Err("a call has two answers".into());
        }
        latencies.push(start.elapsed());
    }
    Ok(latencies)
}

/// How the server answers a request.
#[derive(Clone, Copy)]
struct Expected {
    model: &'static str,
    /// The size of each answer's tensor.
    bytes: usize,
    answers: usize,
    /// Whether the whole tensor is compared. That takes time, so only where none is measured.
    whole: bool,
}

/// A stream with a fixed number of requests in flight.
async fn stream_of(
    requests: SendRequest<Bytes>,
    address: SocketAddr,
    message: Bytes,
    expected: Expected,
    in_flight: usize,
    permits: Permits,
) -> Result<Vec<Duration>, Failure> {
    let mut requests = requests.ready().await?;
    let (answer, mut body) = requests.send_request(call(address, "ModelStreamInfer")?, false)?;
    // A separate task sends: sending waits for flow-control credit, which only reading releases.
    let (credit, mut credits) = tokio::sync::mpsc::channel::<()>(in_flight);
    let mut first = 0;
    while first < in_flight && permits.take().await? {
        credit.send(()).await?;
        first += 1;
    }
    let sender = tokio::spawn(async move {
        while credits.recv().await.is_some() {
            send(&mut body, message.clone(), false).await?;
        }
        body.send_data(Bytes::new(), true)?;
        Ok::<_, Failure>(())
    });
    let mut answers = Answers { body: answer.await?.into_body(), buffer: BytesMut::new() };
    let mut latencies = Vec::new();
    let mut credit = Some(credit);
    let mut last = Instant::now();
    let mut sent: std::collections::VecDeque<Instant> = std::iter::repeat_n(last, first).collect();
    while let Some(begun) = sent.pop_front() {
        for _ in 0..expected.answers {
            let Some(answer) = answers.next().await? else { return Err(answers.reason().await) };
            let answer = ModelStreamInferResponse::decode(answer)?;
            if !answer.error_message.is_empty() {
                return Err(answer.error_message.into());
            }
            check(&answer.infer_response.unwrap_or_default(), &expected)?;
        }
        last = Instant::now();
        latencies.push(last - begun);
        match &credit {
            Some(credit) if permits.take().await? => {
                credit.send(()).await?;
                sent.push_back(last);
            }
            _ => credit = None,
        }
    }
    drop(credit);
    sender.await??;
    Ok(latencies)
}

fn check(answer: &ModelInferResponse, expected: &Expected) -> Result<(), Failure> {
    if answer.model_name != expected.model {
        return Err(
            format!("expected an answer of {}, got one of '{}'", expected.model, answer.model_name).into()
        );
    }
    let [contents] = &answer.raw_output_contents[..] else {
        return Err(format!("expected one tensor back, got {}", answer.raw_output_contents.len()).into());
    };
    let compared = if expected.whole { contents.len() } else { contents.len().min(1) };
    if contents.len() != expected.bytes || contents[..compared].iter().any(|byte| *byte != FILLING) {
        return Err(format!("the tensor came back changed, in {} bytes", contents.len()).into());
    }
    Ok(())
}

/// Sends as far as flow control permits.
async fn send(body: &mut SendStream<Bytes>, mut bytes: Bytes, end: bool) -> Result<(), Failure> {
    while !bytes.is_empty() {
        body.reserve_capacity(bytes.len());
        let room = if body.capacity() > 0 {
            body.capacity()
        } else {
            poll_fn(|context| body.poll_capacity(context)).await.ok_or("the server closed the stream")??
        };
        let piece = bytes.split_to(room.min(bytes.len()));
        let last = bytes.is_empty();
        body.send_data(piece, end && last)?;
    }
    Ok(())
}

/// The messages of an answer.
struct Answers {
    body: RecvStream,
    buffer: BytesMut,
}

impl Answers {
    /// Reads the next message; `None` after the last.
    async fn next(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            if let Some(head) = self.buffer.first_chunk::<PREFIX>() {
                let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                if self.buffer.len() >= PREFIX + length {
                    self.buffer.advance(PREFIX);
                    return Ok(Some(self.buffer.split_to(length).freeze()));
                }
                self.buffer.reserve(PREFIX + length - self.buffer.len());
            }
            match self.body.data().await {
                Some(data) => {
                    let data = data?;
                    self.body.flow_control().release_capacity(data.len())?;
                    self.buffer.extend_from_slice(&data);
                }
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err("an answer ends within a message".into()),
            }
        }
    }

    /// The failure that ended the answer.
    async fn reason(&mut self) -> Failure {
        let trailers = self.body.trailers().await;
        format!("an answer is missing: {trailers:?}").into()
    }
}
