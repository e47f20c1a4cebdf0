//! Inference requests of several clients to a server.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http_body_util::Full;
use hyper::header::HOST;
use hyper::{Method, Request, StatusCode};
use nereid_terminal::single_line;

use crate::closed_loop::{self, Client};
use crate::connection::Connection;
use crate::search::{Measurement, Slot};
use crate::server::usage;

/// The header with the length of a body's JSON, in front of tensors in binary form.
const JSON_LENGTH: &str = "Inference-Header-Content-Length";

/// Requests that differ only in the contents of their tensors.
#[derive(Debug)]
pub(crate) struct Requests {
    /// The path of the model's inference.
    pub(crate) path: String,
    /// Bodies, each with the length of its JSON.
    pub(crate) bodies: Vec<(Bytes, usize)>,
}

impl Requests {
    fn request(&self, number: usize) -> Result<Request<Full<Bytes>>, String> {
        let (body, length) = &self.bodies[number % self.bodies.len()];
        let request = Request::builder().method(Method::POST).uri(&self.path).header(HOST, "localhost");
        let request = request.header(JSON_LENGTH, *length).body(Full::new(body.clone()));
        request.map_err(|error| error.to_string())
    }
}

/// Measures the answers of a server to requests.
///
/// # Errors
/// A request failed.
pub(crate) async fn load(
    socket: &Path,
    pid: u32,
    requests: &Arc<Requests>,
    clients: usize,
    slot: Slot,
) -> Result<Measurement, String> {
    let mut connected = Vec::with_capacity(clients);
    for number in 0..clients {
        let connection = Connection::open(socket).await?;
        connected.push(HttpClient { connection, number, requests: Arc::clone(requests) });
    }
    closed_loop::measure(connected, slot, || usage(pid)).await
}

/// A client, with its connection.
struct HttpClient {
    connection: Connection,
    number: usize,
    requests: Arc<Requests>,
}

impl Client for HttpClient {
    async fn send(&mut self) -> Result<(), String> {
        self.number += 1;
        let (status, body) = self.connection.send(self.requests.request(self.number)?).await?;
        if status == StatusCode::OK {
            return Ok(());
        }
        let document: Option<serde_json::Value> = serde_json::from_slice(&body).ok();
        let reason = document.as_ref().and_then(|document| document["error"].as_str());
        let reason = reason.map_or_else(|| String::from_utf8_lossy(&body).into_owned(), str::to_owned);
        Err(format!("{status}: {}", single_line(&reason)))
    }
}
