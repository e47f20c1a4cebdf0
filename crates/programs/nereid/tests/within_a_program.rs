//! Embedded servers: they open ports only on request, and leave the process alone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nereid::{Builder, Error, ErrorCode, Request, Server, elements, tensor};
use tempfile::TempDir;

#[allow(dead_code, reason = "the example's own main is not called")]
#[path = "../examples/digits.rs"]
mod digits;

const IDENTITY: &str = "backend: 'identity' max_batch_size: 8
    input { name: 'INPUT0' data_type: TYPE_INT64 dims: -1 } output { name: 'OUTPUT0' data_type: TYPE_INT64 dims: -1 }";

fn add_model(repository: &Path, name: &str, config: &str) {
    fs::create_dir_all(repository.join(name).join("1")).unwrap();
    fs::write(repository.join(name).join("config.pbtxt"), config).unwrap();
}

fn repository(models: &[&str]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    models.iter().for_each(|name| add_model(folder.path(), name, IDENTITY));
    folder
}

fn builder(repository: &TempDir) -> Builder {
    Server::builder().model_repository(repository.path())
}

/// Sends these numbers to a model and returns its output.
async fn ask(server: &Server, model: &str, values: &[i64]) -> Result<Vec<i64>, Error> {
    let shape = [1, i64::try_from(values.len()).unwrap()];
    let response = server.infer(Request::new(model).id("x").input(tensor("INPUT0", shape, values))).await?;
    elements(&response.outputs[0])
}

#[tokio::test]
async fn several_servers_run_concurrently_without_ports() {
    let repositories = [repository(&["a"]), repository(&["b"]), repository(&["a", "b"])];
    let mut servers = Vec::new();
    for repository in &repositories {
        servers.push(builder(repository).start().await.unwrap());
    }
    for (server, models) in servers.iter().zip([&["a"][..], &["b"], &["a", "b"]]) {
        assert_eq!(server.addresses().count(), 0);
        assert!(server.is_ready().await);
        for model in ["a", "b"] {
            let outcome = ask(server, model, &[1, 2, 3]).await;
            match models.contains(&model) {
                true => assert_eq!(outcome.unwrap(), [1, 2, 3]),
                false => assert_eq!(outcome.unwrap_err().code(), ErrorCode::NotFound),
            }
            assert_eq!(server.model_ready(model, Some(1)).await.is_ok(), models.contains(&model));
        }
        let index = server.repository_index().unwrap();
        assert_eq!(index.as_array().unwrap().len(), models.len());
    }
    let metrics = servers[0].metrics().unwrap();
    assert!(metrics.contains("nv_inference_request_success{model=\"a\",version=\"1\"} 1"), "{metrics}");
    assert_eq!(servers[0].model_metadata("a", None).unwrap()["inputs"][0]["name"], "INPUT0");
    assert_eq!(servers[0].model_statistics("a", None).unwrap()["model_stats"][0]["inference_count"], 1);
    assert_eq!(servers[0].metadata().unwrap()["name"], "triton");
    // A stopped server refuses requests; the others still answer.
    servers[0].stop().await.unwrap();
    servers[0].stop().await.unwrap();
    assert!(ask(&servers[0], "a", &[1]).await.is_err());
    assert!(!servers[0].is_ready().await);
    assert_eq!(ask(&servers[2], "a", &[4]).await.unwrap(), [4]);
    drop(servers);
    // What a server logs is up to this program.
    assert!(!tracing::dispatcher::has_been_set());
}

#[tokio::test]
async fn listening_server_opens_its_ports() {
    let repository = repository(&["a"]);
    let ports = ["http-port", "grpc-port", "metrics-port"];
    let listening =
        builder(&repository).option("http-address", "127.0.0.1").option("grpc-address", "127.0.0.1");
    let server = ports
        .iter()
        .fold(listening, |builder, port| builder.option(*port, 0))
        .listen()
        .start()
        .await
        .unwrap();
    let addresses: BTreeMap<_, _> = server.addresses().collect();
    assert_eq!(addresses.len(), 3, "{addresses:?}");
    let statuses =
        addresses.iter().filter(|(protocol, _)| **protocol != "gRPC").map(|(protocol, address)| {
            let mut connection = TcpStream::connect(address).unwrap();
            let path = if *protocol == "HTTP" { "/v2/health/ready" } else { "/metrics" };
            write!(connection, "GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").unwrap();
            let mut answer = String::new();
            connection.read_to_string(&mut answer).unwrap();
            answer.lines().next().unwrap_or_default().to_owned()
        });
    let statuses: Vec<_> = statuses.collect();
    assert!(statuses.iter().all(|status| status == "HTTP/1.1 200 OK"), "{statuses:?}");
    server.stop().await.unwrap();
}

#[tokio::test]
async fn streams_end_after_the_last_response() {
    let repository = repository(&["a"]);
    let server = builder(&repository).start().await.unwrap();
    for count in [1_i64, 4] {
        let values: Vec<_> = (0..count).collect();
        let request = Request::new("a").version(1).input(tensor("INPUT0", [1, count], &values));
        let mut responses = server.infer_stream(request).await.unwrap();
        assert_eq!((responses.model_name(), responses.model_version()), ("a", 1));
        let response = responses.next().await.unwrap().unwrap();
        assert_eq!(elements::<i64>(&response.outputs[0]).unwrap(), values);
        assert!(responses.next().await.is_none());
    }
    server.stop().await.unwrap();
}

#[tokio::test]
async fn startup_errors_are_reported() {
    let good = repository(&["a"]);
    let bad = repository(&["a"]);
    add_model(bad.path(), "wrong", "backend: 'none' max_batch_size: 0");
    let missing = || Server::builder().model_repository("/nonexistent/models");
    for (builder, expected) in [
        (Server::builder(), Some("--model-repository")),
        (builder(&good).option("exit-timeout-secs", "soon"), Some("exit-timeout-secs")),
        (builder(&good).option("load-model", "a"), Some("--model-control-mode=explicit")),
        (builder(&bad), Some("backend 'none' is not installed")),
        (builder(&bad).option("exit-on-error", false), None),
        (missing(), Some("/nonexistent/models")),
        (missing().option("exit-on-error", false), None),
        (builder(&good), None),
    ] {
        match (builder.start().await, expected) {
            (Ok(server), None) => server.stop().await.unwrap(),
            (Ok(_), Some(expected)) => panic!("started, and should have said '{expected}'"),
            (Err(error), Some(expected)) => assert!(error.message().contains(expected), "{error}"),
            (Err(error), None) => panic!("{error}"),
        }
    }
}

#[tokio::test]
async fn explicit_control_loads_models_and_registers_repositories() {
    let (first, second) = (repository(&["a"]), repository(&["b", "c"]));
    let server = builder(&first).option("model-control-mode", "explicit").start().await.unwrap();
    assert!(ask(&server, "a", &[1]).await.is_err());
    server.load_model("a").await.unwrap();
    assert_eq!(ask(&server, "a", &[1]).await.unwrap(), [1]);
    assert!(server.load_model("renamed").await.is_err());
    let names = BTreeMap::from([("renamed".to_owned(), "b".to_owned())]);
    server.register_repository(second.path(), &names).await.unwrap();
    let again = server.register_repository(second.path(), &BTreeMap::new()).await.unwrap_err();
    assert_eq!(again.code(), ErrorCode::AlreadyExists);
    for model in ["renamed", "c"] {
        server.load_model(model).await.unwrap();
        assert_eq!(ask(&server, model, &[2, 3]).await.unwrap(), [2, 3], "{model}");
    }
    assert!(server.load_model("b").await.is_err());
    server.unregister_repository(second.path()).unwrap();
    assert_eq!(server.unregister_repository(second.path()).unwrap_err().code(), ErrorCode::InvalidArg);
    assert_eq!(ask(&server, "c", &[4]).await.unwrap(), [4]);
    server.unload_model("c").await.unwrap();
    assert!(server.load_model("c").await.is_err());
    assert_eq!(server.poll().unwrap_err().code(), ErrorCode::Unavailable);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn program_triggers_polls() {
    let repository = repository(&["a"]);
    let server = builder(&repository).option("model-control-mode", "poll").start().await.unwrap();
    add_model(repository.path(), "b", IDENTITY);
    assert!(ask(&server, "b", &[1]).await.is_err());
    server.poll().unwrap();
    assert_eq!(ask(&server, "b", &[1]).await.unwrap(), [1]);
    fs::remove_dir_all(repository.path().join("a")).unwrap();
    server.poll().unwrap();
    assert!(ask(&server, "a", &[1]).await.is_err());
    let refused = server.register_repository(repository.path(), &BTreeMap::new()).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::Unsupported);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn stop_waits_for_requests_in_progress() {
    let delayed = format!(
        "{IDENTITY} dynamic_batching {{ preferred_batch_size: 8 max_queue_delay_microseconds: 200000 }}"
    );
    let repository = repository(&[]);
    add_model(repository.path(), "slow", &delayed);
    let server = builder(&repository).start().await.unwrap();
    let request = || Request::new("slow").input(tensor("INPUT0", [1, 2], &[5_i64, 6]));
    let mut waiting = server.infer_stream(request()).await.unwrap();
    let (stopped, answer) = tokio::join!(server.stop(), waiting.next());
    stopped.unwrap();
    assert_eq!(elements::<i64>(&answer.unwrap().unwrap().outputs[0]).unwrap(), [5, 6]);
    assert!(server.infer_stream(request()).await.is_err());
}

#[tokio::test]
async fn timed_out_stop_may_be_retried() {
    let sequences = format!("{IDENTITY} sequence_batching {{ max_sequence_idle_microseconds: 400000 }}");
    let repository = repository(&[]);
    add_model(repository.path(), "open", &sequences);
    let server = builder(&repository).option("exit-timeout-secs", 0).start().await.unwrap();
    let request = Request::new("open").sequence(7, true, false).input(tensor("INPUT0", [1, 1], &[1_i64]));
    server.infer(request).await.unwrap();
    // The sequence is open until it has been idle for long enough.
    assert!(server.stop().await.is_err());
    server.set_exit_timeout(Duration::from_secs(20));
    server.stop().await.unwrap();
}

#[tokio::test]
async fn trace_options_apply_to_requests() {
    let repository = repository(&["a"]);
    let file = repository.path().join("trace.json");
    for (rate, count, expected) in [(1, -1, 6), (2, -1, 3), (4, -1, 1)] {
        let options = [("rate", rate), ("count", count)].map(|(name, value)| format!("{name}={value}"));
        let file_option = format!("triton,file={}", file.display());
        let settings = options.into_iter().chain(["level=TIMESTAMPS".to_owned(), file_option]);
        let builder =
            settings.fold(builder(&repository), |builder, setting| builder.option("trace-config", setting));
        let server = builder.start().await.unwrap();
        for _ in 0..6 {
            ask(&server, "a", &[1]).await.unwrap();
        }
        server.stop().await.unwrap();
        let traces = fs::read_to_string(&file).unwrap();
        assert_eq!(traces.matches("model_name").count(), expected, "{traces}");
        fs::remove_file(&file).unwrap();
    }
}

#[tokio::test]
async fn dropped_server_releases_everything() {
    let repository = repository(&["a"]);
    for (asks, stops) in [(false, false), (false, true), (true, false), (true, true)] {
        let server = builder(&repository).start().await.unwrap();
        if asks {
            ask(&server, "a", &[1]).await.unwrap();
        }
        if stops {
            server.stop().await.unwrap();
        }
        let core = Arc::downgrade(server.core());
        drop(server);
        // Threads that end with the server may hold it for a moment.
        let end = Instant::now() + Duration::from_secs(10);
        while core.strong_count() > 0 && Instant::now() < end {
            tokio::task::yield_now().await;
        }
        assert_eq!(core.strong_count(), 0, "asks: {asks}, stops: {stops}");
    }
}

#[tokio::test]
async fn digits_example_recognises_digits() {
    let examples = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../../examples"));
    let server = Server::builder()
        .model_repository(examples.join("model_repository"))
        .option("model-control-mode", "explicit")
        .option("load-model", "digits")
        .option("backend-config", "onnxruntime,engine=tract")
        .start()
        .await
        .unwrap();
    let mut read = 0;
    for image in fs::read_dir(examples.join("images")).unwrap() {
        let path = image.unwrap().path();
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let Some(expected) = name.strip_prefix("digit_") else { continue };
        let (digit, probability) = digits::classify(&server, &path).await.unwrap();
        assert_eq!(digit.to_string(), expected);
        assert!(probability > 0.5 && probability <= 1.0, "{probability}");
        read += 1;
    }
    assert_eq!(read, 3);
    server.stop().await.unwrap();
}
