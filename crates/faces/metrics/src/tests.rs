//! The face as a collector sees it: over a socket, from a server with one scripted model.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nereid_core::backend_api::{Backend, Batch, Error, InferRequest, Response};
use nereid_core::{
    Caller, Interceptors, LatencyOptions, MetricKind, MetricLabels, MetricRegistry, ModelId, ModelSpec,
    ScopedName, Server, ServerOptions,
};
use nereid_http::serve;
use nereid_net::listener::Address;
use nereid_protocol::{Access, Action, Authorizer, Denied, Identity};
use nereid_releases::Releases;
use nereid_testkit::{ScriptedBackend, config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    Exposition, Metrics, MetricsOptions, PinnedMemory, RemoteRepository, ResponseCacheFill,
    ResponseCacheMetrics, TRANSPORT, VersionMemory,
};

/// Answers requests with the id `bad` with an error, and others without outputs.
fn answer(batch: Batch) {
    let outcome = match batch.requests()[0].id.as_str() {
        "bad" => Err(Error::internal("failed on purpose")),
        _ => Ok(Response::default()),
    };
    batch.complete([outcome]);
}

const OUTPUT: &str = "output { name: 'OUT' data_type: TYPE_INT32 dims: 1 }";

fn server(text: &str) -> Arc<Server> {
    let backend: Arc<dyn Backend> = Arc::new(ScriptedBackend::executing(answer));
    let id = ModelId { name: "m".into(), namespace: "models".into() };
    let spec = ModelSpec::new(id, "m", config("m", &format!("{OUTPUT} {text}")), [1, 3]);
    let backends = BTreeMap::from([("scripted".to_owned(), backend)]);
    let source = Arc::new(BTreeMap::from([("m".to_owned(), Ok(spec))]));
    let latencies = LatencyOptions { histograms: true, summaries: true };
    let server = Server::new(ServerOptions { latencies, ..ServerOptions::default() }, backends, source);
    let failures = server.start(None).unwrap();
    assert!(failures.is_empty(), "{failures:?}");
    server
}

async fn infer(server: &Server, id: &str) {
    let request = InferRequest { id: id.into(), ..InferRequest::default() };
    let model = server.model(ScopedName::everywhere("m"), None).unwrap();
    let answer = server.infer(&model, request, Caller::default()).unwrap().next().await.unwrap();
    assert_eq!(answer.is_err(), id == "bad");
}

struct Serving {
    address: SocketAddr,
    shutdown: CancellationToken,
    serving: JoinHandle<()>,
}

async fn serving(server: Arc<Server>, exposition: Exposition) -> Serving {
    serving_with(server, exposition, Access::default()).await
}

async fn serving_with(server: Arc<Server>, exposition: Exposition, access: Access) -> Serving {
    let address = Address::tcp("127.0.0.1", 0);
    let listener = address.bind().unwrap().listen(None).unwrap();
    let address = listener.local_addr().unwrap().tcp().unwrap();
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(serve(
        listener,
        Metrics::new(server, Arc::new(exposition), access),
        TRANSPORT,
        shutdown.clone(),
    ));
    Serving { address, shutdown, serving }
}

impl Serving {
    async fn ask(&self, head: &str) -> String {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let request = format!("{head} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }
}

/// The lines of a family.
fn samples<'a>(text: &'a str, family: &str) -> Vec<&'a str> {
    text.lines().filter(|line| line.starts_with(&format!("{family}{{"))).collect()
}

fn exposition() -> Exposition {
    Exposition::new(MetricsOptions::default(), MetricRegistry::default())
}

#[tokio::test]
async fn each_version_has_its_series_with_tags_and_namespace() {
    let server = server("metric_tags { key: 'a b' value: '\"1\"' } metric_tags { key: 'z' value: '2' }");
    infer(&server, "good").await;
    infer(&server, "good").await;
    infer(&server, "bad").await;
    let text = Exposition::new(MetricsOptions::default(), MetricRegistry::default()).text(&server);
    let head = r#"{_a_b="\"1\"",_z="2",model="m",namespace="models","#;
    assert_eq!(
        samples(&text, "nv_inference_request_success"),
        [
            format!(r#"nv_inference_request_success{head}version="1"}} 0"#),
            format!(r#"nv_inference_request_success{head}version="3"}} 2"#)
        ]
    );
    let failure = |reason, count| {
        format!(r#"nv_inference_request_failure{head}reason="{reason}",version="3"}} {count}"#)
    };
    assert_eq!(
        samples(&text, "nv_inference_request_failure")[4..],
        [failure("BACKEND", 1), failure("CANCELED", 0), failure("OTHER", 0), failure("REJECTED", 0)]
    );
    assert_eq!(samples(&text, "nv_inference_pending_request_count").len(), 2);
    assert!(samples(&text, "nv_model_load_duration_secs").iter().all(|line| !line.ends_with(" 0")), "{text}");
}

#[tokio::test]
async fn empty_families_and_disabled_latencies_are_left_out() {
    let options = MetricsOptions {
        cpu: false,
        counter_latencies: false,
        load_durations: false,
        ..MetricsOptions::default()
    };
    let registry = MetricRegistry::default();
    let _empty = registry.family(MetricKind::Gauge, "empty", "").unwrap();
    let exposition = Exposition::new(options, registry);
    let text = exposition.text(&server(""));
    assert!(!text.contains("nv_model_load_duration_secs"), "{text}");
    assert!(!text.contains("duration_us") && !text.contains("nv_cpu") && !text.contains("empty"), "{text}");
    assert!(text.contains("nv_inference_count{"));
    let none = Server::new(ServerOptions::default(), BTreeMap::new(), Arc::new(BTreeMap::new()));
    assert!(exposition.text(&none).starts_with("# HELP nv_pinned_memory_pool_total_bytes"));
    assert!(text.contains("\nnv_pinned_memory_pool_total_bytes 0\n"), "{text}");
    let pinned = exposition.with_pinned_memory(|| PinnedMemory { total: 100, used: 7 }).text(&none);
    assert!(pinned.contains("\nnv_pinned_memory_pool_total_bytes 100\n"), "{pinned}");
    assert!(pinned.contains("\nnv_pinned_memory_pool_used_bytes 7\n"), "{pinned}");
}

#[tokio::test]
async fn repositories_that_are_not_on_this_machine_are_included() {
    let none = Server::new(ServerOptions::default(), BTreeMap::new(), Arc::new(BTreeMap::new()));
    let exposition = Exposition::new(MetricsOptions::default(), MetricRegistry::default());
    assert!(!exposition.text(&none).contains("nereid_repository"));
    let repository = |location: &str, is_reachable, fetched| RemoteRepository {
        location: location.into(),
        is_reachable,
        fetched,
        fetching: None,
    };
    let archive = RemoteRepository { fetching: Some((3, 9)), ..repository("https://c", true, 3) };
    let repositories = [repository("s3://a/\"x\"", true, 7), repository("gs://b", false, 0), archive];
    let text = exposition.with_repositories(move || repositories.to_vec()).text(&none);
    for line in [
        r#"nereid_repository_reachable{repository="s3://a/\"x\""} 1"#,
        r#"nereid_repository_reachable{repository="gs://b"} 0"#,
        r#"nereid_repository_fetched_bytes{repository="s3://a/\"x\""} 7"#,
        r#"nereid_repository_fetched_bytes{repository="gs://b"} 0"#,
        r#"nereid_repository_fetch_bytes{repository="https://c"} 3"#,
        r#"nereid_repository_fetch_total_bytes{repository="https://c"} 9"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
    // No fetch is in progress.
    assert!(!text.contains("nereid_model_fetch"), "{text}");
}

#[tokio::test]
async fn memory_of_versions_is_included() {
    let none = Server::new(ServerOptions::default(), BTreeMap::new(), Arc::new(BTreeMap::new()));
    let exposition = Exposition::new(MetricsOptions::default(), MetricRegistry::default());
    assert!(!exposition.text(&none).contains("nereid_model_memory"));
    let memory = |namespace: &str, kind, bytes| {
        let id = ModelId { name: "m\"".into(), namespace: namespace.into() };
        VersionMemory { id, version: 3, kind, gpu: kind.starts_with("gpu").then_some(2), bytes }
    };
    let versions = vec![
        memory("", "server", 7),
        memory("", "budget", 9),
        memory("", "gpu", 3),
        memory("", "gpu_budget", 4),
        memory("space", "server", 5),
    ];
    let text = exposition.with_memory(move || versions.clone()).text(&none);
    for line in [
        r#"nereid_model_memory_bytes{model="m\"",version="3",kind="server"} 7"#,
        r#"nereid_model_memory_bytes{model="m\"",version="3",kind="budget"} 9"#,
        r#"nereid_model_memory_bytes{model="m\"",version="3",kind="gpu",gpu="2"} 3"#,
        r#"nereid_model_memory_bytes{model="m\"",version="3",kind="gpu_budget",gpu="2"} 4"#,
        r#"nereid_model_memory_bytes{namespace="space",model="m\"",version="3",kind="server"} 5"#,
    ] {
        assert!(text.lines().any(|found| found == line), "{line}: {text}");
    }
}

#[tokio::test]
async fn versions_of_a_release_report_their_shares_and_results() {
    let text = r#"
        version_policy { all { } }
        parameters { key: "release_versions" value { string_value: "1=75, 2=25" } }
    "#;
    let releases = Releases::default();
    let mut interceptors = Interceptors::default();
    interceptors.add_factory(Arc::new(releases.clone()));
    let options =
        ServerOptions { releases: Some(Arc::new(releases)), interceptors, ..ServerOptions::default() };
    let model = ModelSpec::new(ModelId::plain("m"), "m", config("m", &format!("{OUTPUT} {text}")), [1, 2]);
    let backend: Arc<dyn Backend> = Arc::new(ScriptedBackend::executing(answer));
    let source = Arc::new(BTreeMap::from([("m".to_owned(), Ok(model))]));
    let server = Server::new(options, BTreeMap::from([("scripted".to_owned(), backend)]), source);
    server.start(None).unwrap();
    for _ in 0..8 {
        let model = server.resolve(ScopedName::everywhere("m"), None).await.unwrap();
        let mut answers = server.infer(&model, InferRequest::default(), Caller::default()).unwrap();
        assert!(answers.next().await.unwrap().is_ok());
    }
    let exposition = Exposition::new(MetricsOptions::default(), MetricRegistry::default());
    for text in [exposition.text(&server), exposition.text_of(&server, |id| id.name == "m")] {
        for line in [
            r#"nereid_release_share{model="m",version="1"} 0.75"#,
            r#"nereid_release_share{model="m",version="2"} 0.25"#,
            r#"nereid_release_requests_total{model="m",version="1"} 5"#,
            r#"nereid_release_requests_total{model="m",version="2"} 3"#,
            r#"nereid_release_results_total{model="m",version="2",outcome="success"} 3"#,
            r#"nereid_release_results_total{model="m",version="2",outcome="error"} 0"#,
            r#"nereid_release_copies_total{model="m",version="2",outcome="different"} 0"#,
            r#"nereid_release_part{model="m",version="1",part="established"} 1"#,
            r#"nereid_release_part{model="m",version="2",part="candidate"} 1"#,
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }
    assert!(!exposition.text_of(&server, |_| false).contains("nereid_release"));
}

#[tokio::test]
async fn response_cache_is_exposed_as_far_as_it_reports() {
    let server = server("response_cache { enable: true }");
    let text = |report: fn() -> Option<ResponseCacheMetrics>| {
        let exposition = Exposition::new(MetricsOptions::default(), MetricRegistry::default());
        exposition.with_response_cache(report).text(&server)
    };
    // A cache that exports its own metrics: only those of models are left.
    let own = text(|| None);
    assert!(own.contains("nv_cache_num_hits_per_model{") && !own.contains("nv_cache_num_hits "), "{own}");
    let local = text(|| {
        let fill = Some(ResponseCacheFill { entries: 2, evictions: 5, utilization: 0.5 });
        Some(ResponseCacheMetrics {
            hits: 3,
            misses: 4,
            lookup_ns: 9000,
            insertion_ns: 8000,
            fill,
            ..ResponseCacheMetrics::default()
        })
    });
    for (name, value) in [
        ("nv_cache_num_hits", "3"),
        ("nv_cache_num_misses", "4"),
        ("nv_cache_num_lookups", "7"),
        ("nv_cache_lookup_duration", "9"),
        ("nv_cache_insertion_duration", "8"),
        ("nv_cache_num_entries", "2"),
        ("nv_cache_num_evictions", "5"),
        ("nv_cache_util", "0.5"),
    ] {
        assert!(local.lines().any(|line| line == format!("{name} {value}")), "{name}: {local}");
    }
    assert!(!local.contains("nereid_cache_available"), "{local}");
    let remote = text(|| Some(ResponseCacheMetrics { is_available: Some(false), ..Default::default() }));
    assert!(remote.contains("\nnereid_cache_available 0\n") && !remote.contains("nv_cache_util"), "{remote}");
}

#[tokio::test]
async fn cache_families_of_models_depend_on_their_configuration_alone() {
    for (config, enables) in [
        ("", false),
        ("response_cache { }", false),
        ("response_cache { enable: false }", false),
        ("response_cache { enable: true }", true),
    ] {
        let server = server(config);
        let without = exposition();
        let with = exposition().with_response_cache(|| Some(ResponseCacheMetrics::default()));
        for (exposition, has_cache) in [(without, false), (with, true)] {
            let text = exposition.text(&server);
            let families: Vec<_> = text
                .lines()
                .filter_map(|line| line.strip_prefix("# TYPE nv_cache_")?.split(' ').next())
                .filter(|name| name.ends_with("_per_model"))
                .collect();
            let expected = [
                "num_hits_per_model",
                "hit_duration_per_model",
                "num_misses_per_model",
                "miss_duration_per_model",
                "hit_summary_per_model",
                "miss_summary_per_model",
            ];
            assert_eq!(families, if enables { &expected[..] } else { &[] }, "{config}, {has_cache}: {text}");
            for family in ["nv_cache_num_hits_per_model", "nv_cache_miss_summary_per_model_count"] {
                // One for each version.
                assert_eq!(samples(&text, family).len(), if enables { 2 } else { 0 }, "{family}: {text}");
            }
            assert_eq!(text.contains("\nnv_cache_num_lookups 0\n"), has_cache, "{config}: {text}");
        }
    }
}

#[tokio::test]
async fn a_request_counts_once_in_each_distribution() {
    let server = server("");
    infer(&server, "good").await;
    infer(&server, "bad").await;
    let options = MetricsOptions { quantiles: vec![0.25], ..MetricsOptions::default() };
    let text = Exposition::new(options, MetricRegistry::default()).text(&server);
    let labels = r#"model="m",namespace="models",version="3""#;
    let has = |line: String| assert!(text.contains(&line), "no {line} in {text}");
    has(format!("first_response_histogram_ms_count{{{labels}}} 2\n"));
    has(format!("first_response_histogram_ms_bucket{{{labels},le=\"+Inf\"}} 2\n"));
    for phase in ["request", "queue", "compute_input", "compute_infer", "compute_output"] {
        has(format!("nv_inference_{phase}_summary_us_count{{{labels}}} 1\n"));
        has(format!("nv_inference_{phase}_summary_us{{{labels},quantile=\"0.25\"}} "));
    }
    has("summary_us{model=\"m\",namespace=\"models\",version=\"1\",quantile=\"0.25\"} NaN\n".into());
}

#[tokio::test]
async fn metrics_of_backends_follow_the_servers_of_the_same_kind() {
    let registry = MetricRegistry::default();
    let exposition = Exposition::new(MetricsOptions::default(), registry.clone());
    let labels = MetricLabels::from([("x".to_owned(), "1".to_owned())]);
    let metric =
        |kind, bounds| registry.family(kind, kind.name(), "of mine").unwrap().metric(labels.clone(), bounds);
    let gauge = metric(MetricKind::Gauge, None).unwrap();
    let counter = metric(MetricKind::Counter, None).unwrap();
    let histogram = metric(MetricKind::Histogram, Some(vec![1.0])).unwrap();
    gauge.set(0.25).unwrap();
    counter.increment(3.0).unwrap();
    histogram.observe(7.0).unwrap();
    let text = exposition.text(&server(""));
    let place = |what: &str| text.find(what).unwrap_or_else(|| panic!("no {what} in {text}"));
    let counter = "# HELP counter of mine\n# TYPE counter counter\ncounter{x=\"1\"} 3\n";
    let gauge = "# HELP gauge of mine\n# TYPE gauge gauge\ngauge{x=\"1\"} 0.25\n";
    let histogram = "# TYPE histogram histogram\nhistogram_count{x=\"1\"} 1\nhistogram_sum{x=\"1\"} 7\n\
                     histogram_bucket{x=\"1\",le=\"1\"} 0\nhistogram_bucket{x=\"1\",le=\"+Inf\"} 1\n";
    assert!(place("# TYPE nv_inference_compute_output_duration_us counter") < place(counter));
    assert!(place(counter) < place("# TYPE nv_inference_pending_request_count gauge"));
    assert!(place("# TYPE nv_cpu_memory_used_bytes gauge") < place(gauge));
    assert!(place(gauge) < place(histogram));
    let error = registry.family(MetricKind::Counter, "nv_inference_count", "").err().unwrap();
    assert!(error.message().contains("is reserved by the server"), "{error}");
}

#[tokio::test]
async fn only_get_on_metrics_returns_the_text() {
    let serving = serving(server(""), exposition()).await;
    for path in ["/metrics", "/metrics/", "/metrics?name=x"] {
        let answer = serving.ask(&format!("GET {path}")).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("content-type: text/plain; charset=utf-8\r\n"), "{answer}");
        assert!(answer.contains("nv_inference_request_success{"), "{answer}");
    }
    for path in ["/", "/metric", "/metrics/x", "//metrics", "/v2/health/ready"] {
        let answer = serving.ask(&format!("GET {path}")).await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.contains("content-length: 0\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "HEAD", "NONSENSE"] {
        let answer = serving.ask(&format!("{method} /metrics")).await;
        assert!(answer.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"), "{answer}");
        assert!(answer.contains("allow: GET\r\n"), "{answer}");
    }
    assert!(serving.ask("what is this").await.starts_with("HTTP/1.1 400 "));
    let long = serving.ask(&format!("GET /{}", "x".repeat(1 << 20))).await;
    assert!(
        long.starts_with("HTTP/1.1 414 ") || long.starts_with("HTTP/1.1 431 ") || long.is_empty(),
        "{long}"
    );
    assert!(serving.ask("GET /metrics").await.starts_with("HTTP/1.1 200 OK\r\n"));
}

#[tokio::test]
async fn shutdown_closes_idle_connections_and_takes_no_new_ones() {
    let serving = serving(server(""), exposition()).await;
    let mut idle = TcpStream::connect(serving.address).await.unwrap();
    idle.write_all(b"GET /x HTTP/1.1\r\nHost: x\r\n\r\n").await.unwrap();
    let mut answer = [0; 15];
    idle.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    serving.shutdown.cancel();
    tokio::time::timeout(Duration::from_secs(20), serving.serving).await.unwrap().unwrap();
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).await.unwrap();
    assert!(TcpStream::connect(serving.address).await.is_err());
}

#[tokio::test]
async fn a_stalled_client_is_disconnected() {
    let serving = serving(server(""), exposition()).await;
    let mut slow = TcpStream::connect(serving.address).await.unwrap();
    slow.write_all(b"GET /metrics HT").await.unwrap();
    // The clock advances only while every task is idle.
    tokio::time::pause();
    let mut answer = Vec::new();
    slow.read_to_end(&mut answer).await.unwrap_or_default();
    assert!(answer.is_empty(), "{}", String::from_utf8_lossy(&answer));
}

#[tokio::test]
async fn a_flood_of_connections_is_served_in_turn() {
    let serving = serving(server(""), exposition()).await;
    let mut asked = Vec::new();
    for _ in 0..600 {
        let mut stream = TcpStream::connect(serving.address).await.unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        asked.push(stream);
    }
    for mut stream in asked {
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.contains("nv_inference_count{"), "{answer}");
    }
}

/// Permits the metrics of one model.
#[derive(Debug)]
struct OneModel(&'static str);

impl Authorizer for OneModel {
    fn check(&self, _: &Identity, action: Action, model: Option<&str>) -> Result<(), Denied> {
        match (action, model) {
            (Action::Metrics, None) => Ok(()),
            (Action::Metrics, Some(model)) if model == self.0 => Ok(()),
            _ => Err(Denied::Forbidden("not permitted".to_owned())),
        }
    }
}

#[tokio::test]
async fn caller_reads_the_metrics_of_its_own_models_alone() {
    for (model, is_seen) in [("m", true), ("n", false)] {
        let server = server("");
        infer(&server, "good").await;
        let access = Access::default().with_authorizer(Arc::new(OneModel(model)));
        let serving = serving_with(server, exposition(), access).await;
        let text = serving.ask("GET /metrics").await;
        assert!(text.starts_with("HTTP/1.1 200 "), "{text}");
        assert_eq!(text.contains(r#"model="m""#), is_seen, "{text}");
        // The machine's are not of any model.
        assert!(!text.contains("nv_cpu_utilization") && !text.contains("nv_pinned_memory"), "{text}");
    }
}
