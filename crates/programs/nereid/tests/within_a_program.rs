//! Embedded servers: they open ports only on request, and leave the process alone.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nereid::{
    Builder, Error, ErrorCode, ModelControl, ModelOverrides, Request, Server, bf16, byte_strings, elements,
    f16, strings, tensor, tensor_of, texts, view,
};
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
    elements(response.output("OUTPUT0")?)
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
        assert_eq!(index.iter().map(|entry| &*entry.name).collect::<Vec<_>>(), models);
        assert!(
            index.iter().all(|entry| entry.state == Some("READY") && entry.version.as_deref() == Some("1"))
        );
    }
    let metrics = servers[0].metrics().unwrap();
    assert!(metrics.contains("nv_inference_request_success{model=\"a\",version=\"1\"} 1"), "{metrics}");
    let metadata = servers[0].model_metadata("a", None).unwrap();
    let input = &metadata.inputs[0];
    assert_eq!((&*input.name, input.datatype, &*input.shape), ("INPUT0", "INT64", &[-1, -1][..]));
    assert_eq!(servers[0].model_config("a", None).unwrap().max_batch_size, 8);
    for statistics in [servers[0].model_statistics("a", Some(1)).unwrap(), servers[0].statistics()] {
        assert_eq!(statistics.len(), 1);
        assert_eq!((statistics[0].inference_count, statistics[0].inference_stats.success.count), (1, 1));
    }
    for unknown in [("b", None), ("a", Some(2))] {
        assert!(servers[0].model_metadata(unknown.0, unknown.1).is_err(), "{unknown:?}");
        assert!(servers[0].model_statistics(unknown.0, unknown.1).is_err(), "{unknown:?}");
        assert!(servers[0].model_config(unknown.0, unknown.1).is_err(), "{unknown:?}");
    }
    assert_eq!(servers[0].metadata().name, "triton");
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
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let builder = builder(&repository).http_address(any).grpc_address(any).metrics_address(any);
    let server = builder.listen().start().await.unwrap();
    let addresses: BTreeMap<_, _> = server.addresses().collect();
    assert_eq!(addresses.len(), 3, "{addresses:?}");
    let statuses =
        addresses.iter().filter(|(protocol, _)| **protocol != "gRPC").map(|(protocol, address)| {
            let mut connection = TcpStream::connect(address.tcp().unwrap()).unwrap();
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
async fn tensors_of_every_type_pass_a_server() {
    let repository = repository(&[]);
    let config = |data_type: &str| IDENTITY.replace("TYPE_INT64", data_type);
    for data_type in ["TYPE_BOOL", "TYPE_FP16", "TYPE_BF16", "TYPE_STRING"] {
        add_model(repository.path(), data_type, &config(data_type));
    }
    let server = builder(&repository).start().await.unwrap();
    let ask = async |model: &str, input| server.infer(Request::new(model).input(input)).await.unwrap();
    let truths = [true, false, true];
    let response = ask("TYPE_BOOL", tensor("INPUT0", [1, 3], &truths)).await;
    assert_eq!(elements::<bool>(response.output("OUTPUT0").unwrap()).unwrap(), truths);
    let halves = [f16::from_f32(1.5), f16::MAX];
    let response = ask("TYPE_FP16", tensor_of("INPUT0", [1, 2], halves.to_vec())).await;
    assert_eq!(*view::<f16>(response.output("OUTPUT0").unwrap()).unwrap(), halves);
    let response = ask("TYPE_BF16", tensor("INPUT0", [2, 1], &[bf16::ONE, bf16::MIN])).await;
    assert_eq!(elements::<bf16>(response.output("OUTPUT0").unwrap()).unwrap(), [bf16::ONE, bf16::MIN]);
    let words = ["", "zwölf", "a\0b"];
    let response = ask("TYPE_STRING", strings("INPUT0", [1, 3], words).unwrap()).await;
    let output = response.output("OUTPUT0").unwrap();
    assert_eq!(
        (texts(output).unwrap(), byte_strings(output).unwrap().len()),
        (words.map(String::from).to_vec(), 3)
    );
    assert_eq!(response.output("OUTPUT1").unwrap_err().code(), ErrorCode::NotFound);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn load_replaces_configuration_and_files() {
    let repository = repository(&["a"]);
    let builder = builder(&repository).model_control(ModelControl::Explicit).load_at_start("a");
    let server = builder.backend_setting("onnxruntime", "engine", "tract").start().await.unwrap();
    let batch = |server: &Server| server.model_config("a", None).unwrap().max_batch_size;
    let config = IDENTITY.replace("max_batch_size: 8", "max_batch_size: 3");
    server.load_model_with("a", ModelOverrides::new().config(&config).unwrap()).await.unwrap();
    assert_eq!(batch(&server), 3);
    let json = r#"{"backend":"identity","max_batch_size":5,"input":[{"name":"INPUT0","data_type":"TYPE_INT64","dims":[-1]}],"output":[{"name":"OUTPUT0","data_type":"TYPE_INT64","dims":[-1]}]}"#;
    server.load_model_with("a", ModelOverrides::new().config_json(json)).await.unwrap();
    assert_eq!((batch(&server), ask(&server, "a", &[6]).await.unwrap()), (5, vec![6]));
    // A model that no repository has.
    let onnx = fs::read(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../examples/model_repository/scale_pixels/1/model.onnx"
    ));
    let overrides = || ModelOverrides::new().config("backend: 'onnxruntime' max_batch_size: 32").unwrap();
    server.load_model_with("scale", overrides().file("1/model.onnx", onnx.unwrap())).await.unwrap();
    let request = Request::new("scale").input(tensor("pixels", [1, 8, 8], &[16_u8; 64]));
    let response = server.infer(request).await.unwrap();
    assert_eq!(*view::<f32>(response.output("image").unwrap()).unwrap(), [1.0; 64]);
    for wrong in [
        ModelOverrides::new().config_json("{"),
        ModelOverrides::new().config_json(r#"{"backend":"none"}"#),
        overrides().file("../outside", "x"),
        overrides().file("1/model.onnx", "no model"),
    ] {
        assert!(server.load_model_with("scale", wrong.clone()).await.is_err(), "{wrong:?}");
    }
    let error = ModelOverrides::new().config("backend: 'identity'\n  nmae: 'x'").unwrap_err();
    assert!(error.message().starts_with("the configuration, 2:3: "), "{error}");
    // A load of unchanged files keeps the configuration; unloading the model drops it.
    server.load_model("a").await.unwrap();
    assert_eq!(batch(&server), 5);
    server.unload_model("a").await.unwrap();
    server.load_model("a").await.unwrap();
    assert_eq!(batch(&server), 8);
    server.stop().await.unwrap();
}

#[tokio::test]
async fn typed_settings_and_changes_configure_the_server() {
    let repository = repository(&["a"]);
    add_model(repository.path(), "wrong", "backend: 'none' max_batch_size: 0");
    assert!(builder(&repository).start().await.is_err());
    let builder = builder(&repository)
        .exit_on_error(false)
        .configure(|config| config.server.name = "first".to_owned())
        .configure(|config| config.server.name.push_str(" and second"));
    let shown = format!("{builder:?}");
    assert!(shown.contains("exit-on-error") && shown.contains("changes: 2"), "{shown}");
    for _ in 0..2 {
        let server = builder.clone().start().await.unwrap();
        assert_eq!(server.metadata().name, "first and second");
        assert_eq!(ask(&server, "a", &[1]).await.unwrap(), [1]);
        server.stop().await.unwrap();
    }
    let limited = builder.max_inflight_requests(NonZeroUsize::MIN).start().await.unwrap();
    assert_eq!(limited.core().options().max_inflight_requests, 1);
    limited.stop().await.unwrap();
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
    let sequences = format!("{IDENTITY} sequence_batching {{ max_sequence_idle_microseconds: 2000000 }}");
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
