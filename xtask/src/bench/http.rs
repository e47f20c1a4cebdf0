//! Binary inference requests over HTTP: the cost of a request to a model that does nothing.
//!
//! The baseline for small requests, binary and in JSON, is nginx with a fixed answer of the same size, with one worker and with one for
//! each processor; for large ones it is a bare hyper server that echoes the body. Runs alternate between the two, and figures are compared within each pair, so a machine
//! that slows down does not tilt the result.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;

use super::client::{Answer, Request, header, post};
use super::load::Load;
use super::server::{FixedAnswer, Server};
use super::summary::{heading, rows};
use super::{pairs, programs};
use crate::project::{Project, show};

/// A model that returns its input, without its name.
const MODEL: &str = r#"backend: "identity"
max_batch_size: 8
input [ { name: "INPUT0", data_type: TYPE_FP32, dims: [ -1 ] } ]
output [ { name: "OUTPUT0", data_type: TYPE_FP32, dims: [ -1 ] } ]
"#;

/// Elements in the tensor of a small request.
pub(super) const SMALL: usize = 16;

/// Elements in the tensor of a large one: 1 MiB.
pub(super) const LARGE: usize = 1 << 18;

/// Options of the measurement.
#[derive(Args)]
pub struct Options {
    /// Length of each run
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Numbers of connections, each measured on its own
    #[arg(long, value_delimiter = ',', default_value = "8,64", value_parser = clap::value_parser!(u32).range(1..=512))]
    connections: Vec<u32>,
    /// Pairs of runs for each number of connections
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=100))]
    pairs: u32,
    /// Measure this server instead of building one (release profile)
    #[arg(long, value_name = "PATH")]
    binary: Option<PathBuf>,
    /// Additional argument for the server; may be repeated
    #[arg(long, value_name = "ARGUMENT", allow_hyphen_values = true)]
    server_arg: Vec<String>,
}

/// Runs the whole comparison and prints its tables.
pub fn run(project: &Project, options: &Options) -> Result<()> {
    require("wrk", "-v", "wrk")?;
    require("nginx", "-v", "nginx-light")?;
    let binary = programs::nereid(project, options.binary.as_deref())?;
    show(&mut project.cargo(&["build", "--release", "-p", "nereid-kserve", "--example", "echo"]))?;
    let cores = thread::available_parallelism()?.get();
    let folder = tempfile::tempdir()?;
    let repository = write_repository(folder.path())?;
    let nereid = Server::nereid(&binary, &repository, &options.server_arg)?;
    println!("{cores} cores, shared by the server and wrk (1 thread); {} s a run", options.seconds);

    for (kind, small) in [("binary", request(SMALL)), ("JSON", json_request(SMALL))] {
        let answer = checked_answer(nereid.address, &small)?;
        for workers in workers_of(cores) {
            println!("\n{kind}; nginx with {workers} of {cores} workers");
            let (nginx, nginx_answer) = matching_nginx(folder.path(), workers, &small, &answer)?;
            tell(&small, &answer, &nginx, &nginx_answer);
            compare(options, folder.path(), &small, &nereid, &nginx)?;
        }
    }

    let large = request(LARGE);
    let answer = checked_answer(nereid.address, &large)?;
    let echo = Server::http_echo(&project.target.join("release/examples/echo"))?;
    let echo_answer = post(echo.address, &large)?;
    ensure!(echo_answer.body == large.body, "the echo does not send the body back");
    tell(&large, &answer, &echo, &echo_answer);
    compare(options, folder.path(), &large, &nereid, &echo)
}

/// The numbers of nginx's workers to compare with.
fn workers_of(cores: usize) -> Vec<usize> {
    let mut workers = vec![1, cores];
    workers.dedup();
    workers
}

fn tell(request: &Request, nereid: &Answer, yardstick: &Server, other: &Answer) {
    println!(
        "request: {} bytes of body; answer: nereid {} + {} bytes, {} {} + {} bytes (head + body)",
        request.body.len(),
        nereid.head.len(),
        nereid.body.len(),
        yardstick.name,
        other.head.len(),
        other.body.len()
    );
}

/// Measures both servers in turn, and prints a table.
fn compare(
    options: &Options,
    folder: &Path,
    request: &Request,
    nereid: &Server,
    yardstick: &Server,
) -> Result<()> {
    let load = Load::new(folder, request)?;
    println!("{}", heading("connections"));
    for connections in &options.connections {
        let run = |server: &Server, seconds| {
            load.run(server.address, *connections, seconds)
                .with_context(|| format!("over {connections} connections"))
        };
        let pairs = pairs::measure(nereid, yardstick, options.pairs, options.seconds, run)?;
        print!("{}", rows(&connections.to_string(), yardstick.name, &pairs));
    }
    Ok(())
}

/// Fails if the program is not installed, with Debian's package that has it.
pub(super) fn require(program: &str, version_flag: &str, package: &str) -> Result<()> {
    let started =
        Command::new(program).arg(version_flag).stdout(Stdio::null()).stderr(Stdio::null()).status();
    if started.is_err() {
        bail!("{program} is needed for this measurement: apt-get install {package}");
    }
    Ok(())
}

/// A repository with the model that returns its input.
pub(super) fn write_repository(folder: &Path) -> Result<PathBuf> {
    write_repository_with(folder, "")
}

/// Like `write_repository`, with more text in the model's configuration.
pub(super) fn write_repository_with(folder: &Path, more: &str) -> Result<PathBuf> {
    let repository = folder.join("models");
    fs::create_dir_all(repository.join("identity/1"))?;
    fs::write(repository.join("identity/config.pbtxt"), config("identity", more))?;
    Ok(repository)
}

/// The configuration of a model that returns its input, with more text.
pub(super) fn config(name: &str, more: &str) -> String {
    format!("name: \"{name}\"\n{MODEL}{more}")
}

/// A request for one row of `elements` numbers, binary both ways.
pub(super) fn request(elements: usize) -> Request {
    let data: Vec<u8> = (0..elements).flat_map(|index| (index as f32).to_le_bytes()).collect();
    let json = format!(
        r#"{{"inputs":[{{"name":"INPUT0","shape":[1,{elements}],"datatype":"FP32","parameters":{{"binary_data_size":{}}}}}],"outputs":[{{"name":"OUTPUT0","parameters":{{"binary_data":true}}}}]}}"#,
        data.len()
    );
    let header_length = json.len();
    let mut body = json.into_bytes();
    body.extend(data);
    Request { path: "/v2/models/identity/infer".to_owned(), header_length, body }
}

/// A request for one row of `elements` numbers, in JSON both ways.
pub(super) fn json_request(elements: usize) -> Request {
    let data: Vec<_> = (0..elements).map(|index| index as f32).collect();
    let inputs =
        serde_json::json!([{"name": "INPUT0", "shape": [1, elements], "datatype": "FP32", "data": data}]);
    let body = serde_json::json!({"inputs": inputs}).to_string();
    Request { path: "/v2/models/identity/infer".to_owned(), header_length: body.len(), body: body.into() }
}

/// The server's answer, after checking that it has the tensor that was sent.
pub(super) fn checked_answer(address: SocketAddr, request: &Request) -> Result<Answer> {
    let answer = post(address, request)?;
    check(request, &answer)?;
    Ok(answer)
}

/// Checks that an answer of the model has the tensor that was sent.
pub(super) fn check(request: &Request, answer: &Answer) -> Result<()> {
    let text = || format!("{}{}", answer.head, String::from_utf8_lossy(&answer.body));
    ensure!(answer.status == 200, "the server refuses the request: {}", text());
    if request.header_length == request.body.len() {
        let values = |json: &[u8], side| {
            let json: serde_json::Value = serde_json::from_slice(json)?;
            anyhow::Ok(json[side][0]["data"].clone())
        };
        let (sent, returned) = (values(&request.body, "inputs")?, values(&answer.body, "outputs")?);
        ensure!(
            sent.is_array() && sent == returned,
            "the server does not hand back the tensor that was sent: {}",
            text()
        );
        return Ok(());
    }
    let length = header(&answer.head, "inference-header-content-length").and_then(|value| value.parse().ok());
    let (json, output) = length.and_then(|length| answer.body.split_at_checked(length)).unzip();
    let json = String::from_utf8_lossy(json.unwrap_or_default());
    ensure!(json.contains(r#""model_name":"identity""#), "another model answers: {}", text());
    ensure!(
        output == Some(&request.body[request.header_length..]),
        "the server does not hand back the tensor that was sent: {}",
        text()
    );
    Ok(())
}

/// Starts an nginx whose answers have the size of the model's answer, head and body; returns it with its first answer.
///
/// The length of nginx's own headers is known only from an answer, so a second start pads the difference. If they are
/// longer than the model's, the difference remains and is printed.
pub(super) fn matching_nginx(
    folder: &Path,
    cores: usize,
    request: &Request,
    model: &Answer,
) -> Result<(Server, Answer)> {
    let mut fixed = FixedAnswer { body: model.body.len(), headers: Vec::new() };
    if let Some(length) = header(&model.head, "inference-header-content-length") {
        fixed.headers.push(("Inference-Header-Content-Length".to_owned(), length.to_owned()));
    }
    let server = Server::nginx(folder, cores, &fixed)?;
    let answer = post(server.address, request)?;
    let Some(padding) = padding(model.head.len(), answer.head.len()) else { return Ok((server, answer)) };
    drop(server);
    fixed.headers.push(padding);
    let server = Server::nginx(folder, cores, &fixed)?;
    let answer = post(server.address, request)?;
    ensure!(answer.status == 200, "nginx refuses the request: {}", answer.head);
    Ok((server, answer))
}

/// A header that pads the difference, if one is short enough.
fn padding(wanted: usize, found: usize) -> Option<(String, String)> {
    let name = "X-Pad";
    // The colon, the space and the line end take four bytes; a value has at least one.
    let value = wanted.checked_sub(found)?.checked_sub(name.len() + 4)?;
    (value > 0).then(|| (name.to_owned(), "x".repeat(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn request_announces_the_json_length() {
        let request = request(SMALL);
        let (json, data) = request.body.split_at(request.header_length);
        assert!(
            json.starts_with(br#"{"inputs":[{"name":"INPUT0","shape":[1,16],"#) && json.ends_with(b"}]}")
        );
        assert_eq!(data.len(), 64);
        assert_eq!(data[4..8], 1.0_f32.to_le_bytes());
    }

    #[test]
    fn json_request_is_json_alone() {
        let request = json_request(3);
        let json: serde_json::Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(json["inputs"][0]["data"], serde_json::json!([0.0, 1.0, 2.0]));
        assert_eq!(request.header_length, request.body.len());
        let answer = |data: &str| Answer {
            status: 200,
            head: String::new(),
            body: format!(r#"{{"outputs":[{{"data":{data}}}]}}"#).into_bytes(),
        };
        check(&request, &answer("[0.0,1.0,2.0]")).unwrap();
        for wrong in ["[0.0,1.0]", "[0.0,1.0,2.5]", "null", "7"] {
            check(&request, &answer(wrong)).unwrap_err();
        }
    }

    #[test]
    fn every_number_of_workers_is_compared_once() {
        assert_eq!(workers_of(1), [1]);
        assert_eq!(workers_of(8), [1, 8]);
    }

    #[test]
    fn padding_fills_a_head_to_the_byte_or_not_at_all() {
        assert_eq!(padding(110, 100), Some(("X-Pad".to_owned(), "x".to_owned())));
        let (name, value) = padding(200, 150).unwrap();
        assert_eq!(format!("{name}: {value}\r\n").len(), 50);
        assert_eq!(padding(109, 100), None);
        assert_eq!(padding(100, 100), None);
        assert_eq!(padding(90, 100), None);
    }
}
