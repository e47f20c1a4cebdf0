//! The command `nereid` of the Python package. Its code is in the package's library, which servers within Python
//! share.

use std::env;
use std::error::Error;
use std::process::ExitCode;

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use triton_sys::signatures::NEREID_Command;

/// The library, from the folder of this program.
const LIBRARY: &str = "../lib/libtritonserver.so";

fn main() -> ExitCode {
    match run() {
        Ok(status) => u8::try_from(status).map_or(ExitCode::FAILURE, ExitCode::from),
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the command to completion.
fn run() -> Result<i32, Box<dyn Error>> {
    let own = env::current_exe()?;
    let path = own.parent().ok_or("the program's folder is unknown")?.join(LIBRARY);
    // SAFETY: the library is the server's own, and its initialisers do nothing notable. Backends find its functions.
    let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL)? };
    // SAFETY: the function has this type in the library of this package.
    let command = *unsafe { library.get::<NEREID_Command>(b"NEREID_Command\0")? };
    // SAFETY: this process runs nothing but the command, and the library stays loaded until it ends.
    let status = unsafe { command() };
    // Other threads may still be running.
    std::mem::forget(library);
    Ok(status)
}
