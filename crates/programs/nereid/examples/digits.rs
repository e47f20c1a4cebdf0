//! Reads a handwritten digit with a server inside this program: `cargo run -p nereid --example digits examples/images/digit_3.pgm`.

use std::error::Error;
use std::path::Path;

use nereid::{Request, Server, elements, tensor};

/// The model's opinion of an image: the likeliest digit and its probability.
pub async fn classify(server: &Server, image: &Path) -> Result<(usize, f32), Box<dyn Error>> {
    // The numbers of a PGM in text: width, height and the largest value, then the pixels.
    let text = std::fs::read_to_string(image)?;
    let numbers: Vec<f32> = text.split_whitespace().skip(1).map(str::parse).collect::<Result<_, _>>()?;
    let pixels: Vec<f32> = numbers.iter().skip(3).map(|pixel| pixel / numbers[2]).collect();
    let request =
        Request::new("digits").input(tensor("image", [1, 1, 8, 8], &pixels)).output("probabilities");
    let response = server.infer(request).await?;
    let probabilities: Vec<f32> = elements(response.output("probabilities")?)?;
    let best = probabilities.into_iter().enumerate().max_by(|(_, one), (_, other)| one.total_cmp(other));
    best.ok_or_else(|| "the model returned nothing".into())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let image = std::env::args().nth(1).ok_or("usage: digits IMAGE.pgm")?;
    let server = Server::builder().model_repository("examples/model_repository").start().await?;
    let (digit, probability) = classify(&server, Path::new(&image)).await?;
    println!("{digit} ({:.0} %)", probability * 100.0);
    Ok(server.stop().await?)
}
