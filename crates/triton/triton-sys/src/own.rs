//! Nereid's extensions of Triton's interface: the options of its command line, its ports, and the command itself.

use std::ffi::{c_char, c_int};

use crate::handles::*;

declare! {
    // Options of a server, initially the command line's defaults. Names have no dashes; values of repeatable options
    // are added. Ports are opened only if the server listens.
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

    // The addresses on which a server listens: a JSON object, keyed by protocol.
    fn NEREID_ServerAddresses(
        server: *mut TRITONSERVER_Server,
        addresses: *mut *mut TRITONSERVER_Message,
    ) -> *mut TRITONSERVER_Error;

    // Runs the program `nereid` with the arguments of this process, which it owns from then on. Returns the exit
    // status.
    fn NEREID_Command() -> c_int;
}
