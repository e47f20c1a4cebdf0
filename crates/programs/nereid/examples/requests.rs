//! Sends requests to the model `identity` of an embedded server, one after the other; `cargo xtask bench embedded`
//! compares the time with that of the same program in C. Arguments: the repository and the number of requests.

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
