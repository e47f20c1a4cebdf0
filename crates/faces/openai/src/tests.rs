//! The face over a socket, with models that a script plays.

mod access;
mod chat;
mod completions;
mod embeddings;
mod images;
mod metrics;
mod rerank;
mod responses;
mod streams;
mod tokenized;
mod tokens;
mod traces;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use nereid_core::backend_api::{
    Backend, BytesElements, DataType, Request, Response, Tensor, push_bytes_element,
};
use nereid_core::{ModelId, ModelSpec, Server, ServerOptions};
use nereid_http::{Router, TransportOptions, serve};
use nereid_net::listener::Address;
use nereid_protocol::{Access, Action, Authorizer, Denied, Identity};
use nereid_testkit::{ScriptedBackend, config};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::{AnswerStore, OpenAi, OpenAiOptions};

/// A model with all tensors of vLLM's backend.
const VLLM: &str = r#"
    model_transaction_policy { decoupled: true }
    input [
        { name: "text_input" data_type: TYPE_STRING dims: 1 },
        { name: "stream" data_type: TYPE_BOOL dims: 1 optional: true },
        { name: "sampling_parameters" data_type: TYPE_STRING dims: 1 optional: true },
        { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: 1 optional: true },
        { name: "return_finish_reason" data_type: TYPE_BOOL dims: 1 optional: true },
        { name: "return_num_input_tokens" data_type: TYPE_BOOL dims: 1 optional: true },
        { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: 1 optional: true },
        { name: "return_logprobs" data_type: TYPE_BOOL dims: 1 optional: true }
    ]
    output [
        { name: "text_output" data_type: TYPE_STRING dims: -1 },
        { name: "finish_reason" data_type: TYPE_STRING dims: -1 },
        { name: "num_input_tokens" data_type: TYPE_UINT32 dims: 1 },
        { name: "num_output_tokens" data_type: TYPE_UINT32 dims: -1 },
        { name: "logprobs" data_type: TYPE_STRING dims: -1 }
    ]
"#;

/// A model with inputs as TensorRT-LLM's ensembles have them.
const TENSORRT: &str = r#"
    max_batch_size: 8
    input [
        { name: "text_input" data_type: TYPE_STRING dims: 1 },
        { name: "max_tokens" data_type: TYPE_INT32 dims: 1 },
        { name: "stop_words" data_type: TYPE_STRING dims: -1 optional: true },
        { name: "temperature" data_type: TYPE_FP32 dims: 1 optional: true },
        { name: "seed" data_type: TYPE_UINT64 dims: 1 optional: true },
        { name: "stream" data_type: TYPE_BOOL dims: 1 optional: true },
        { name: "guided_decoding_guide_type" data_type: TYPE_STRING dims: 1 optional: true },
        { name: "guided_decoding_guide" data_type: TYPE_STRING dims: 1 optional: true }
    ]
    output [{ name: "text_output" data_type: TYPE_STRING dims: -1 }]
"#;

/// A template that shows its input.
const TEMPLATE: &str = r#"parameters { key: "chat_template" value { string_value:
    "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}{% if tools %}{{ tools|tojson }}\n{% endif %}>{{ begin }}" } }"#;

/// The requests to a model: the values of each input as JSON.
type Seen = Arc<Mutex<Vec<Value>>>;

/// A server on a free port, and the requests to its model `m`.
struct Site {
    server: Arc<Server>,
    address: SocketAddr,
    seen: Seen,
}

/// A response with a text and further outputs.
fn text_response(text: &str, others: impl IntoIterator<Item = Tensor>) -> Response {
    let mut contents = Vec::new();
    push_bytes_element(&mut contents, text.as_bytes()).unwrap();
    let mut outputs = vec![Tensor::new("text_output", DataType::Bytes, [1], contents)];
    outputs.extend(others);
    Response::new(outputs)
}

fn count(name: &str, count: u32) -> Tensor {
    Tensor::new(name, DataType::Uint32, [1], count.to_le_bytes().to_vec())
}

fn bytes(name: &str, text: &str) -> Tensor {
    let mut contents = Vec::new();
    push_bytes_element(&mut contents, text.as_bytes()).unwrap();
    Tensor::new(name, DataType::Bytes, [1], contents)
}

/// The inputs of a request as JSON.
fn inputs_of(request: &Request) -> Value {
    let inputs = request.inputs.iter().map(|input| {
        let contents = input.contiguous().unwrap();
        let value = match input.data_type {
            DataType::Bytes => {
                let texts = BytesElements::new(&contents)
                    .map(|text| String::from_utf8_lossy(text.unwrap()).into_owned());
                let texts: Vec<_> =
                    texts.map(|text| serde_json::from_str(&text).unwrap_or(Value::from(text))).collect();
                if texts.len() == 1 { texts[0].clone() } else { Value::from(texts) }
            }
            DataType::Bool => json!(contents[0] == 1),
            DataType::Int32 => {
                let (numbers, _) = contents.as_chunks();
                let numbers: Vec<i32> = numbers.iter().map(|bytes| i32::from_le_bytes(*bytes)).collect();
                if let [number] = numbers[..] { json!(number) } else { json!(numbers) }
            }
            DataType::Int64 => {
                let (numbers, _) = contents.as_chunks();
                numbers.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
            }
            DataType::Uint64 => json!(u64::from_le_bytes(contents[..8].try_into().unwrap())),
            DataType::Fp32 => json!(f32::from_le_bytes(contents[..4].try_into().unwrap())),
            other => panic!("{other}"),
        };
        (input.name.clone(), value)
    });
    Value::Object(inputs.collect())
}

/// A server whose model `m` has this configuration and does `script` with each request.
async fn site(text: &str, script: impl Fn(Request) + Send + Sync + 'static) -> Site {
    serving(text, OpenAiOptions::default(), &[], script).await
}

/// Like [`site`], with the models' files in this folder.
async fn site_in(folder: &Path, text: &str, script: impl Fn(Request) + Send + Sync + 'static) -> Site {
    serving_in(folder, text, OpenAiOptions::default(), &[], script).await
}

/// Like [`site`], with these options.
async fn site_with(
    text: &str,
    face: OpenAiOptions,
    script: impl Fn(Request) + Send + Sync + 'static,
) -> Site {
    serving(text, face, &[], script).await
}

/// Like [`site_with`], with further models of the same configuration.
async fn serving(
    text: &str,
    face: OpenAiOptions,
    further: &[&str],
    script: impl Fn(Request) + Send + Sync + 'static,
) -> Site {
    serving_in(Path::new("/nowhere"), text, face, further, script).await
}

async fn serving_in(
    folder: &Path,
    text: &str,
    face: OpenAiOptions,
    further: &[&str],
    script: impl Fn(Request) + Send + Sync + 'static,
) -> Site {
    let seen = Seen::default();
    let noted = Arc::clone(&seen);
    let backend: Arc<dyn Backend> = Arc::new(ScriptedBackend::answering(move |request| {
        noted.lock().unwrap().push(inputs_of(&request));
        script(request);
    }));
    let spec = |name: &str, text: &str| ModelSpec::new(ModelId::plain(name), folder, config(name, text), [1]);
    let plain = "output { name: 'OUT' data_type: TYPE_INT32 dims: 1 }";
    let mut source = BTreeMap::from([
        ("m".to_owned(), Ok(spec("m", &format!("{text} {TEMPLATE}")))),
        ("bare".to_owned(), Ok(spec("bare", text))),
        ("plain".to_owned(), Ok(spec("plain", plain))),
    ]);
    source.extend(further.iter().map(|name| ((*name).to_owned(), Ok(spec(name, text)))));
    let options = ServerOptions { name: "test".into(), load_threads: 1, ..ServerOptions::default() };
    let server = Server::new(options, BTreeMap::from([("scripted".to_owned(), backend)]), Arc::new(source));
    assert!(server.start(None).unwrap().is_empty());
    let listener = Address::tcp("127.0.0.1", 0).bind().unwrap().listen(None).unwrap();
    let address = listener.local_addr().unwrap().tcp().unwrap();
    let router = Router::from(OpenAi::new(Arc::clone(&server), face));
    tokio::spawn(serve(listener, router, TransportOptions::default(), CancellationToken::new()));
    Site { server, address, seen }
}

/// The status, the head and the body of a reply.
struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The data of the events, without the closing mark, which has to be there.
    fn events(&self) -> Vec<Value> {
        let mut events: Vec<_> = self.body.split("\n\n").filter(|event| !event.is_empty()).collect();
        assert_eq!(events.pop(), Some("data: [DONE]"), "{}", self.body);
        events
            .iter()
            .map(|event| serde_json::from_str(event.strip_prefix("data: ").unwrap()).unwrap())
            .collect()
    }
}

impl Site {
    /// A connection on which a request was sent, with these headers.
    async fn connect(&self, method: &str, path: &str, headers: &str, body: &str) -> TcpStream {
        let mut stream = TcpStream::connect(self.address).await.unwrap();
        let length = body.len();
        let head =
            format!("{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n{headers}\r\n");
        stream.write_all(&[head.as_bytes(), body.as_bytes()].concat()).await.unwrap();
        stream
    }

    async fn ask(&self, method: &str, path: &str, body: &str) -> Answer {
        let mut stream = self.connect(method, path, "Connection: close\r\n", body).await;
        let mut text = String::new();
        stream.read_to_string(&mut text).await.unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let body =
            if head.contains("transfer-encoding: chunked") { unchunked(body) } else { body.to_owned() };
        Answer { status: head[9..12].parse().unwrap(), head: head.to_owned(), body }
    }

    async fn post(&self, path: &str, body: &Value) -> Answer {
        self.ask("POST", path, &body.to_string()).await
    }

    /// The model's last request.
    fn last_seen(&self) -> Value {
        self.seen.lock().unwrap().last().unwrap().clone()
    }
}

fn unchunked(mut body: &str) -> String {
    let mut whole = String::new();
    while let Some((length, rest)) = body.split_once("\r\n") {
        let length = usize::from_str_radix(length, 16).unwrap();
        whole.push_str(&rest[..length]);
        body = &rest[length + 2..];
    }
    whole
}

/// Answers with words, one response each, and counts tokens: one for each word, and 5 for the prompt.
fn words(words: &'static [&'static str]) -> impl Fn(Request) + Send + Sync + 'static {
    move |request| {
        for word in words {
            let counts = [count("num_input_tokens", 5), count("num_output_tokens", 1)];
            request.responder().send(Ok(text_response(word, counts)));
        }
        request.responder().finish();
    }
}

#[tokio::test]
async fn models_with_the_contract_are_listed_and_described() {
    let site = site(VLLM, words(&["a"])).await;
    let list = site.ask("GET", "/v1/models", "").await.json();
    let names: Vec<_> =
        list["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect();
    assert_eq!((list["object"].as_str(), names), (Some("list"), vec!["bare", "m"]));
    let model = site.ask("GET", "/v1/models/m", "").await.json();
    assert_eq!((&model["id"], &model["object"]), (&json!("m"), &json!("model")));
    for unknown in ["plain", "unknown"] {
        let answer = site.ask("GET", &format!("/v1/models/{unknown}"), "").await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("model_not_found")));
    }
}

/// Permits the models of these names.
#[derive(Debug)]
struct Only(&'static [&'static str]);

impl Authorizer for Only {
    fn check(&self, _: &Identity, _: Action, model: Option<&str>) -> Result<(), Denied> {
        match model {
            Some(model) if !self.0.contains(&model) => Err(Denied::Forbidden("no right".into())),
            _ => Ok(()),
        }
    }
}

#[tokio::test]
async fn rights_are_those_on_the_model_that_a_name_with_a_colon_means() {
    for (permitted, name, status) in [
        (&["m"][..], "m", 200),
        (&["m"], "m:x", 400),
        (&["m:x"], "m:x", 200),
        (&["m:x"], "m", 403),
        // An adapter, which this model has no input for.
        (&["m"], "m:y", 400),
        (&["m:y"], "m:y", 400),
        (&["m:y"], "m", 403),
        (&["m:y"], "m:z", 403),
        (&["m:"], "m", 403),
        (&[], "m:y", 403),
        (&[], "unknown", 403),
    ] {
        let access = Access::default().with_authorizer(Arc::new(Only(permitted)));
        let options = OpenAiOptions { access, ..OpenAiOptions::default() };
        let site = serving(TENSORRT, options, &["m:x"], words(&["a"])).await;
        let request = json!({"model": name, "prompt": "a"});
        assert_eq!(site.post("/v1/completions", &request).await.status, status, "{permitted:?} {name}");
    }
}

#[tokio::test]
async fn further_path_has_the_same_routes_and_no_others() {
    let path_prefix = Some("/serving/openai".parse().unwrap());
    let options = OpenAiOptions { path_prefix, ..OpenAiOptions::default() };
    let site = site_with(VLLM, options, words(&["a"])).await;
    let request = json!({"model": "m", "prompt": "a"});
    for (path, status) in [
        ("/serving/openai/v1/completions", 200),
        ("/v1/completions", 200),
        ("/serving/v1/completions", 404),
        ("/serving/openai/completions", 404),
        ("/serving/openai//v1/completions", 404),
        ("/serving/openai/../openai/v1/completions", 404),
        ("/serving/openai/serving/openai/v1/completions", 404),
        ("/serving/openai/v1/models", 405),
    ] {
        let answer = site.post(path, &request).await;
        assert_eq!(answer.status, status, "{path}");
        if path.starts_with("/serving/openai/") && status != 200 {
            assert_eq!(answer.json()["error"]["type"], "invalid_request_error", "{path}");
        }
    }
    let model = site.ask("GET", "/serving/openai/v1/models/m", "").await.json();
    assert_eq!(model["id"], "m");
    let stored = site.post("/serving/openai/v1/responses", &json!({"model": "m", "input": "a"})).await.json();
    let id = stored["id"].as_str().unwrap();
    assert_eq!(site.ask("GET", &format!("/v1/responses/{id}"), "").await.json()["id"], id);
}

#[tokio::test]
async fn errors_of_the_transport_have_the_form_of_the_face() {
    let site = site(VLLM, words(&["a"])).await;
    for (method, path, body, status) in [
        ("GET", "/v1/unknown", "", 404),
        ("GET", "/v1/chat/completions", "", 405),
        ("POST", "/v1/chat/completions", "{", 400),
        ("POST", "/v1/chat/completions", "{}", 400),
        ("POST", "/v1/completions", "{\"model\": \"unknown\"}", 404),
        ("POST", "/v1/completions", "{\"model\": \"plain\", \"prompt\": \"a\"}", 400),
    ] {
        let answer = site.ask(method, path, body).await;
        let json = answer.json();
        assert_eq!(answer.status, status, "{path}: {json}");
        assert_eq!(json["error"]["type"], "invalid_request_error");
        assert_eq!(json["error"]["message"], json["detail"]);
    }
}
