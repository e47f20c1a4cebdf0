//! `libtritonserver.so`: Nereid for applications that have a server inside, with Triton's C interface.
//!
//! Its functions are those of `nereid-triton-host`, which the program `nereid` has too, and the program itself, for packages
//! that bring both. What this library adds is who makes servers for them: the crate `nereid`. It knows neither C nor options.
//!
//! The process stays the application's: no port is opened unless it says so, no signal is handled, and nothing ends the
//! process. Messages go where the log functions of the interface say: by default to standard error, as with Triton's library.

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

/// The program `nereid`, for a process that is nothing else. See `nereid.h`.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "the name is that of the C header")]
pub extern "C" fn NEREID_Command() -> c_int {
    nereid::c::command()
}

const _: triton_sys::signatures::NEREID_Command = NEREID_Command;
