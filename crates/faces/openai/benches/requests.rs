//! The cost of OpenAI's interface for a request and for a token, over a model that answers at once.
//!
//! `cargo bench -p nereid-openai` prints microseconds of processor time. One thread runs client, transport, face and model, and
//! a face that sends bytes back is measured in the same way, so the difference is the cost of the face with the server's core.

use std::collections::BTreeMap;
use std::fs;
use std::future::ready;
use std::sync::Arc;

use hyper::http::request::Parts;
use hyper::{Method, StatusCode};
use nereid_core::backend_api::{Backend, DataType, Request, Response, Tensor, push_bytes_element};
use nereid_core::{ModelId, ModelSpec, Server, ServerOptions};
use nereid_http::{
    Call, Face, Limit, PendingReply, Properties, RequestBody, Route, RouteId, RouteMatch, Router, Routes,
    TransportOptions, reply, serve,
};
use nereid_net::listener::Address;
use nereid_openai::{OpenAi, OpenAiOptions};
use nereid_protocol::Action;
use nereid_testkit::{ScriptedBackend, ScriptedModel, config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

const REQUESTS: u32 = 2000;
const STREAMS: u32 = 20;
const TOKENS: usize = 2000;
const ROUNDS: u32 = 10;

const MODEL: &str = r#"
    model_transaction_policy { decoupled: true }
    input [
        { name: "text_input" data_type: TYPE_STRING dims: 1 },
        { name: "stream" data_type: TYPE_BOOL dims: 1 optional: true },
        { name: "sampling_parameters" data_type: TYPE_STRING dims: 1 optional: true },
        { name: "exclude_input_in_output" data_type: TYPE_BOOL dims: 1 optional: true },
        { name: "return_num_output_tokens" data_type: TYPE_BOOL dims: 1 optional: true }
    ]
    output [
        { name: "text_output" data_type: TYPE_STRING dims: -1 },
        { name: "num_output_tokens" data_type: TYPE_UINT32 dims: -1 }
    ]
    parameters { key: "chat_template" value { string_value:
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n" } }
"#;

const BODY: &str = r#"{"model": "m", "temperature": 0.5, "max_tokens": 100000, "stream": STREAM, "messages": [
    {"role": "system", "content": "You are a helpful assistant."},
    {"role": "user", "content": "What is the capital of France, and since when?"}]}"#;

/// Sends a fixed body of the size of an answer.
struct Bare(Properties);

static ROUTES: Routes<()> = Routes::new({
    const ALL: &[Route<()>] = &[Route::new(Method::POST, "/bare", Action::Page, ())];
    ALL
});

impl Face for Bare {
    fn properties(&self) -> &Properties {
        &self.0
    }

    fn find<'a>(&self, head: &'a Parts) -> RouteMatch<'a> {
        ROUTES.find(head)
    }

    fn perform<'a>(&'a self, _: RouteId, _: &'a Call<'a>, _: RequestBody) -> PendingReply<'a> {
        Box::pin(ready(reply::json_bytes(StatusCode::OK, vec![b' '; 350])))
    }
}

/// A response with one token.
fn token() -> Response {
    let mut contents = Vec::new();
    push_bytes_element(&mut contents, b" token").expect("a short text");
    let text = Tensor::new("text_output", DataType::Bytes, [1], contents);
    let count = Tensor::new("num_output_tokens", DataType::Uint32, [1], 1_u32.to_le_bytes().to_vec());
    Response::new(vec![text, count])
}

/// Answers with one token, or with many to a request that streams.
fn answer(request: Request) {
    let is_stream = request.inputs.iter().any(|input| {
        input.name == "stream" && input.contiguous().is_ok_and(|contents| contents.first() == Some(&1))
    });
    for _ in 1..if is_stream { TOKENS } else { 1 } {
        request.responder().send(Ok(token()));
    }
    request.responder().finish_with(Ok(token()));
}

fn server() -> Arc<Server> {
    let model = ScriptedModel::new(|batch| batch.into_requests().into_iter().for_each(answer)).at_once();
    let backend: Arc<dyn Backend> = Arc::new(ScriptedBackend::from(model));
    let spec = ModelSpec::new(ModelId::plain("m"), "/nowhere", config("m", MODEL), [1]);
    let source = BTreeMap::from([("m".to_owned(), Ok(spec))]);
    let options = ServerOptions { load_threads: 1, max_unread: usize::MAX, ..ServerOptions::default() };
    let server = Server::new(options, BTreeMap::from([("scripted".to_owned(), backend)]), Arc::new(source));
    assert!(server.start(None).expect("models are loaded").is_empty());
    server
}

/// Nanoseconds that this thread has run.
fn processor_time() -> f64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").expect("Linux");
    text.split(' ').next().and_then(|first| first.parse().ok()).expect("a number")
}

/// Microseconds of one request with this body: the least of several rounds, because the machine may do other work, too.
async fn measure(stream: &mut TcpStream, path: &str, body: &str, end: &[u8], count: u32) -> f64 {
    let request = format!("POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    let mut received = vec![0; 1 << 20];
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let begin = processor_time();
        for _ in 0..count {
            stream.write_all(request.as_bytes()).await.expect("the server reads");
            let mut length = 0;
            while !received.get(..length).is_some_and(|bytes| bytes.ends_with(end)) {
                length = match stream.read(received.get_mut(length..).unwrap_or_default()).await {
                    Ok(more) if more > 0 => length + more,
                    other => panic!("{other:?}: {}", String::from_utf8_lossy(&received[..length])),
                };
            }
            assert!(
                received.starts_with(b"HTTP/1.1 200"),
                "{}",
                String::from_utf8_lossy(&received[..length])
            );
        }
        least = least.min((processor_time() - begin) / 1000.0 / f64::from(count));
    }
    least
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let address = Address::tcp("127.0.0.1", 0);
    let listener = address.bind().expect("a free port").listen(None).expect("a listener");
    let address = listener.local_addr().expect("an address").tcp().expect("a port");
    let bare = Bare(Properties { body_limit: Limit { bytes: 1 << 20, option: "" }, ..Properties::default() });
    let router = Router::from(OpenAi::new(server(), OpenAiOptions::default())).and(bare);
    tokio::spawn(serve(listener, router, TransportOptions::default(), CancellationToken::new()));
    let mut stream = TcpStream::connect(address).await.expect("a connection");
    let (whole, streamed) = (BODY.replace("STREAM", "false"), BODY.replace("STREAM", "true"));
    let bare = measure(&mut stream, "/bare", &whole, b"  ", REQUESTS).await;
    let chat = measure(&mut stream, "/v1/chat/completions", &whole, b"}", REQUESTS).await;
    let long = measure(&mut stream, "/v1/chat/completions", &streamed, b"\r\n0\r\n\r\n", STREAMS).await;
    println!("bare request: {bare:.1} us, chat completion: {chat:.1} us, difference: {:.1} us", chat - bare);
    println!("stream of {TOKENS} tokens: {long:.0} us, {:.2} us a token", (long - chat) / TOKENS as f64);
}
