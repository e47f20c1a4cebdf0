//! The module that runs within a model's interpreter: a shared library, built with the server and embedded in it.

use std::io::{self, Write};

use flate2::read::GzDecoder;

/// The shared library, compressed by the build script.
const PACKED: &[u8] = include_bytes!(env!("NEREID_PYTHON_MODULE"));

/// Writes the shared library, for every CPython from 3.9 on: it uses the stable ABI only.
pub fn write_library(to: &mut impl Write) -> io::Result<()> {
    io::copy(&mut GzDecoder::new(PACKED), to).map(drop)
}

/// The name under which Python imports it.
pub const NAME: &str = "c_python_backend_utils";

/// The program of the interpreter, as `python3 -I -c BOOTSTRAP LIBRARY [DRIVER]`: it loads the library from its path
/// and calls its `main`, which finds the server on standard input. DRIVER is the name of CUDA's library; without it,
/// GPU memory is not used.
pub const BOOTSTRAP: &str = include_str!("bootstrap.py");
