//! The routes that Vertex AI chooses, and those that its header names.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use nereid_core::backend_api::{Backend, Request};
use nereid_core::{MetricRegistry, ModelId, ModelSpec, ServerOptions};
use nereid_http::TransportOptions;
use nereid_kserve::HttpOptions;
use nereid_metrics::{Exposition, MetricsOptions};
use nereid_net::listener::Address;
use nereid_testkit::{ScriptedBackend, config, scripts};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::*;

const CONFIG: &str = r#"backend: "scripted"
    input { name: "IN0" data_type: TYPE_INT32 dims: [ -1 ] }
    output { name: "OUT0" data_type: TYPE_INT32 dims: [ -1 ] }"#;
const ONE: &str = r#"{"inputs":[{"name":"IN0","datatype":"INT32","shape":[2],"data":[5,6]}]}"#;
const BINARY_HEAD: &str = r#"{"inputs":[{"name":"IN0","datatype":"INT32","shape":[2],"parameters":{"binary_data_size":8}}],"outputs":[{"name":"OUT0","parameters":{"binary_data":true}}]}"#;

struct Serving(SocketAddr);

async fn serve(names: &[&str], default: Option<&str>, restricted: &[&str]) -> Serving {
    let echo = |request: Request| {
        let response = scripts::echoed(&request);
        request.answer(Ok(response));
    };
    let backend: Arc<dyn Backend> = Arc::new(ScriptedBackend::answering(echo));
    let model = |name: &&str| {
        let spec = ModelSpec::new(ModelId::plain(*name), *name, config(name, CONFIG), [1]);
        ((*name).to_owned(), Ok(spec))
    };
    let models: BTreeMap<_, _> = names.iter().map(model).collect();
    let options = ServerOptions { strict_readiness: true, load_threads: 1, ..ServerOptions::default() };
    let server = Server::new(options, BTreeMap::from([("scripted".to_owned(), backend)]), Arc::new(models));
    assert!(server.start(None).unwrap().is_empty());
    let restrictions =
        nereid_protocol::Restrictions::new(restricted.iter().map(|text| text.parse().unwrap())).unwrap();
    let http = HttpOptions { max_body_size: 4096, access: restrictions.into(), ..HttpOptions::default() };
    let options = VertexAiOptions {
        health: "/health".parse().unwrap(),
        predict: "/v1/(a|b):predict".parse().unwrap(),
        model: default.map(str::to_owned),
    };
    let exposition = Exposition::new(MetricsOptions::default(), MetricRegistry::default());
    let metrics = Metrics::new(Arc::clone(&server), Arc::new(exposition), nereid_protocol::Access::default());
    let face = VertexAi::new(KserveHttp::new(server, http), metrics, options);
    let address = Address::tcp("127.0.0.1", 0);
    let listener = address.bind().unwrap().listen(None).unwrap();
    let address = listener.local_addr().unwrap().tcp().unwrap();
    let (transport, shutdown) = (TransportOptions::default(), CancellationToken::new());
    tokio::spawn(nereid_http::serve(listener, face, transport, shutdown));
    Serving(address)
}

impl Serving {
    async fn ask(&self, line: &str, headers: &str, body: &[u8]) -> (u16, String) {
        let mut stream = TcpStream::connect(self.0).await.unwrap();
        let length = body.len();
        let head = format!(
            "{line} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n"
        );
        stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await.unwrap();
        let reply = String::from_utf8_lossy(&reply).into_owned();
        (reply[9..12].parse().unwrap(), reply)
    }
}

const PREDICT: &str = "POST /v1/a:predict";

#[tokio::test]
async fn only_the_configured_routes_answer() {
    let serving = serve(&["first", "second"], Some("second"), &[]).await;
    for (line, body, status, part) in [
        ("GET /health", "", 200, ""),
        ("POST /health", "", 405, "error"),
        (PREDICT, ONE, 200, r#""model_name":"second""#),
        ("POST /v1/b:predict", ONE, 200, r#""data":[5,6]"#),
        ("GET /v1/a:predict", "", 405, "error"),
        (PREDICT, "hello", 500, "error"),
        (PREDICT, r#"{"inputs":[]}"#, 400, "error"),
        ("POST /v1/c:predict", ONE, 400, "\r\n\r\n"),
        ("GET /v2/health/live", "", 400, "\r\n\r\n"),
        ("POST /v2/models/first/infer", ONE, 400, "\r\n\r\n"),
    ] {
        let (given, reply) = serving.ask(line, "", body.as_bytes()).await;
        assert!(given == status && reply.contains(part), "{line} {body}: {reply}");
    }
}

#[tokio::test]
async fn header_redirects_to_read_only_routes() {
    let serving = serve(&["first", "second"], Some("first"), &[]).await;
    for (target, status, part) in [
        ("v2", 200, "extensions"),
        ("v2/health/live", 200, ""),
        ("v2/health/ready", 200, ""),
        ("v2/models/second", 200, r#""name":"second""#),
        ("v2/models/second/versions/1", 200, r#""name":"second""#),
        ("v2/models/second/config", 200, "max_batch_size"),
        ("v2/models/second/ready", 200, ""),
        ("v2/models/second/stats", 200, "model_stats"),
        ("v2/models/stats", 200, "model_stats"),
        ("v2/repository/index", 200, "second"),
        ("v2/systemsharedmemory/status", 200, "[]"),
        ("v2/cudasharedmemory/status", 200, "[]"),
        ("v2/models/second/infer", 200, r#""model_name":"second""#),
        ("v2/models/second/versions/1/infer", 200, r#""model_name":"second""#),
        ("metrics", 200, "nv_inference_request_success"),
        ("v2/models/nosuch/infer", 404, "error"),
        ("v2/repository/models/second/load", 403, "error"),
        ("v2/repository/models/second/unload", 403, "error"),
        ("v2/systemsharedmemory/region/r/register", 403, "error"),
        ("v2/cudasharedmemory/unregister", 403, "error"),
        ("v2/logging", 400, ""),
        ("v2/trace/setting", 400, ""),
        ("/v2/models/second/infer", 400, ""),
        ("v3", 400, ""),
        ("", 400, ""),
    ] {
        let header = format!("X-Vertex-Ai-Triton-Redirect: {target}\r\n");
        // The index accepts no inference body.
        let body = if target.ends_with("index") { "" } else { ONE };
        let (given, reply) = serving.ask(PREDICT, &header, body.as_bytes()).await;
        assert!(given == status && reply.contains(part), "{target}: {reply}");
        assert_eq!(serving.ask("GET /v1/a:predict", &header, b"").await.0, 405, "{target}");
    }
}

#[tokio::test]
async fn only_model_is_the_default() {
    for (names, status) in [(["only"].as_slice(), 200), (&["one", "two"], 503), (&[], 503)] {
        let serving = serve(names, None, &[]).await;
        assert_eq!(serving.ask(PREDICT, "", ONE.as_bytes()).await.0, status, "{names:?}");
    }
}

#[tokio::test]
async fn binary_bodies_announce_their_json_length_in_the_content_type() {
    let serving = serve(&["only"], None, &[]).await;
    let body = [BINARY_HEAD.as_bytes(), &5_i32.to_le_bytes(), &6_i32.to_le_bytes()].concat();
    for (length, status) in [(BINARY_HEAD.len(), 200), (9999, 400), (3, 500)] {
        let header = format!("Content-Type: {BINARY}{length}\r\n");
        let (given, reply) = serving.ask(PREDICT, &header, &body).await;
        assert_eq!(given, status, "{reply}");
        let is_binary = reply.contains("inference-header-content-length: ");
        assert_eq!(is_binary, status == 200, "{reply}");
    }
}

#[tokio::test]
async fn restricted_groups_apply_to_redirected_routes() {
    let restricted = ["inference:k=i", "health:k=h", "metadata:k=m"];
    let serving = serve(&["only"], None, &restricted).await;
    for (line, target, key) in [
        ("GET /health", None, "h"),
        (PREDICT, None, "i"),
        (PREDICT, Some("v2/models/only/infer"), "i"),
        (PREDICT, Some("v2/health/live"), "h"),
        (PREDICT, Some("v2/models/only"), "m"),
    ] {
        let target = target.map_or_else(String::new, |target| format!("{REDIRECT}: {target}\r\n"));
        for (key, status) in [("", 403), ("k: wrong\r\n", 403), (&*format!("k: {key}\r\n"), 200)] {
            let headers = format!("{target}{key}");
            assert_eq!(serving.ask(line, &headers, ONE.as_bytes()).await.0, status, "{line} {headers}");
        }
    }
    let long = "x".repeat(4097);
    assert_eq!(serving.ask(PREDICT, "k: i\r\n", long.as_bytes()).await.0, 413);
}
