//! The load that a build of the server is trained with: requests of the usual kinds, in usual numbers.
//!
//! What is rare in it is built for size, so every path that should be fast has to be here.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;

use anyhow::{Context as _, Result, anyhow, ensure};

use super::client::{Connection, Request, encoded, encoded_json, get};
use super::grpc::{self, Way};
use super::http::{LARGE, SMALL, check, request};
use super::server::Server;
use crate::project::Project;

/// Connections of a load over HTTP.
const CONNECTIONS: u32 = 8;

/// Requests of each connection.
const SMALL_REQUESTS: u32 = 2_000;
const LARGE_REQUESTS: u32 = 30;

/// Seconds of each load over gRPC.
const GRPC_SECONDS: u32 = 3;

/// Each model returns its input; the settings choose the path between the protocol and the model.
const MODELS: &[(&str, &str)] = &[
    ("identity", ""),
    ("batched", "dynamic_batching { max_queue_delay_microseconds: 100 }"),
    ("cached", "response_cache { enable: true }"),
    (SEQUENCES, "sequence_batching { max_sequence_idle_microseconds: 60000000 }"),
];

/// A model of the examples, on the embedded engine, and how many numbers its input has.
const EXAMPLE: &str = "digits";
const PIXELS: usize = 64;

/// The model whose requests belong to sequences.
const SEQUENCES: &str = "sequences";

/// Requests that other programs send all the time.
const PROBES: &[&str] =
    &["/v2/health/live", "/v2/health/ready", "/v2/models/identity/ready", "/v2/models/identity"];

/// Starts the program, sends the load, and stops the program in order, so that it can write what it counted.
pub fn run(project: &Project, program: &Path, traffic: &Path, folder: &Path) -> Result<()> {
    let repository = write_repository(project, folder)?;
    let server = Server::nereid(program, &repository, &["--cache-config=local,size=16777216".to_owned()])?;
    binary(server.address)?;
    json(server.address)?;
    for probe in PROBES.iter().cycle().take(200) {
        ensure!(get(server.address, probe)?.status == 200, "{probe} is refused");
    }
    for (way, in_flight, elements) in
        [(Way::Unary, 8, SMALL), (Way::Unary, 64, SMALL), (Way::Stream, 8, SMALL), (Way::Unary, 8, LARGE)]
    {
        let bytes = u32::try_from(elements * size_of::<f32>())?;
        grpc::Load::of(traffic, way, in_flight, bytes).run(&server, GRPC_SECONDS)?;
    }
    Ok(())
}

/// Tensors in binary, small ones to each model, and large ones.
fn binary(address: SocketAddr) -> Result<()> {
    for (name, _) in MODELS.iter().filter(|(name, _)| *name != SEQUENCES) {
        let small = encoded(address, &Request { path: path(name), ..request(SMALL) });
        load(address, SMALL_REQUESTS, |_, _| small.clone())?;
    }
    let large = request(LARGE);
    let bytes = encoded(address, &large);
    check(&large, &Connection::open(address)?.exchange(&bytes)?)?;
    load(address, LARGE_REQUESTS, |_, _| bytes.clone())
}

/// Tensors in JSON.
fn json(address: SocketAddr) -> Result<()> {
    let numbers = |count: usize| (0..count).map(|index| format!("{index}.5")).collect::<Vec<_>>().join(",");
    let small = numbers(SMALL);
    let tensor = format!(r#"{{"name":"INPUT0","shape":[1,{SMALL}],"datatype":"FP32","data":[{small}]}}"#);
    let plain = encoded_json(address, &path("identity"), &format!(r#"{{"inputs":[{tensor}]}}"#));
    load(address, SMALL_REQUESTS, |_, _| plain.clone())?;
    let pixels = numbers(PIXELS);
    let image = format!(r#"{{"name":"image","shape":[1,1,8,8],"datatype":"FP32","data":[{pixels}]}}"#);
    let image = encoded_json(address, &path(EXAMPLE), &format!(r#"{{"inputs":[{image}]}}"#));
    load(address, SMALL_REQUESTS / 4, |_, _| image.clone())?;
    // Each connection has a sequence. The server waits at its end for those that have not ended.
    let requests = SMALL_REQUESTS / 4;
    load(address, requests, |connection, number| {
        let (start, end) = (number == 0, number + 1 == requests);
        let parameters =
            format!(r#"{{"sequence_id":{connection},"sequence_start":{start},"sequence_end":{end}}}"#);
        let body = format!(r#"{{"parameters":{parameters},"inputs":[{tensor}]}}"#);
        encoded_json(address, &path(SEQUENCES), &body)
    })
}

fn path(model: &str) -> String {
    format!("/v2/models/{model}/infer")
}

/// Sends requests over several connections at once. Each has to be answered with 200.
fn load(address: SocketAddr, requests: u32, next: impl Fn(u32, u32) -> Vec<u8> + Sync) -> Result<()> {
    let next = &next;
    let send = |connection| {
        let mut open = Connection::open(address)?;
        for number in 0..requests {
            let answer = open.exchange(&next(connection, number))?;
            ensure!(answer.status == 200, "{}{}", answer.head, String::from_utf8_lossy(&answer.body));
        }
        Ok(())
    };
    thread::scope(|scope| {
        let senders: Vec<_> =
            (1..=CONNECTIONS).map(|connection| scope.spawn(move || send(connection))).collect();
        senders.into_iter().try_for_each(|sender| sender.join().map_err(|_| anyhow!("a sender panicked"))?)
    })
}

fn write_repository(project: &Project, folder: &Path) -> Result<PathBuf> {
    let repository = folder.join("models");
    for (name, settings) in MODELS {
        fs::create_dir_all(repository.join(name).join("1"))?;
        let text = super::http::config(name, settings);
        fs::write(repository.join(name).join("config.pbtxt"), text)?;
    }
    let (from, to) = (project.root.join("examples/model_repository").join(EXAMPLE), repository.join(EXAMPLE));
    fs::create_dir_all(to.join("1"))?;
    for file in ["config.pbtxt", "labels.txt", "1/model.onnx"] {
        fs::copy(from.join(file), to.join(file)).with_context(|| format!("cannot copy {EXAMPLE}/{file}"))?;
    }
    Ok(repository)
}
