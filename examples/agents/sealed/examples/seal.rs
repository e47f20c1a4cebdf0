//! Encrypts a file of a model for the agent `sealed`.
//!
//! `cargo run -p sealed-agent --example seal -- KEY_FILE MODEL_FOLDER 1/model.onnx` writes `1/model.onnx.sealed`. A key file that
//! does not exist is made. Remove the plain file yourself.

use std::error::Error;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;

use ring::rand::{SecureRandom, SystemRandom};

#[allow(dead_code, reason = "a model is only encrypted here")]
#[path = "../src/stream.rs"]
mod stream;

use stream::{KEY, Key};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    let [key_file, folder, path] = arguments.as_slice() else {
        return Err("expected: KEY_FILE MODEL_FOLDER FILE".into());
    };
    let random = SystemRandom::new();
    let fill = |bytes: &mut [u8]| random.fill(bytes).map_err(|_| "the system has no random numbers");
    if !Path::new(key_file).exists() {
        let mut key = [0; KEY];
        fill(&mut key)?;
        fs::write(key_file, key)?;
    }
    let key = Key::new(&fs::read(key_file)?)?;
    let mut prefix = [0; 7];
    fill(&mut prefix)?;
    let plain = Path::new(folder).join(path);
    let mut writer = BufWriter::new(File::create(format!("{}.sealed", plain.display()))?);
    key.seal(path, prefix, BufReader::new(File::open(&plain)?), &mut writer)?;
    Ok(writer.flush()?)
}
