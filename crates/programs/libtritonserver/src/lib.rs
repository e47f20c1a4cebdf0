//! `libtritonserver.so`: Nereid for applications that embed a server, with Triton's C interface.
//!
//! `nereid-triton-host` implements the functions, here and in the program `nereid`; the program itself is included for
//! packages that contain both. This library adds the embedder that creates servers: the crate `nereid`. It knows
//! neither C nor options.
//!
//! The process remains the application's: the library opens no port unless requested, handles no signals, and never
//! ends the process. Messages go to the log configured through the interface: by default to standard error, as with
//! Triton's library.

#![deny(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod embedder;
mod hidden;

use std::ffi::c_int;

use nereid_triton_host::embed;

/// Runs when the library is loaded, before any of its functions is called.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    embed(&embedder::Nereid);
}

/// Runs the program `nereid`, for a process that does nothing else. See `nereid.h`.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is that of the C header")]
pub extern "C" fn NEREID_Command() -> c_int {
    nereid_cli::command_status()
}

const _: triton_sys::signatures::NEREID_Command = NEREID_Command;
