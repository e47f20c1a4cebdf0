//! Refusals and broken connections, by servers with scripted replies.

use std::time::Duration;

use nereid_client::{Code, Error, InferRequest, Options, Retry, Tensor};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

const DONE: &str = r#"{"model_name": "m", "outputs": []}"#;

fn reply(status: &str, headers: &str, body: &str) -> String {
    format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
}

/// Answers each connection with one of the replies; an empty one closes it. Returns the requests.
async fn server(replies: Vec<String>) -> (String, JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(async move {
        let mut requests = Vec::new();
        for reply in replies {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            let mut buffer = [0; 4096];
            while !String::from_utf8_lossy(&request).contains("\r\n\r\n") {
                let count = connection.read(&mut buffer).await.unwrap();
                request.extend_from_slice(&buffer[..count]);
            }
            connection.write_all(reply.as_bytes()).await.unwrap();
            requests.push(String::from_utf8_lossy(&request).into_owned());
        }
        requests
    });
    (url, task)
}

fn request() -> InferRequest {
    InferRequest::new("m").input(Tensor::new("x", [1], [1_u8]).unwrap())
}

fn options() -> Options {
    Options::new().binary_tensors(true).api_key("secret")
}

#[tokio::test]
async fn a_refused_request_is_sent_again() {
    let close = "connection: close\r\n";
    let busy = |status| reply(status, &format!("retry-after: 0\r\n{close}"), r#"{"error": "busy"}"#);
    let done = reply("200 OK", close, DONE);
    let (url, requests) = server(vec![busy("503 Busy"), busy("429 Slow"), done]).await;
    let response = options().http(&url).unwrap().infer(request()).await.unwrap();
    assert_eq!(response.model, "m");
    let requests = requests.await.unwrap();
    assert_eq!(requests.len(), 3);
    for request in requests {
        let head = request.to_lowercase();
        assert!(head.starts_with("post /v2/models/m/infer http/1.1\r\n"), "{head}");
        assert!(head.contains("authorization: bearer secret\r\n"), "{head}");
        assert!(head.contains("inference-header-content-length: "), "{head}");
    }
}

#[tokio::test]
async fn the_last_refusal_is_the_error() {
    let busy = reply("503 Busy", "retry-after: 0\r\nconnection: close\r\n", r#"{"error": "busy"}"#);
    let retry = Retry { attempts: 2, ..Retry::default() };
    let (url, _requests) = server(vec![busy.clone(), busy]).await;
    let error = options().retry(retry).http(&url).unwrap().infer(request()).await.unwrap_err();
    let retry_after = Some(Duration::ZERO);
    assert_eq!(error, Error::Status { code: Code::Unavailable, message: "busy".into(), retry_after });
}

#[tokio::test]
async fn a_request_whose_connection_broke_is_not_sent_again() {
    let cut = "HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{".to_owned();
    for reply in [String::new(), cut, "nonsense\r\n\r\n".to_owned()] {
        let (url, requests) = server(vec![reply.clone()]).await;
        let error = options().http(&url).unwrap().infer(request()).await.unwrap_err();
        assert!(matches!(error, Error::Lost(_)), "{reply}: {error:?}");
        assert_eq!(requests.await.unwrap().len(), 1);
        #[cfg(feature = "grpc")]
        {
            let (url, _requests) = server(vec![reply.clone()]).await;
            let error = options().grpc(&url).unwrap().infer(request()).await.unwrap_err();
            assert!(matches!(error, Error::Lost(_)), "{reply}: {error:?}");
        }
    }
}

#[tokio::test]
async fn a_server_that_is_not_there_is_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let millisecond = Duration::from_millis(1);
    let retry = Retry { attempts: 3, first_delay: millisecond, longest_delay: millisecond };
    let options = options().retry(retry);
    let error = options.http(&url).unwrap().infer(request()).await.unwrap_err();
    assert!(matches!(&error, Error::Connect(reason) if reason.contains("refused")), "{error:?}");
    #[cfg(feature = "grpc")]
    {
        let error = options.grpc(&url).unwrap().infer(request()).await.unwrap_err();
        assert!(matches!(&error, Error::Connect(reason) if reason.contains("refused")), "{error:?}");
    }
}

#[tokio::test]
async fn requests_can_be_sent_by_any_thread() {
    let options = options();
    let client = options.http("http://127.0.0.1:1").unwrap();
    let never = tokio::spawn(async move { client.infer(request()).await });
    never.abort();
    #[cfg(feature = "grpc")]
    {
        let client = options.grpc("http://127.0.0.1:1").unwrap();
        let never = tokio::spawn(async move {
            let (requests, mut responses) = client.stream();
            requests.send(request()).await?;
            responses.next().await?;
            client.infer(request()).await
        });
        never.abort();
    }
}
