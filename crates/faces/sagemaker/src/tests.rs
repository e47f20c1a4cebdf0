//! The contract of SageMaker's containers: one model, and many.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Mutex;

use nereid_core::backend_api::{Backend, Error, ErrorCode, Request};
use nereid_core::{ModelControl, ModelId, ModelSpec, Server, ServerOptions};
use nereid_http::TransportOptions;
use nereid_kserve::HttpOptions;
use nereid_net::listener::Address;
use nereid_protocol::Restrictions;
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

/// Folders that may not exist.
#[derive(Default)]
struct Registered(Mutex<Vec<PathBuf>>);

impl Folders for Registered {
    fn register(&self, folder: &Path, _: &str) -> Result<PathBuf> {
        let mut folders = self.0.lock().unwrap();
        if folders.contains(&folder.to_owned()) {
            return Err(Error::new(ErrorCode::AlreadyExists, "it is there"));
        }
        folders.push(folder.to_owned());
        Ok(folder.to_owned())
    }

    fn unregister(&self, path: &Path) {
        self.0.lock().unwrap().retain(|folder| folder != path);
    }
}

/// Echoes, except for actions selected by the first number.
fn script(request: Request) {
    let first = request.inputs[0].contiguous().unwrap()[0];
    match first {
        1 => request.answer(Err(Error::internal("CUDA out of memory, so it says"))),
        2 => request.answer(Err(Error::internal("something else"))),
        _ => {
            let response = scripts::echoed(&request);
            request.answer(Ok(response));
        }
    }
}

struct Serving {
    address: SocketAddr,
    folders: Arc<Registered>,
}

async fn serve(control: ModelControl, options: SageMakerOptions, restricted: &[&str]) -> Serving {
    let backend: Arc<dyn Backend> = Arc::new(ScriptedBackend::answering(script));
    let models = ["first", "h1", "h2"].map(|name| {
        let spec = ModelSpec::new(ModelId::plain(name), name, config(name, CONFIG), [1]);
        (name.to_owned(), Ok(spec))
    });
    let server = ServerOptions {
        strict_readiness: true,
        load_threads: 1,
        model_control: control,
        ..ServerOptions::default()
    };
    let backends = BTreeMap::from([("scripted".to_owned(), backend)]);
    let server = Server::new(server, backends, Arc::new(BTreeMap::from(models)));
    let at_start = (control == ModelControl::Explicit).then(Vec::new);
    assert!(server.start(at_start).unwrap().is_empty());
    let restrictions = Restrictions::new(restricted.iter().map(|text| text.parse().unwrap())).unwrap();
    let http = HttpOptions { max_body_size: 4096, access: restrictions.into(), ..HttpOptions::default() };
    let folders = Arc::<Registered>::default();
    let face =
        SageMaker::new(KserveHttp::new(server, http), options, Arc::clone(&folders) as Arc<dyn Folders>);
    let address = Address::tcp("127.0.0.1", 0);
    let listener = address.bind().unwrap().listen(None).unwrap();
    let address = listener.local_addr().unwrap().tcp().unwrap();
    let (transport, shutdown) = (TransportOptions::default(), CancellationToken::new());
    tokio::spawn(nereid_http::serve(listener, face, transport, shutdown));
    Serving { address, folders }
}

async fn one_model() -> Serving {
    let options = SageMakerOptions { model: Some("first".into()), ..SageMakerOptions::default() };
    serve(ModelControl::None, options, &[]).await
}

async fn many_models() -> Serving {
    let options = SageMakerOptions { ping: PingMode::Live, ..SageMakerOptions::default() };
    serve(ModelControl::Explicit, options, &[]).await
}

impl Serving {
    /// The status, the head and the body of a reply.
    async fn ask(&self, line: &str, headers: &str, body: &[u8]) -> (u16, String, Vec<u8>) {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let head = format!(
            "{line} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\nConnection: close\r\n{headers}\r\n"
        );
        stream.write_all(&[head.as_bytes(), body].concat()).await.unwrap();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).await.unwrap();
        let end = reply.windows(4).position(|four| four == b"\r\n\r\n").unwrap();
        let head = String::from_utf8(reply[..end].to_vec()).unwrap().to_lowercase();
        (head[9..12].parse().unwrap(), head, reply[end + 4..].to_vec())
    }

    async fn text(&self, line: &str, body: &str) -> (u16, String) {
        let (status, _, body) = self.ask(line, "", body.as_bytes()).await;
        (status, String::from_utf8(body).unwrap())
    }
}

#[tokio::test]
async fn an_endpoint_of_one_model_answers_the_containers_routes() {
    let serving = one_model().await;
    for (line, body, status, part) in [
        ("GET /ping", "", 200, ""),
        ("POST /ping", "", 405, "error"),
        ("POST /invocations", ONE, 200, r#""data":[5,6]"#),
        ("GET /invocations", "", 405, "error"),
        ("POST /invocations", "hello", 500, "error"),
        ("POST /invocations", "{\"inputs\":[]}", 400, "error"),
        ("POST /invocations/x", ONE, 400, ""),
        ("GET /v2/health/live", "", 400, ""),
        ("GET /models", "", 200, "{\"models\":[]}"),
        ("GET /models/", "", 200, "{\"models\":[]}"),
        ("GET /models/first", "", 404, ""),
        ("DELETE /models/first", "", 404, ""),
        ("POST /models/first/invoke", ONE, 404, ""),
        // Only the server's clients may load models where they may do so.
        ("POST /models", r#"{"model_name":"h1","url":"/a"}"#, 400, "error"),
    ] {
        let (given, reply) = serving.text(line, body).await;
        assert_eq!(given, status, "{line} {body}: {reply}");
        assert!(
            reply.contains(part) && (status != 400 || reply.is_empty() == part.is_empty()),
            "{line}: {reply}"
        );
    }
}

#[tokio::test]
async fn binary_bodies_announce_their_json_length_in_the_content_type() {
    let serving = one_model().await;
    let tensor = [5_i32.to_le_bytes(), 6_i32.to_le_bytes()].concat();
    let body = [BINARY_HEAD.as_bytes(), &tensor].concat();
    let content_type = |length: usize| format!("Content-Type: {BINARY}{length}\r\n");
    let (status, head, reply) =
        serving.ask("POST /invocations", &content_type(BINARY_HEAD.len()), &body).await;
    assert_eq!(status, 200, "{}", String::from_utf8_lossy(&reply));
    let length = head.split_once(&format!("content-type: {BINARY}")).unwrap().1;
    let length: usize = length.lines().next().unwrap().parse().unwrap();
    assert_eq!(reply[length..], tensor);
    assert!(!head.contains("inference-header-content-length"), "{head}");
    // Too long; KServe's header, which SageMaker does not pass on; compressed, which it does not announce.
    let kserve = format!("Inference-Header-Content-Length: {}\r\n", BINARY_HEAD.len());
    for (headers, expected) in [(content_type(4000), 400), (kserve, 500)] {
        assert_eq!(serving.ask("POST /invocations", &headers, &body).await.0, expected, "{headers}");
    }
    let (status, head, _) =
        serving.ask("POST /invocations", "Accept-Encoding: gzip\r\n", ONE.as_bytes()).await;
    assert!(status == 200 && !head.contains("content-encoding"), "{head}");
}

#[tokio::test]
async fn multi_model_endpoint_loads_and_unloads_models() {
    let serving = many_models().await;
    let load = |name: &str, url: &str| format!(r#"{{"model_name":"{name}","url":"{url}"}}"#);
    for (line, body, status, part) in [
        ("GET /ping", String::new(), 200, ""),
        ("POST /models", load("h1", "/opt/ml/models/a"), 200, ""),
        ("POST /models", load("h1", "/opt/ml/models/a"), 409, "error"),
        ("POST /models", load("h2", "/opt/./ml/models/b"), 200, ""),
        (
            "GET /models",
            String::new(),
            200,
            r#"{"modelName":"h1","modelUrl":"/opt/ml/models/a"},{"modelName":"h2""#,
        ),
        ("GET /models/h2", String::new(), 200, r#"{"modelName":"h2","modelUrl":"/opt/ml/models/b"}"#),
        ("GET /models/h2/invoke", String::new(), 200, r#"{"modelName":"h2","modelUrl":"/opt/ml/models/b"}"#),
        ("GET /models/h3/invoke", String::new(), 404, ""),
        ("PUT /models/h1", String::new(), 400, ""),
        ("POST /models/h1", load("h1", "/opt/ml/models/a"), 400, ""),
        ("DELETE /models", String::new(), 404, ""),
        ("DELETE /models/", String::new(), 404, ""),
        ("DELETE /models/h3/invoke", String::new(), 404, ""),
        ("GET /models//invoke", String::new(), 200, r#"{"models":[{"modelName":"h1""#),
        ("POST /models//invoke", ONE.into(), 404, ""),
        ("DELETE /models//invoke", String::new(), 404, ""),
        ("PUT /models//invoke", String::new(), 400, ""),
        ("PUT /models/h1/invoke", ONE.into(), 400, ""),
        ("POST /models/h1/invoke", ONE.into(), 200, r#""model_name":"h1""#),
        ("POST /models/h1/invoke", ONE.replace('5', "1"), 507, "out of memory"),
        ("POST /models/h1/invoke", ONE.replace('5', "2"), 400, "something else"),
        ("POST /models/h1/invoke", "hello".into(), 400, "error"),
        ("DELETE /models/h1", String::new(), 200, ""),
        ("GET /models/h1", String::new(), 404, ""),
        ("DELETE /models/h1", String::new(), 404, ""),
        ("POST /models/h1/invoke", ONE.into(), 404, ""),
        ("POST /models", load("h1", "/opt/ml/models/a"), 200, ""),
        ("POST /models", load("nosuch", "/opt/ml/models/c"), 400, "error"),
        ("POST /models", load("h3", "/proc/self/cwd"), 400, "error"),
        ("POST /models", load("h3", "models"), 400, "error"),
        ("POST /models", "{}".into(), 400, "error"),
        ("POST /models", "hello".into(), 400, "error"),
    ] {
        let (given, reply) = serving.text(line, &body).await;
        assert!(given == status && reply.contains(part), "{line} {body}: {given} {reply}");
    }
    // A failed load leaves nothing behind.
    let folders: Vec<_> = ["/opt/ml/models/b", "/opt/ml/models/a"].map(PathBuf::from).into();
    assert_eq!(*serving.folders.0.lock().unwrap(), folders);
}

#[tokio::test]
async fn model_is_reached_only_with_the_archive_that_it_was_loaded_from() {
    let serving = many_models().await;
    let load = |name: &str| format!(r#"{{"model_name":"{name}","url":"/opt/ml/models/{name}"}}"#);
    let header = |target: &str| format!("X-Amzn-SageMaker-Target-Model: {target}\r\n");
    let (none, a, b) = (String::new(), header("a.tar.gz"), header("b.tar.gz"));
    for (name, target) in [("h1", &a), ("h2", &none)] {
        assert_eq!(serving.ask("POST /models", target, load(name).as_bytes()).await.0, 200);
    }
    for (name, target, status) in [
        ("h1", &none, 200),
        ("h1", &a, 200),
        ("h1", &b, 400),
        ("h1", &header("h1"), 400),
        ("h1", &header("\u{e9}"), 400),
        ("h2", &none, 200),
        ("h2", &header("h2"), 200),
        ("h2", &a, 400),
        ("h3", &a, 404),
    ] {
        let invoke = format!("POST /models/{name}/invoke");
        assert_eq!(serving.ask(&invoke, target, ONE.as_bytes()).await.0, status, "{name} {target}");
        if status == 400 {
            assert_eq!(serving.ask(&format!("DELETE /models/{name}"), target, b"").await.0, 400);
        }
    }
    assert_eq!(serving.ask("DELETE /models/h1", &a, b"").await.0, 200);
    assert_eq!(serving.ask("DELETE /models/h2", &none, b"").await.0, 200);
}

#[tokio::test]
async fn other_spellings_of_a_path_open_no_restricted_group() {
    let options = SageMakerOptions { model: Some("first".into()), ..SageMakerOptions::default() };
    let restricted = ["inference:k=i", "model-repository:k=m"];
    let serving = serve(ModelControl::None, options, &restricted).await;
    for line in [
        "POST //invocations",
        "POST /invocations/",
        "POST /%69nvocations",
        "POST /x/../invocations",
        "POST /./invocations",
        "POST /invocations?x",
        "POST /invocations#x",
        "POST /models//invoke",
        "POST /models/../invocations",
        "POST /models/%2e%2e/invoke",
        "POST /models/a%2fb/invoke",
        "POST /MODELS",
        "POST /models;x",
        "GET /models//",
        "DELETE /models/../models/first",
        "POST http://x/models",
        "POST /v2/models/first/infer",
    ] {
        let (status, reply) = serving.text(line, ONE).await;
        assert!(matches!(status, 400 | 403 | 404), "{line}: {status} {reply}");
        assert!(!reply.contains("outputs") && !reply.contains("models\":"), "{line}: {reply}");
    }
}

#[tokio::test]
async fn restricted_groups_and_limits_apply() {
    let options = SageMakerOptions { model: Some("first".into()), ..SageMakerOptions::default() };
    let restricted = ["inference:k=i", "model-repository:k=m", "health:k=h"];
    let serving = serve(ModelControl::None, options, &restricted).await;
    for (line, key, opened) in [
        ("GET /ping", "h", 200),
        ("POST /invocations", "i", 200),
        ("POST /models/x/invoke", "i", 404),
        ("GET /models", "m", 200),
        ("GET /models/x", "m", 404),
        ("DELETE /models/x", "m", 404),
        ("POST /models", "m", 400),
    ] {
        for (headers, status) in [(String::new(), 403), (format!("k: {key}\r\n"), opened)] {
            assert_eq!(serving.ask(line, &headers, ONE.as_bytes()).await.0, status, "{line} {headers}");
        }
    }
    let long = "x".repeat(4097);
    assert_eq!(serving.ask("POST /invocations", "k: i\r\n", long.as_bytes()).await.0, 413);
}

#[tokio::test]
async fn an_endpoint_may_generate_and_needs_a_model() {
    for (inference, part) in [
        (Inference::Generate, r#""OUT0":[5,6]"#),
        (Inference::GenerateStream, "data: {"),
        (Inference::Infer, "error"),
    ] {
        let options =
            SageMakerOptions { model: Some("first".into()), inference, ..SageMakerOptions::default() };
        let serving = serve(ModelControl::None, options, &[]).await;
        let (_, reply) = serving.text("POST /invocations", r#"{"IN0":[5,6]}"#).await;
        assert!(reply.contains(part), "{inference:?}: {reply}");
    }
    let serving = serve(ModelControl::None, SageMakerOptions::default(), &[]).await;
    assert_eq!(serving.text("POST /invocations", ONE).await.0, 404);
}
