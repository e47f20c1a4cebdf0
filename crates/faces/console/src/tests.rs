//! The console as browsers and other clients see it: over a socket, on a port with another face.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use nereid_core::backend_api::{Backend, InferRequest, RequestTrace, Response};
use nereid_core::{Caller, LatencyOptions, ModelControl, ModelId, ModelSpec, ScopedName, ServerOptions};
use nereid_http::{Router, TransportOptions, serve};
use nereid_net::listener::Address;
use nereid_protocol::{LogLevel, Restrictions};
use nereid_testkit::{ScriptedBackend, config};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::*;

/// A face for every path, like KServe's on the port of the console.
struct Beside(Properties);

impl Face for Beside {
    fn properties(&self) -> &Properties {
        &self.0
    }

    fn find<'a>(&self, _: &'a request::Parts) -> RouteMatch<'a> {
        RouteMatch::none()
    }

    fn perform<'a>(&'a self, _: RouteId, _: &'a Call<'a>, _: RequestBody) -> PendingReply<'a> {
        Box::pin(async { reply::empty(StatusCode::NOT_FOUND) })
    }
}

/// A server with a ready model `m` and one, `bad <&>`, that fails to load.
fn server() -> Arc<Server> {
    server_with(LatencyOptions::default())
}

fn server_with(latencies: LatencyOptions) -> Arc<Server> {
    let backend: Arc<dyn Backend> =
        Arc::new(ScriptedBackend::answering(|request| request.answer(Ok(Response::default()))));
    let text =
        "instance_group { count: 2 kind: KIND_CPU } output { name: 'OUT' data_type: TYPE_INT32 dims: 1 }";
    let spec = |name: &str, text: &str| ModelSpec::new(ModelId::plain(name), "m", config(name, text), [1]);
    let mut bad = spec("bad <&>", text);
    bad.fault = Some(nereid_core::backend_api::Error::internal("model.py:7: <script>"));
    let source = BTreeMap::from([("m".to_owned(), Ok(spec("m", text))), ("bad <&>".to_owned(), Ok(bad))]);
    let options = ServerOptions {
        name: "test".into(),
        load_threads: 1,
        model_control: ModelControl::Explicit,
        latencies,
        ..ServerOptions::default()
    };
    let server = Server::new(options, BTreeMap::from([("scripted".to_owned(), backend)]), Arc::new(source));
    assert_eq!(server.start(Some(vec!["m".into(), "bad <&>".into()])).unwrap().len(), 1);
    server
}

struct Site {
    server: Arc<Server>,
    log: Arc<LogControl>,
    sampling: Sampling,
    address: SocketAddr,
}

async fn site(access: Access) -> Site {
    site_of(server(), access).await
}

/// Repeats the name of a model.
struct Echo;

impl Advisor for Echo {
    fn advise(&self, model: &str) -> Vec<Advice> {
        let (place, field) = (format!("{model}/config.pbtxt:3:7"), Some("input[0].data_type".to_owned()));
        vec![Advice { is_problem: true, place, field, message: "did you mean <TYPE_FP32>?".into() }]
    }
}

async fn site_of(server: Arc<Server>, access: Access) -> Site {
    let log = Arc::<LogControl>::default();
    let console = Console::new(Arc::clone(&server), Arc::clone(&log), access);
    let changes = Arc::<ClientChanges>::default();
    let gpus = || vec![Gpu { name: "GPU-0".into(), utilization: Some(0.5), ..Gpu::default() }];
    let parts = Parts { advisor: Some(Arc::new(Echo)), changes: Some(changes), gpus: Some(Arc::new(gpus)) };
    let console = console.with_parts(parts);
    let sampling = console.sampling();
    let address = Address::tcp("127.0.0.1", 0);
    let listener = address.bind().unwrap().listen(None).unwrap();
    let address = listener.local_addr().unwrap().tcp().unwrap();
    let router = Router::from(Beside(Properties::default())).and(console);
    tokio::spawn(serve(listener, router, TransportOptions::default(), CancellationToken::new()));
    Site { server, log, sampling, address }
}

impl Site {
    /// The whole reply to a request.
    async fn ask(&self, method: &str, path: &str, headers: &str) -> Vec<u8> {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let head = format!("{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await.unwrap();
        reply
    }

    /// The head and the body of a reply in text.
    async fn get(&self, path: &str, headers: &str) -> (String, String) {
        let reply = String::from_utf8(self.ask("GET", path, headers).await).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap();
        (head.to_owned(), body.to_owned())
    }

    async fn document(&self, path: &str) -> Value {
        let (head, body) = self.get(path, "").await;
        assert!(
            head.starts_with("HTTP/1.1 200 ") && head.contains("cache-control: no-store"),
            "{path}: {head}"
        );
        serde_json::from_str(&body).unwrap()
    }
}

#[tokio::test]
async fn page_is_for_clients_that_name_html() {
    let site = site(Access::default()).await;
    for (method, headers, is_page) in [
        ("GET", "Accept: text/html,application/xhtml+xml,*/*;q=0.8\r\n", true),
        ("HEAD", "Accept: text/html\r\n", true),
        ("GET", "Accept: */*\r\n", false),
        ("GET", "Accept: application/json\r\n", false),
        ("GET", "Accept: text/html;q=0\r\n", false),
        ("GET", "", false),
        ("POST", "Accept: text/html\r\nContent-Length: 0\r\n", false),
    ] {
        let reply = site.ask(method, "/", headers).await;
        let start: &[u8] = if is_page { b"HTTP/1.1 200 " } else { b"HTTP/1.1 404 " };
        assert!(reply.starts_with(start), "{method} {headers}");
    }
}

#[tokio::test]
async fn page_and_its_files_come_compressed_from_this_server_alone() {
    let site = site(Access::default()).await;
    let (_, page) = site.get("/", "Accept: text/html\r\n").await;
    assert!(!page.contains("{folder}") && !page.contains("//"), "{page}");
    let links: Vec<_> =
        page.split('"').filter(|part| part.starts_with("/console/")).map(str::to_owned).collect();
    assert!(links.len() >= 4, "{links:?}");
    for link in links {
        let file = site.ask("GET", &link, "Accept-Encoding: gzip\r\n").await;
        let head = String::from_utf8_lossy(&file[..400]).to_lowercase();
        assert!(
            head.starts_with("http/1.1 200 ") && head.contains("content-encoding: gzip"),
            "{link}: {head}"
        );
    }
}

#[test]
fn all_files_together_stay_small() {
    let total: usize = FILES.iter().map(|file| file.gzip.len()).sum();
    assert!(total <= 250_000, "{total} bytes");
    for library in ["vendor/preact-htm.js", "vendor/uplot.js"] {
        assert!(FILES.iter().any(|file| file.name == library), "{library}");
    }
}

#[tokio::test]
async fn models_have_their_state_and_where_they_run() {
    let site = site(Access::default()).await;
    let models = site.document("/console/api/models").await;
    let [bad, good] = models["models"].as_array().unwrap().as_slice() else { panic!("{models}") };
    assert_eq!((&bad["name"], &bad["state"]), (&"bad <&>".into(), &"UNAVAILABLE".into()));
    assert!(bad["reason"].as_str().unwrap().contains("model.py:7: <script>"), "{bad}");
    assert_eq!(bad.get("backend"), None);
    assert_eq!((&good["name"], &good["version"]), (&"m".into(), &"1".into()));
    assert_eq!((&good["backend"], &good["max_batch_size"]), (&"scripted".into(), &0.into()));
    assert_eq!(good["instances"], serde_json::json!([{ "kind": "KIND_CPU", "count": 2, "gpus": [] }]));
    let server = site.document("/console/api/server").await;
    assert_eq!((&server["name"], &server["model_control"]), (&"test".into(), &"explicit".into()));
}

#[tokio::test]
async fn declared_configuration_is_that_of_a_version() {
    let site = site(Access::default()).await;
    for query in ["", "?version=1", "?other=2"] {
        let config = site.document(&format!("/console/api/models/m/declared{query}")).await;
        assert_eq!(config["output"][0]["name"], "OUT", "{query}: {config}");
    }
    for (path, status) in [
        ("m/declared?version=2", 404),
        ("m/declared?version=x", 400),
        ("bad%20%3C&%3E/declared", 404),
        ("n/declared", 404),
    ] {
        let (head, _) = site.get(&format!("/console/api/models/{path}"), "").await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {head}");
    }
}

#[tokio::test]
async fn quantiles_are_those_of_the_phases() {
    for summaries in [false, true] {
        let latencies = LatencyOptions { summaries, ..LatencyOptions::default() };
        let site = site_of(server_with(latencies), Access::default()).await;
        for _ in 0..5 {
            infer(&site.server).await;
        }
        let document = site.document("/console/api/models/m/quantiles").await;
        let phases = document["phases"].as_array().unwrap();
        let names: Vec<_> = phases.iter().map(|phase| phase["phase"].as_str().unwrap()).collect();
        let expected: &[_] = match summaries {
            true => &["request", "queue", "compute_input", "compute_infer", "compute_output"],
            false => &[],
        };
        assert_eq!(names, expected);
        if let Some(request) = phases.first() {
            let [p50, p99] = ["p50", "p99"].map(|name| request[name].as_f64().unwrap());
            assert!(0.0 < p50 && p50 <= p99, "{request}");
        }
    }
}

#[tokio::test]
async fn version_shows_what_it_does_at_the_moment() {
    let site = site(Access::default()).await;
    let expected = serde_json::json!({
        "waiting": 0, "sequences": null, "processes": 0, "memory": 0, "priority_levels": 0, "levels": [],
        "batches": null
    });
    assert_eq!(site.document("/console/api/models/m/now?version=1").await, expected);
    assert!(site.get("/console/api/models/m/now?version=2", "").await.0.starts_with("HTTP/1.1 404 "));
}

#[tokio::test]
async fn what_would_mend_a_model_is_shown() {
    let site = site(Access::default()).await;
    let advice = site.document("/console/api/models/bad%20%3C&%3E/advice").await;
    let expected = serde_json::json!([{
        "is_problem": true, "place": "bad <&>/config.pbtxt:3:7", "field": "input[0].data_type",
        "message": "did you mean <TYPE_FP32>?"
    }]);
    assert_eq!(advice, expected);
}

#[tokio::test]
async fn states_of_models_are_those_that_the_caller_may_see() {
    let site = site(Access::default()).await;
    site.sampling.observe(&site.server);
    let states = site.document("/console/api/states").await;
    let texts = |states: &Value| {
        let all = states.as_array().unwrap().iter();
        all.map(|state| format!("{} {}", state["model"], state["state"])).collect::<Vec<_>>()
    };
    assert_eq!(texts(&states), [r#""bad <&>" "UNAVAILABLE""#, r#""m" "READY""#, r#"null "READY""#]);
    assert!(states[0]["reason"].as_str().unwrap().contains("model.py:7"));
    assert_eq!(texts(&site.document("/console/api/states?model=m").await), [r#""m" "READY""#]);
    assert_eq!(texts(&site.document("/console/api/states?model=x").await), [""; 0]);
}

#[tokio::test]
async fn sequences_changes_and_gpus_have_documents() {
    let site = site(Access::default()).await;
    let none = serde_json::json!({ "count": 0, "oldest": [] });
    assert_eq!(site.document("/console/api/models/m/sequences").await, none);
    assert_eq!(site.document("/console/api/changes").await, serde_json::json!([]));
    site.sampling.sample(5, Arc::clone(&site.server));
    site.sampling.sample(10, Arc::clone(&site.server));
    for (query, expected) in [("", 2), ("?after=5", 1), ("?after=10", 0)] {
        let gpus = site.document(&format!("/console/api/gpus{query}")).await;
        assert_eq!((&gpus["gpus"][0]["name"], &gpus["at"]), (&"GPU-0".into(), &10.into()));
        let samples = gpus["gpus"][0]["samples"].as_array().unwrap();
        assert_eq!(samples.len(), expected, "{query}");
        assert!(samples.iter().all(|sample| sample[1] == 0.5 && sample[2].is_null()), "{samples:?}");
    }
    assert!(site.get("/console/api/models/n/sequences", "").await.0.starts_with("HTTP/1.1 404 "));
}

#[tokio::test]
async fn next_request_to_a_model_is_traced_on_demand() {
    let site = site(Access::default()).await;
    let path = "/console/api/models/m/trace";
    let nothing = serde_json::json!({ "waits": null, "trace": null });
    assert_eq!(site.document(path).await, nothing);
    for (unknown, status) in [("n", 404), ("bad%20%3C&%3E", 404)] {
        let reply = site.ask("POST", &format!("/console/api/models/{unknown}/trace"), "").await;
        assert!(reply.starts_with(format!("HTTP/1.1 {status} ").as_bytes()), "{unknown}");
    }
    for number in [1, 2] {
        assert!(site.ask("POST", path, "").await.starts_with(b"HTTP/1.1 200 "));
        let waiting = site.document(path).await;
        assert!((1.0..=60.0).contains(&waiting["waits"].as_f64().unwrap()), "{waiting}");
        let trace = site.server.trace().draw("m", || None).unwrap();
        let model = site.server.model(ScopedName::everywhere("m"), None).unwrap();
        let request = InferRequest {
            trace: Some(RequestTrace::new(trace)),
            id: "<7>".into(),
            ..InferRequest::default()
        };
        let mut answers = site.server.infer(&model, request, Caller::default()).unwrap();
        while answers.next().await.is_some() {}
        drop(answers);
        // The instance has the request a little longer than its client.
        let document = loop {
            let document = site.document(path).await;
            if document["trace"]["number"] == number {
                break document;
            }
            tokio::task::yield_now().await;
        };
        assert_eq!((&document["waits"], &document["trace"]["request_id"]), (&Value::Null, &"<7>".into()));
        let span = &document["trace"]["spans"][0];
        assert_eq!(
            (&span["model"], &span["version"], &span["parent"]),
            (&"m".into(), &"1".into(), &0.into())
        );
        let points = span["points"].as_array().unwrap();
        assert_eq!(points[0], serde_json::json!(["REQUEST_START", 0.0]));
        assert!(
            points.iter().any(|point| point[0] == "COMPUTE_OUTPUT_START" && point[1].as_f64() > Some(0.0))
        );
    }
}

#[tokio::test]
async fn known_models_are_sent_again_only_after_a_change() {
    let site = site(Access::default()).await;
    let (head, _) = site.get("/console/api/models", "").await;
    let tag = head.lines().find_map(|line| line.strip_prefix("etag: ")).unwrap().to_owned();
    let known = format!("If-None-Match: {tag}\r\n");
    assert!(site.get("/console/api/models", &known).await.0.starts_with("HTTP/1.1 304 "));
    let (done, unloaded) = tokio::sync::oneshot::channel();
    site.server
        .unload_model(ScopedName::everywhere("m"), move |outcome| done.send(outcome).unwrap())
        .unwrap();
    unloaded.await.unwrap().unwrap();
    let (head, body) = site.get("/console/api/models", &known).await;
    assert!(head.starts_with("HTTP/1.1 200 ") && !body.contains("READY"), "{body}");
}

async fn infer(server: &Arc<Server>) {
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    server.infer(&model, InferRequest::default(), Caller::default()).unwrap().next().await.unwrap().unwrap();
}

#[tokio::test(start_paused = true)]
async fn counters_are_sampled_at_an_interval_until_the_server_ends() {
    let server = server();
    let sampling = Sampling::new(&server);
    let running = tokio::spawn(sampling.clone().run());
    tokio::time::sleep(Duration::from_secs(22)).await;
    assert_eq!(sampling.history().last_tick(), 20);
    assert_eq!(sampling.history().server_after(0).count(), 4);
    drop(server);
    tokio::time::timeout(Duration::from_secs(6), running).await.unwrap().unwrap();
}

#[tokio::test]
async fn history_is_sent_from_a_time_on() {
    let site = site(Access::default()).await;
    site.sampling.sample(0, Arc::clone(&site.server));
    for at in [5, 10, 15, 20] {
        infer(&site.server).await;
        site.sampling.sample(at, Arc::clone(&site.server));
    }
    for (query, server, models) in [
        ("", 4, 1),
        ("?after=10", 2, 1),
        ("?last=5", 1, 1),
        ("?models=none", 4, 0),
        ("?model=m", 4, 1),
        ("?model=other", 4, 0),
        ("?after=20", 0, 0),
    ] {
        let history = site.document(&format!("/console/api/history{query}")).await;
        assert_eq!(history["server"].as_array().unwrap().len(), server, "{query}: {history}");
        assert_eq!(history["models"].as_array().unwrap().len(), models, "{query}: {history}");
        assert_eq!((&history["at"], &history["interval"]), (&20.into(), &5.into()));
    }
    let history = site.document("/console/api/history").await;
    let samples = history["models"][0]["samples"].as_array().unwrap();
    let total: f64 = samples.iter().map(|sample| sample[1].as_f64().unwrap() * 5.0).sum();
    assert!((total - 4.0).abs() < 0.01, "{history}");
    assert!(site.get("/console/api/history?after=x", "").await.0.starts_with("HTTP/1.1 400 "));
}

#[tokio::test]
async fn log_lines_are_sent_from_a_number_on() {
    let site = site(Access::default()).await;
    for message in ["one", "two <b>", "three"] {
        site.log.recent().add(7, LogLevel::Warning, "a.rs:1".into(), message.into());
    }
    for (query, expected) in [("", 3), ("?after=1", 2), ("?after=3", 0), ("?after=9", 3)] {
        let log = site.document(&format!("/console/api/log{query}")).await;
        assert_eq!(log["lines"].as_array().unwrap().len(), expected, "{query}: {log}");
    }
    let log = site.document("/console/api/log?after=1").await;
    let expected = serde_json::json!({
        "number": 2, "time": 7, "level": "warning", "place": "a.rs:1", "message": "two <b>"
    });
    assert_eq!(log["lines"][0], expected);
}

#[tokio::test]
async fn documents_need_the_rights_of_the_api_and_pages_none() {
    let restricted = ["metadata", "model-repository", "model-config", "statistics", "logging", "trace"];
    let documents = ["server", "models", "models/m/declared", "history", "log", "models/m/trace"];
    for (group, document) in restricted.into_iter().zip(documents) {
        let restrictions = Restrictions::new([format!("{group}:key=v").parse().unwrap()]).unwrap();
        let site = site(restrictions.into()).await;
        for other in documents {
            let path = format!("/console/api/{other}");
            let status = if other == document { "403" } else { "200" };
            assert!(
                site.get(&path, "").await.0.starts_with(&format!("HTTP/1.1 {status} ")),
                "{group}: {other}"
            );
            assert!(site.get(&path, "key: v\r\n").await.0.starts_with("HTTP/1.1 200 "), "{group}: {other}");
        }
        assert!(site.get("/", "Accept: text/html\r\n").await.0.starts_with("HTTP/1.1 200 "), "{group}");
    }
}
