//! The library's extensions of Triton's interface: all options of the command line, and the server's ports.
//!
//! The program `nereid` does not export them: they are for applications.

use std::ffi::c_char;
use std::sync::Arc;

use serde_json::{Map, Value};
use triton_sys::*;

use crate::boundary::exports;
use crate::embedder::start_log;
use crate::message::Message;
use crate::options::ServerOptions;

exports! {
    fn NEREID_ServerOptionsNew(options: *mut *mut TRITONSERVER_ServerOptions) {
        start_log();
        options.give(Arc::new(ServerOptions::command_line_defaults()))?;
    }

    fn NEREID_ServerOptionsSet(
        options: *mut TRITONSERVER_ServerOptions,
        name: *const c_char,
        value: *const c_char,
    ) {
        let (name, value) = (name.read()?.into_owned(), value.read()?.into_owned());
        options.get()?.add(name, [value]);
    }

    fn NEREID_ServerOptionsSetListen(options: *mut TRITONSERVER_ServerOptions, listen: bool) {
        options.get()?.set_listens(listen);
    }

    fn NEREID_ServerAddresses(
        server: *mut TRITONSERVER_Server,
        addresses: *mut *mut TRITONSERVER_Message,
    ) {
        let found = server.get()?.as_owner()?.addresses();
        let named = |(protocol, address): (&str, String)| (protocol.to_owned(), Value::String(address));
        let found: Map<_, _> = found.into_iter().map(named).collect();
        addresses.give(Message::new(Value::Object(found).to_string()))?;
    }
}

/// The names of these functions.
pub fn names() -> impl Iterator<Item = &'static str> {
    EXPORTS.iter().map(|(name, _)| *name)
}
