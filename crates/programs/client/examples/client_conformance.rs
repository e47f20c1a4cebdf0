//! Checks the client against a running server, for the end-to-end tests: `client_conformance http|grpc URL [CA]` against a server of
//! Triton's protocol that has their models and the name `tested`, `client_conformance plain URL` against one of KServe v2 alone.

use std::env;
use std::error::Error as StdError;
use std::fmt::Debug;
use std::time::Duration;

use half::{bf16, f16};
use nereid_client::{
    Code, Element, Error, InferRequest, LoadOverrides, ModelState, Options, Parameter, RequestedOutput,
    Retry, Scheduling, SharedMemory, Tensor, Tls, grpc, http,
};
use serde_json::json;
use tokio::time::sleep;

/// The interval of polls.
const PAUSE: Duration = Duration::from_millis(5);

type Outcome = Result<(), Box<dyn StdError>>;

/// The checks of both clients, which have the same methods.
macro_rules! checks {
    ($module:ident, $client:ty) => {
        mod $module {
            use super::*;

            pub(super) async fn run(client: &$client) -> Outcome {
                // A check that fails or hangs is the last one that is named.
                eprintln!("health");
                health(client).await?;
                eprintln!("every data type");
                every_data_type(client).await?;
                eprintln!("documents");
                documents(client).await?;
                eprintln!("classes and errors");
                classes(client).await?;
                errors(client).await?;
                eprintln!("shared memory");
                shared_memory(client).await?;
                eprintln!("models come and go");
                models_come_and_go(client).await
            }

            async fn health(client: &$client) -> Outcome {
                assert!(client.is_live().await? && client.is_ready().await?);
                assert!(client.is_model_ready("echo_FP32", None).await?);
                assert!(client.is_model_ready("echo_FP32", Some("1")).await?);
                assert!(!client.is_model_ready("echo_FP32", Some("2")).await?);
                assert!(!client.is_model_ready("nobody", None).await?);
                Ok(())
            }

            async fn echo(client: &$client, tensor: Tensor) -> Result<Tensor, Error> {
                let model = format!("echo_{}", tensor.data_type());
                let response = client.infer(InferRequest::new(&model).id("7").input(tensor)).await?;
                assert_eq!((response.model.as_str(), response.version.as_str()), (model.as_str(), "1"));
                assert_eq!(response.id, "7");
                response.output("OUTPUT0").cloned()
            }

            async fn numbers<T: Element + PartialEq + Debug>(client: &$client, elements: [T; 2]) -> Outcome {
                let found = echo(client, Tensor::new("INPUT0", [2], elements)?).await?;
                assert_eq!((found.to_vec::<T>()?.as_slice(), found.shape()), (&elements[..], &[2][..]));
                Ok(())
            }

            async fn every_data_type(client: &$client) -> Outcome {
                numbers(client, [true, false]).await?;
                numbers(client, [0, u8::MAX]).await?;
                numbers(client, [0, u16::MAX]).await?;
                numbers(client, [0, u32::MAX]).await?;
                numbers(client, [0, u64::MAX]).await?;
                numbers(client, [i8::MIN, i8::MAX]).await?;
                numbers(client, [i16::MIN, i16::MAX]).await?;
                numbers(client, [i32::MIN, i32::MAX]).await?;
                numbers(client, [i64::MIN, i64::MAX]).await?;
                numbers(client, [f16::MIN, f16::EPSILON]).await?;
                numbers(client, [bf16::MIN, bf16::EPSILON]).await?;
                numbers(client, [f32::MIN, f32::NEG_INFINITY]).await?;
                numbers(client, [f64::MIN, f64::INFINITY]).await?;
                let texts: [&[u8]; 3] = [b"", "ü".as_bytes(), &[0, 255]];
                let found = echo(client, Tensor::strings("INPUT0", [3], texts)?).await?;
                assert_eq!(found.to_byte_strings()?, texts);
                let empty = echo(client, Tensor::new::<f32>("INPUT0", [0], [])?).await?;
                assert_eq!(empty.shape(), [0]);
                let large = vec![0.5_f32; 1 << 20];
                let found = echo(client, Tensor::new("INPUT0", [large.len()], &large)?).await?;
                assert!(found.to_vec::<f32>()? == large);
                Ok(())
            }

            async fn documents(client: &$client) -> Outcome {
                let server = client.server_metadata().await?;
                assert_eq!(server.name, "tested");
                assert!(server.extensions.iter().any(|name| name == "model_repository"), "{server:?}");
                let metadata = client.model_metadata("echo_INT16", None).await?;
                assert_eq!(metadata.versions, ["1"]);
                assert_eq!(metadata.inputs[0].data_type.protocol_name(), "INT16");
                assert_eq!((metadata.inputs[0].name.as_str(), &metadata.inputs[0].shape[..]), ("INPUT0", &[-1][..]));
                assert_eq!(metadata.outputs[0].name, "OUTPUT0");
                let config = client.model_config("batched", None).await?;
                assert_eq!((config.name.as_str(), config.backend.as_str(), config.max_batch_size), ("batched", "echo", 8));
                assert_eq!(config.inputs[0].dims, [4]);
                assert_eq!(config.parameters["color"], "blue");
                let Scheduling::DynamicBatching { preferred_batch_sizes, max_queue_delay } = config.scheduling else {
                    panic!("{config:?}");
                };
                assert_eq!((preferred_batch_sizes, max_queue_delay), (vec![4, 8], Duration::from_micros(250)));
                assert!(client.model_config("words", None).await?.is_decoupled);
                let before = client.statistics(Some("batched")).await?.remove(0);
                let rows = Tensor::new("INPUT0", [2, 4], [0_i32; 8])?;
                client.infer(InferRequest::new("batched").version("1").input(rows)).await?;
                // The reference counts a request after its response, part by part.
                let after = loop {
                    let after = client.statistics(Some("batched")).await?.remove(0);
                    if after.inference_count > before.inference_count
                        && after.success.count > before.success.count
                        && after.last_inference > 0
                    {
                        break after;
                    }
                    sleep(PAUSE).await;
                };
                assert_eq!((after.name.as_str(), after.version.as_str()), ("batched", "1"));
                assert_eq!(after.inference_count, before.inference_count + 2);
                assert_eq!(after.success.count, before.success.count + 1);
                assert!(after.success.total > before.success.total, "{before:?} {after:?}");
                assert_eq!(after.batches[0].batch_size, 2);
                let all = client.statistics(None).await?;
                assert!(all.iter().any(|model| model.name == "words"), "{all:?}");
                Ok(())
            }

            async fn classes(client: &$client) -> Outcome {
                let input = Tensor::new("INPUT0", [3], [0.5_f32, 2.5, 1.5])?;
                let output = RequestedOutput::new("OUTPUT0").classes(2);
                let response = client.infer(InferRequest::new("echo_FP32").input(input).output(output)).await?;
                assert_eq!(response.output("OUTPUT0")?.to_strings()?, ["2.500000:1", "1.500000:2"]);
                Ok(())
            }

            async fn errors(client: &$client) -> Outcome {
                let input = Tensor::new("INPUT0", [1], [1_f32])?;
                let request = InferRequest::new("echo_FP32").input(input.clone());
                for (request, code, words) in [
                    (request.clone().output("y"), Code::InvalidArgument, "y"),
                    (InferRequest::new("echo_FP32").input(input.clone().renamed("x")), Code::InvalidArgument, "x"),
                    (InferRequest::new("echo_INT32").input(input.clone()), Code::InvalidArgument, "INT32"),
                ] {
                    let error = client.infer(request).await.unwrap_err();
                    assert_eq!(error.code(), Some(code), "{error}");
                    assert!(error.to_string().contains(words), "{error}");
                }
                // Servers disagree about the code.
                let unknown = client.infer(InferRequest::new("nobody").input(input)).await.unwrap_err();
                assert!(unknown.to_string().contains("nobody"), "{unknown}");
                let error = client.infer(request.deadline(Duration::ZERO)).await.unwrap_err();
                assert_eq!(error, Error::Deadline(Duration::ZERO));
                Ok(())
            }

            async fn shared_memory(client: &$client) -> Outcome {
                let name = format!("client-conformance-{}", std::process::id());
                let memory = SharedMemory::create(&name, 4096)?;
                client.register(&memory).await?;
                let regions = client.regions().await?;
                let region = regions.iter().find(|region| region.name == name).expect("a registered region");
                assert_eq!((region.key.as_str(), region.size), (format!("/{name}").as_str(), 4096));
                let input = memory.store(64, &Tensor::new("INPUT0", [4], [1_i64, 2, 3, i64::MAX])?)?;
                let output = RequestedOutput::new("OUTPUT0").in_region(&memory, 2048, 512);
                let response = client.infer(InferRequest::new("echo_INT64").input(input).output(output)).await?;
                let output = response.output("OUTPUT0")?;
                assert!(output.bytes().is_err());
                assert_eq!(memory.load(output)?.to_vec::<i64>()?, [1, 2, 3, i64::MAX]);
                assert!(client.register(&memory).await.is_err());
                client.unregister(Some(&name)).await?;
                assert!(client.regions().await?.iter().all(|region| region.name != name));
                Ok(())
            }

            async fn models_come_and_go(client: &$client) -> Outcome {
                let state = async || -> Result<_, Error> {
                    let index = client.index().await?;
                    Ok(index.into_iter().find(|entry| entry.name == "echo_UINT8").map(|entry| entry.state))
                };
                assert_eq!(state().await?, Some(ModelState::Ready));
                client.unload("echo_UINT8").await?;
                // The reference unloads in the background.
                while client.is_model_ready("echo_UINT8", None).await? {
                    sleep(PAUSE).await;
                }
                assert_ne!(state().await?, Some(ModelState::Ready));
                let tensor = |data_type| format!(r#"[{{"name": "INPUT0", "data_type": "{data_type}", "dims": [-1]}}]"#);
                let inputs = tensor("TYPE_UINT8");
                let config = format!(
                    r#"{{"backend": "echo", "max_batch_size": 0, "input": {inputs}, "output": {}, "parameters": {{"n": {{"string_value": "1"}}}}}}"#,
                    inputs.replace("INPUT0", "OUTPUT0")
                );
                client.load_with("echo_UINT8", &LoadOverrides::default().config(config)).await?;
                assert_eq!(client.model_config("echo_UINT8", None).await?.parameters["n"], "1");
                client.load("echo_UINT8").await?;
                numbers(client, [1_u8, 2]).await?;
                assert!(client.load("nobody").await.is_err());
                Ok(())
            }
        }
    };
}

checks!(over_http, http::Client);
checks!(over_grpc, grpc::Client);

/// Words of a decoupled model, and of two requests on one stream.
async fn grpc_streams(client: &grpc::Client) -> Outcome {
    let request = |text: &str, id: &str| -> Result<_, Error> {
        let input = Tensor::strings("TEXT", [1], [text])?;
        let request = InferRequest::new("words").id(id).input(input);
        Ok(request.parameter("triton_enable_empty_final_response", true))
    };
    let mut responses = client.infer_stream(request("to be or", "1")?).await?;
    let mut words = Vec::new();
    while let Some(response) = responses.next().await? {
        if response.is_final() && response.outputs.is_empty() {
            break;
        }
        words.extend(response.outputs[0].to_strings()?);
    }
    assert_eq!(words, ["to", "be", "or"]);
    let (requests, mut responses) = client.stream();
    requests.send(request("a b", "1")?).await?;
    requests.send(request("c d", "2")?).await?;
    drop(requests);
    let (mut ends, mut texts) = (0, Vec::new());
    while let Some(response) = responses.next().await? {
        ends += usize::from(response.is_final());
        for output in &response.outputs {
            texts.extend(output.to_strings()?.into_iter().map(|text| (response.id.clone(), text)));
        }
    }
    texts.sort();
    assert_eq!(ends, 2);
    assert_eq!(
        texts,
        [("1", "a"), ("1", "b"), ("2", "c"), ("2", "d")].map(|(id, text)| (id.into(), text.into()))
    );
    // A stream goes on after a request that fails.
    let (requests, mut responses) = client.stream();
    requests.send(InferRequest::new("nobody")).await?;
    let error = responses.next().await.unwrap_err();
    assert!(error.to_string().contains("nobody"), "{error}");
    requests.send(request("e", "3")?).await?;
    let response = responses.next().await?.expect("a response");
    assert_eq!(response.output("WORD")?.to_strings()?, ["e"]);
    Ok(())
}

async fn http_streams(client: &http::Client) -> Outcome {
    let mut events = client.generate_stream("words", &json!({"TEXT": "to be or"})).await?;
    let mut words = Vec::new();
    while let Some(event) = events.next().await? {
        words.push(event["WORD"].as_str().unwrap_or_default().to_owned());
    }
    assert_eq!(words, ["to", "be", "or"]);
    let error = client.generate_stream("nobody", &json!({})).await.unwrap_err();
    assert!(error.to_string().contains("nobody"), "{error}");
    Ok(())
}

/// A server without any extension.
async fn plain(url: &str) -> Outcome {
    let client = http::Client::new(url)?;
    assert!(client.is_live().await? && client.is_ready().await?);
    assert!(client.is_model_ready("echo", None).await? && !client.is_model_ready("nobody", None).await?);
    assert_eq!(client.server_metadata().await?.name, "plain");
    assert_eq!(client.model_metadata("echo", None).await?.inputs[0].shape, [-1, 2]);
    let input = Tensor::new("x", [1, 2], [0.1_f32, -2.0])?;
    let request = InferRequest::new("echo").input(input.clone()).parameter("n", Parameter::Int(1));
    let response = client.infer(request).await?;
    assert_eq!(response.output("y")?, &input.renamed("y"));
    let error = client.infer(InferRequest::new("echo").input(Tensor::new("x", [1], [f32::NAN])?)).await;
    assert!(error.unwrap_err().to_string().contains("JSON cannot represent"));
    for error in [client.model_config("echo", None).await.map(drop), client.statistics(None).await.map(drop)]
    {
        assert_eq!(error.unwrap_err().code(), Some(Code::NotFound));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Outcome {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [kind, url, rest @ ..] = arguments.as_slice() else {
        return Err("usage: KIND URL [CA]".into());
    };
    if kind == "plain" {
        plain(url).await?;
        println!("conforms");
        return Ok(());
    }
    let mut options = Options::new().deadline(Duration::from_secs(60)).retry(Retry::NEVER);
    if let Ok(key) = env::var("API_KEY") {
        options = options.api_key(&key);
    }
    if let Some(authorities) = rest.first() {
        options = options.tls(Tls::new().authorities(authorities));
    }
    if kind == "grpc" {
        let client = options.grpc(url)?;
        over_grpc::run(&client).await?;
        grpc_streams(&client).await?;
    } else {
        let client = options.http(url)?;
        over_http::run(&client).await?;
        http_streams(&client).await?;
    }
    println!("conforms");
    Ok(())
}
