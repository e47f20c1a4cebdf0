//! Servers that an application creates: their life, and their repositories.
//!
//! Knows the C interface, but not how a server is built: an [`Embedder`](crate::Embedder) builds it.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_uint};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use nereid_backend_api::{Error, Result};
use triton_sys::*;

use crate::boundary::{Out, exports};
use crate::embedder::embedder;
use crate::handle::Handle;
use crate::parameter::Parameter;
use crate::server::ServerObject;

/// The models of a repository to be registered, by their new names.
fn names(mapping: &Out<*const TRITONSERVER_Parameter>, count: u32) -> Result<BTreeMap<String, String>> {
    let mut names = BTreeMap::new();
    for parameter in mapping.elements(count.into())? {
        let parameter = Handle::<Parameter>::of(parameter.cast_mut()).get()?;
        let folder = parameter.name().to_string_lossy().into_owned();
        let no_text = || Error::invalid_arg(format!("the name of the model in '{folder}' is not a string"));
        let name = parameter.as_text().ok_or_else(no_text)?;
        if let Some(other) = names.insert(name.clone(), folder.clone()) {
            return Err(Error::invalid_arg(format!("both '{other}' and '{folder}' are mapped to '{name}'")));
        }
    }
    Ok(names)
}

exports! {
    fn TRITONSERVER_ServerNew(
        server: *mut *mut TRITONSERVER_Server,
        options: *mut TRITONSERVER_ServerOptions,
    ) {
        server.check()?;
        let settings = options.get()?.settings();
        let none = || Error::unsupported("this program runs its own server and cannot create others");
        let embedder = embedder().ok_or_else(none)?;
        server.give(Arc::new(ServerObject::owned(embedder.start(settings)?)))?;
    }

    fn TRITONSERVER_ServerDelete(server: *mut TRITONSERVER_Server) {
        if server.is_null() {
            return Ok(());
        }
        server.get()?.as_owner()?.stop()?;
        server.take()?;
    }

    fn TRITONSERVER_ServerStop(server: *mut TRITONSERVER_Server) {
        if server.is_null() {
            return Ok(());
        }
        server.get()?.as_owner()?.stop()?;
    }

    fn TRITONSERVER_ServerSetExitTimeout(server: *mut TRITONSERVER_Server, timeout: c_uint) {
        if server.is_null() {
            return Ok(());
        }
        server.get()?.as_owner()?.set_exit_timeout(Duration::from_secs(timeout.into()));
    }

    fn TRITONSERVER_ServerRegisterModelRepository(
        server: *mut TRITONSERVER_Server,
        repository_path: *const c_char,
        name_mapping: *mut *const TRITONSERVER_Parameter,
        mapping_count: u32,
    ) {
        let (path, names) = (PathBuf::from(&*repository_path.read()?), names(&name_mapping, mapping_count)?);
        server.get()?.as_owner()?.register(path, names)?;
    }

    fn TRITONSERVER_ServerUnregisterModelRepository(
        server: *mut TRITONSERVER_Server,
        repository_path: *const c_char,
    ) {
        let path = PathBuf::from(&*repository_path.read()?);
        server.get()?.as_owner()?.unregister(path)?;
    }

    fn TRITONSERVER_ServerPollModelRepository(server: *mut TRITONSERVER_Server) {
        server.get()?.as_owner()?.poll()?;
    }
}
