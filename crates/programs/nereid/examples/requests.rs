//! Asks the model `identity` of a server within this program as often as its arguments say, one request after the other: what
//! `cargo xtask bench embedded` compares with the same in C. Arguments are the repository and how many requests.

use std::error::Error;

use nereid::{Request, Server, tensor};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let repository = arguments.next().ok_or("usage: requests REPOSITORY REQUESTS")?;
    let count: usize = arguments.next().ok_or("usage: requests REPOSITORY REQUESTS")?.parse()?;
    let server = Server::builder().model_repository(repository).start().await?;
    let values = [0.0_f32; 16];
    for _ in 0..count {
        let request = Request::new("identity").input(tensor("INPUT0", [1, 16], &values));
        let response = server.infer(request).await?;
        if response.outputs[0].contiguous()?.len() != size_of_val(&values) {
            return Err("the answer has another length".into());
        }
    }
    Ok(server.stop().await?)
}
