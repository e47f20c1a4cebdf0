//! The requests that are counted, one at a time, and the checks of their answers.

use std::path::Path;

use anyhow::{Result, ensure};

use super::super::client::{Answer, Connection, encoded, encoded_json};
use super::super::grpc::{self, Way};
use super::super::http::{check, request};
use super::super::processes::wait_for_rest;
use super::super::server::Server;

/// Large requests are sent in pieces of this size, so that the number of reads does not depend on the speed of the client.
const PIECE: usize = 64 << 10;

/// Requests to the model `identity` with one row of numbers.
#[derive(Clone, Copy)]
pub enum Requests {
    /// Tensors in binary, both ways, over one connection.
    HttpBinary { elements: usize },
    /// Tensors in JSON, both ways, over one connection.
    HttpJson { elements: usize },
    /// A connection for each [`Sender::send`].
    Grpc { way: Way, elements: usize },
}

/// Sends requests of one kind.
pub enum Sender<'a> {
    Http { connection: Connection, request: Vec<u8>, answer: Answer, pid: u32 },
    Grpc { load: grpc::Load<'a>, server: &'a Server },
}

impl Requests {
    /// Connects if the requests share a connection, and checks the first answer.
    pub fn prepare<'a>(&self, server: &'a Server, traffic: &'a Path) -> Result<Sender<'a>> {
        let address = server.address;
        match *self {
            Self::HttpBinary { elements } => {
                let request = request(elements);
                let bytes = encoded(address, &request);
                Sender::http(server, bytes, |answer| check(&request, answer))
            }
            Self::HttpJson { elements } => {
                let (body, output) = json(elements);
                let bytes = encoded_json(address, "/v2/models/identity/infer", &body);
                Sender::http(server, bytes, |answer| check_json(answer, &output))
            }
            Self::Grpc { way, elements } => {
                let load =
                    grpc::Load::one_at_a_time(traffic, way, u32::try_from(elements * size_of::<f32>())?);
                Ok(Sender::Grpc { load, server })
            }
        }
    }
}

impl Sender<'_> {
    fn http(server: &Server, request: Vec<u8>, check: impl FnOnce(&Answer) -> Result<()>) -> Result<Self> {
        let mut connection = Connection::open(server.address)?;
        let answer = connection.exchange(&request)?;
        check(&answer)?;
        Ok(Self::Http { connection, request, answer, pid: server.pid() })
    }

    /// Sends this number of requests, each when the server sleeps: otherwise chance decides whether a request wakes it.
    /// Each has to be answered like the first.
    pub fn send(&mut self, count: u32) -> Result<()> {
        match self {
            Self::Http { connection, request, answer, pid } => {
                for _ in 0..count {
                    for piece in request.chunks(PIECE) {
                        wait_for_rest(*pid)?;
                        connection.write(piece)?;
                    }
                    let found = connection.read()?;
                    // The heads differ in their date.
                    let same = (found.status, &found.body) == (answer.status, &answer.body);
                    ensure!(same, "one request has two answers: {} {}", found.head, answer.head);
                }
                Ok(())
            }
            Self::Grpc { load, server } => {
                let answered = load.run_requests(server, count)?.requests;
                ensure!(answered == u64::from(count), "{answered} of {count} requests were answered");
                Ok(())
            }
        }
    }
}

/// A request with these many numbers in JSON, and the part of the answer that has them.
fn json(elements: usize) -> (String, String) {
    let numbers: Vec<_> = (0..elements).map(|index| format!("{index}.5")).collect();
    let data = format!(r#""data":[{}]"#, numbers.join(","));
    let input = format!(r#"{{"name":"INPUT0","shape":[1,{elements}],"datatype":"FP32",{data}}}"#);
    (format!(r#"{{"inputs":[{input}]}}"#), data)
}

fn check_json(answer: &Answer, output: &str) -> Result<()> {
    let text = String::from_utf8_lossy(&answer.body);
    ensure!(answer.status == 200, "the server refuses the request: {}{text}", answer.head);
    for part in [r#""model_name":"identity""#, r#""name":"OUTPUT0""#, output] {
        ensure!(text.contains(part), "the answer has no {part}: {text}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_in_json_has_all_numbers() {
        let (body, output) = json(3);
        let expected =
            r#"{"inputs":[{"name":"INPUT0","shape":[1,3],"datatype":"FP32","data":[0.5,1.5,2.5]}]}"#;
        assert_eq!(body, expected);
        assert_eq!(output, r#""data":[0.5,1.5,2.5]"#);
    }

    #[test]
    fn wrong_answers_in_json_are_refused() {
        let good = r#"{"model_name":"identity","outputs":[{"name":"OUTPUT0","data":[0.5]}]}"#;
        let answer = |status, body: &str| Answer { status, head: String::new(), body: body.into() };
        check_json(&answer(200, good), r#""data":[0.5]"#).unwrap();
        for (status, body) in [
            (400, good.to_owned()),
            (200, good.replace("identity", "other")),
            (200, good.replace("0.5", "0.25")),
            (200, good.replace("OUTPUT0", "OUTPUT1")),
        ] {
            assert!(check_json(&answer(status, &body), r#""data":[0.5]"#).is_err(), "{status} {body}");
        }
    }
}
