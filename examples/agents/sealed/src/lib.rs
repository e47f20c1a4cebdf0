//! The repository agent `sealed`: decrypts the files of a model before it is loaded.
//!
//! A model's files that end with `.sealed` are decrypted into a folder that the server removes when the model is
//! unloaded; others are copied. The parameter `key_file` names a file with the key. `cargo run --example seal` encrypts
//! a model.
#![forbid(unsafe_code)]

#[allow(dead_code, reason = "the agent only decrypts")]
mod stream;

use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write};
use std::path::Path;

use triton_repoagent::{Agent, Error, Loading, Place, Result, export_agent};

use crate::stream::{KEY, Key};

/// The suffix of encrypted files.
const ENDING: &str = ".sealed";

/// The deepest nesting of folders: a link may form a cycle.
const DEPTH: usize = 16;

struct Sealed;

impl Agent for Sealed {
    type Model = ();

    fn start() -> Result<Self> {
        Ok(Self)
    }

    fn load(&self, model: &mut Loading<'_>) -> Result<()> {
        let from = match model.place()? {
            Place::Folder(folder) => folder,
            Place::Remote(address) => {
                return Err(Error::unsupported(format!("'{address}' is not on this machine")));
            }
        };
        let key_file = model.parameter("key_file")?;
        let key_file =
            key_file.ok_or_else(|| Error::invalid_argument("the parameter 'key_file' is missing"))?;
        let key = read_key(Path::new(&key_file)).map_err(|error| {
            Error::invalid_argument(format!("cannot read the key in '{key_file}': {error}"))
        })?;
        let to = model.acquire()?;
        decrypt(&key, &from, &to, "", DEPTH)?;
        model.move_to(&Place::Folder(to))
    }
}

export_agent!(Sealed);

fn read_key(path: &Path) -> std::io::Result<Key> {
    use std::io::Read;
    let mut bytes = Vec::new();
    // Reading one byte more than a key reveals a file that is not a key.
    File::open(path)?.take(KEY as u64 + 1).read_to_end(&mut bytes)?;
    Key::new(&bytes)
}

/// Decrypts and copies a folder, whose path in the model is `prefix`.
fn decrypt(key: &Key, from: &Path, to: &Path, prefix: &str, depth: usize) -> Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (source, name) = (entry.path(), entry.file_name().to_string_lossy().into_owned());
        if source.is_dir() {
            if depth == 0 {
                return Err(Error::invalid_argument(format!("'{prefix}{name}' is nested too deep")));
            }
            let folder = to.join(&name);
            fs::create_dir(&folder)?;
            decrypt(key, &source, &folder, &format!("{prefix}{name}/"), depth - 1)?;
        } else if let Some(name) = name.strip_suffix(ENDING) {
            let path = format!("{prefix}{name}");
            open(key, &path, &source, &to.join(name)).map_err(|error| {
                Error::invalid_argument(format!("cannot decrypt '{path}{ENDING}': {error}"))
            })?;
        } else {
            fs::copy(&source, to.join(&name))?;
        }
    }
    Ok(())
}

fn open(key: &Key, path: &str, from: &Path, to: &Path) -> std::io::Result<()> {
    let mut writer = BufWriter::new(File::create_new(to)?);
    key.open(path, BufReader::new(File::open(from)?), &mut writer)?;
    writer.flush()
}
