//! What Nereid's library offers beside Triton's interface: the options of its command line, its ports, and the command itself.

use std::ffi::{c_char, c_int};

use crate::handles::*;

declare! {
    // Options of a server, which start as the command line's defaults. A name has no dashes; what may be given several times is
    // added. Ports are opened only if the server listens.
    fn NEREID_ServerOptionsNew(options: *mut *mut TRITONSERVER_ServerOptions) -> *mut TRITONSERVER_Error;
    fn NEREID_ServerOptionsSet(
        options: *mut TRITONSERVER_ServerOptions,
        name: *const c_char,
        value: *const c_char,
    ) -> *mut TRITONSERVER_Error;
    fn NEREID_ServerOptionsSetListen(
        options: *mut TRITONSERVER_ServerOptions,
        listen: bool,
    ) -> *mut TRITONSERVER_Error;

    // The addresses that a server listens at: a JSON object, with the names of the protocols.
    fn NEREID_ServerAddresses(
        server: *mut TRITONSERVER_Server,
        addresses: *mut *mut TRITONSERVER_Message,
    ) -> *mut TRITONSERVER_Error;

    // The program `nereid`, with the arguments of this process, which it owns from here on. Returns the exit status.
    fn NEREID_Command() -> c_int;
}
