//! Compresses the files of the pages, so that the program has them compressed and compresses nothing when it runs.

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;

/// The folder of the pages.
const PAGES: &str = "pages";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={PAGES}");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    let root = Path::new(&env::var("CARGO_MANIFEST_DIR")?).join(PAGES);
    let mut list = String::from("[\n");
    for path in files(&root)? {
        let name = path.strip_prefix(&root)?.to_str().ok_or("the name of a page is not UTF-8")?.to_owned();
        let packed = out.join(format!("{}.gz", name.replace('/', "-")));
        let mut encoder = GzEncoder::new(File::create(&packed)?, Compression::best());
        io::copy(&mut File::open(&path)?, &mut encoder)?;
        encoder.finish()?;
        writeln!(list, "    PackedFile {{ name: {name:?}, gzip: include_bytes!({packed:?}) }},")?;
    }
    list.push(']');
    fs::write(out.join("files.rs"), list)?;
    Ok(())
}

/// The files below a folder, in order.
fn files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files(&path)?);
        } else {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}
