//! Two servers in one process: each has its own models and addresses, and one keeps serving after the other has
//! stopped.

use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use nereid_assembly::{Config, Endpoint, Http, Process, RunningServer, start};
use nereid_net::listener::Address;
use tempfile::TempDir;

const DEADLINE: Duration = Duration::from_secs(30);

/// A repository with one model that echoes its input.
fn repository(model: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    write_model(folder.path(), model);
    folder
}

fn write_model(repository: &Path, model: &str) {
    fs::create_dir_all(repository.join(model).join("1")).unwrap();
    let tensor = "data_type: TYPE_INT32 dims: [ 1 ]";
    let config = format!(
        "backend: \"identity\" input {{ name: \"INPUT0\" {tensor} }} output {{ name: \"OUTPUT0\" {tensor} }}"
    );
    fs::write(repository.join(model).join("config.pbtxt"), config).unwrap();
}

fn config(repository: &Path) -> Config {
    let address = Address::tcp("127.0.0.1", 0);
    Config {
        repositories: vec![repository.to_owned()],
        faces: vec![Box::new(Http { endpoint: Endpoint { address, tls: None }, ..Http::default() })],
        ..Config::default()
    }
}

fn address(running: &RunningServer) -> SocketAddr {
    let (protocol, address) = running.addresses().next().unwrap();
    assert_eq!(protocol, "HTTP");
    address.tcp().unwrap()
}

/// The status and body of an answer, over a new connection.
fn ask(address: SocketAddr, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut connection = TcpStream::connect(address).unwrap();
    connection.set_read_timeout(Some(DEADLINE)).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n"
    );
    connection.write_all((head + body).as_bytes()).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The status of an inference whose output must equal its input.
fn infer(address: SocketAddr, model: &str) -> u16 {
    let body = r#"{"inputs": [{"name": "INPUT0", "datatype": "INT32", "shape": [1], "data": [42]}]}"#;
    let (status, answer) = ask(address, "POST", &format!("/v2/models/{model}/infer"), body);
    assert_eq!(answer.contains("[42]"), status == 200, "{answer}");
    status
}

fn block_on<T>(running: &RunningServer, future: impl Future<Output = T>) -> T {
    running.runtime().clone().block_on(future)
}

fn stop(running: RunningServer) {
    let runtime = running.runtime().clone();
    runtime.block_on(running.stop(DEADLINE)).unwrap();
}

#[test]
fn two_servers_run_concurrently_in_one_process() {
    let (first_models, second_models) = (repository("first"), repository("second"));
    let first = start(config(first_models.path()), Process::default()).unwrap();
    let second = start(config(second_models.path()), Process::default()).unwrap();
    for running in [&first, &second] {
        assert_eq!(ask(address(running), "GET", "/v2/health/live", "").0, 200);
        assert_eq!(block_on(running, running.loaded()).unwrap().len(), 0);
        assert_eq!(ask(address(running), "GET", "/v2/health/ready", "").0, 200);
    }
    let (one, other) = (address(&first), address(&second));
    assert_ne!(one, other);
    assert_eq!((infer(one, "first"), infer(one, "second")), (200, 404));
    assert_eq!((infer(other, "first"), infer(other, "second")), (404, 200));

    stop(first);
    assert!(TcpStream::connect(one).is_err());
    assert_eq!(infer(other, "second"), 200);
    stop(second);
    assert!(TcpStream::connect(other).is_err());

    // The process is as it was: a further server starts on the caller's runtime.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let process = Process { runtime: Some(runtime.handle().clone()), ..Process::default() };
    let third = start(config(first_models.path()), process).unwrap();
    assert_eq!(block_on(&third, third.loaded()).unwrap().len(), 0);
    assert_eq!(infer(address(&third), "first"), 200);
    stop(third);
}

#[test]
fn failed_model_is_reported_and_the_others_are_served() {
    let models = repository("good");
    write_model(models.path(), "bad");
    fs::write(models.path().join("bad/config.pbtxt"), "backend: \"no_such_backend\"").unwrap();
    let running = start(config(models.path()), Process::default()).unwrap();
    let failed = block_on(&running, running.loaded()).unwrap();
    assert_eq!(failed.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["bad"]);
    assert_eq!(infer(address(&running), "good"), 200);
    assert_eq!(ask(address(&running), "GET", "/v2/health/ready", "").0, 400);
    stop(running);
}

#[test]
fn an_address_in_use_is_an_error() {
    let models = repository("model");
    let running = start(config(models.path()), Process::default()).unwrap();
    let taken = Address::tcp("127.0.0.1", address(&running).port());
    let second = Config {
        faces: vec![Box::new(Http { endpoint: Endpoint { address: taken, tls: None }, ..Http::default() })],
        ..config(models.path())
    };
    let error = start(second, Process::default()).err().unwrap().to_string();
    assert!(error.starts_with("cannot serve HTTP at 127.0.0.1:"), "{error}");
    stop(running);
}
