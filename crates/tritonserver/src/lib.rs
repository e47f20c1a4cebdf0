//! `libtritonserver.so`: Nereid for applications that have a server inside, with Triton's C interface.
//!
//! All functions are those of `nereid-triton-host`, which the program `nereid` has too. What this library adds is who makes
//! servers for them: the crate `nereid`. It knows neither C nor options.
//!
//! The process stays the application's: no port is opened, no signal is handled, and nothing ends the process. Messages
//! go where the log functions of the interface say: by default to standard error, as with Triton's library.

mod embedder;

use nereid_triton_host::embed;

/// Runs when the library is loaded, before any of its functions is called.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;

extern "C" fn on_load() {
    nereid::c::start_for_applications();
    embed(&embedder::Nereid);
}
