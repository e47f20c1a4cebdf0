//! The five tasks of docs/clients.md: `cargo run -p nereid-client --example tasks`.

use std::env;
use std::time::Duration;

use nereid_client::{Error, InferRequest, Tensor, grpc, http};
use tokio::time::sleep;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut addresses = env::args().skip(1);
    let client = http::Client::new(&addresses.next().unwrap_or("localhost:8000".into()))?;
    while !client.is_ready().await? {
        sleep(Duration::from_millis(100)).await;
    }
    println!("ready");

    let signature = client.model_metadata("identity_fp32", None).await?;
    let input = &signature.inputs[0];
    println!("{} {} {}", input.name, input.data_type, format!("{:?}", input.shape).replace(' ', ""));

    let numbers = Tensor::new("INPUT0", [1, 3], [1.5_f32, 2.0, 0.1])?;
    let response = client.infer(InferRequest::new("identity_fp32").input(numbers)).await?;
    let answer = response.output("OUTPUT0")?.to_vec::<f32>()?;
    println!("[{}]", answer.iter().map(f32::to_string).collect::<Vec<_>>().join(","));

    let text = Tensor::strings("text", [1], ["one by one"])?;
    let streaming = grpc::Client::new(&addresses.next().unwrap_or("localhost:8001".into()))?;
    let mut responses = streaming.infer_stream(InferRequest::new("stream_words").input(text)).await?;
    let mut words = Vec::new();
    while let Some(response) = responses.next().await? {
        words.extend(response.output("word")?.to_strings()?);
    }
    println!("{}", words.join(" "));

    let statistics = client.statistics(Some("identity_fp32")).await?;
    println!("{} requests", statistics[0].success.count);
    Ok(())
}
