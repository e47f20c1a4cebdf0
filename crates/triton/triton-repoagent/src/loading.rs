//! A model that is about to be loaded.

use std::ffi::{CStr, CString, OsStr, c_char};
use std::fmt;
use std::marker::PhantomData;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::slice;

use triton_sys::*;

use crate::error::{Error, Result, check};

/// A model that is about to be loaded, during [`Agent::load`](crate::Agent::load).
pub struct Loading<'a> {
    agent: *mut TRITONREPOAGENT_Agent,
    model: *mut TRITONREPOAGENT_AgentModel,
    /// Alive during the call.
    _call: PhantomData<&'a ()>,
}

/// The location of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A folder on this machine.
    Folder(PathBuf),
    /// An address in a cloud, such as `s3://bucket/models/m`.
    Remote(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(path) => path.display().fmt(f),
            Self::Remote(address) => f.write_str(address),
        }
    }
}

impl Loading<'_> {
    /// # Safety
    /// Both live as long as `'a`, a call of `TRITONREPOAGENT_ModelAction` with the action `LOAD`.
    pub(crate) unsafe fn new(
        agent: *mut TRITONREPOAGENT_Agent,
        model: *mut TRITONREPOAGENT_AgentModel,
    ) -> Self {
        Self { agent, model, _call: PhantomData }
    }

    /// The model's location: its repository's, or the one that the previous agent set.
    ///
    /// # Errors
    /// The server's error.
    pub fn place(&self) -> Result<Place> {
        let (mut kind, mut location) = (TRITONREPOAGENT_ARTIFACT_FILESYSTEM, ptr::null());
        // SAFETY: agent and model are alive, both results are valid for writes, and the string lives until the location
        // is updated.
        let location = unsafe {
            let error =
                TRITONREPOAGENT_ModelRepositoryLocation(self.agent, self.model, &mut kind, &mut location);
            check(error)?;
            bytes(location)?
        };
        match kind {
            TRITONREPOAGENT_ARTIFACT_FILESYSTEM => Ok(Place::Folder(path(&location))),
            _ => Ok(Place::Remote(String::from_utf8_lossy(&location).into_owned())),
        }
    }

    /// An empty folder for the agent's files, which the server removes when the model is unloaded. Every call for a
    /// model returns the same folder.
    ///
    /// # Errors
    /// The server cannot create the folder.
    pub fn acquire(&mut self) -> Result<PathBuf> {
        let (kind, mut location) = (TRITONREPOAGENT_ARTIFACT_FILESYSTEM, ptr::null());
        // SAFETY: as in `place`; the string lives as long as the folder.
        unsafe {
            let error =
                TRITONREPOAGENT_ModelRepositoryLocationAcquire(self.agent, self.model, kind, &mut location);
            check(error)?;
            bytes(location).map(|location| path(&location))
        }
    }

    /// Redirects the load to another location.
    ///
    /// # Errors
    /// The server's error, or a location whose name contains a zero byte.
    pub fn move_to(&mut self, place: &Place) -> Result<()> {
        let (kind, location) = match place {
            Place::Folder(path) => (TRITONREPOAGENT_ARTIFACT_FILESYSTEM, path.as_os_str().as_bytes()),
            Place::Remote(address) => (TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM, address.as_bytes()),
        };
        let location = CString::new(location)
            .map_err(|_| Error::invalid_argument(format!("'{place}' has a zero in its name")))?;
        // SAFETY: agent and model are alive, and the string is copied.
        unsafe {
            check(TRITONREPOAGENT_ModelRepositoryUpdate(self.agent, self.model, kind, location.as_ptr()))
        }
    }

    /// The agent's parameters in the model's configuration.
    ///
    /// # Errors
    /// The server's error.
    pub fn parameters(&self) -> Result<Vec<(String, String)>> {
        let mut count = 0;
        // SAFETY: agent and model are alive, and the result is valid for writes.
        unsafe { check(TRITONREPOAGENT_ModelParameterCount(self.agent, self.model, &mut count))? };
        let parameter = |index| {
            let (mut name, mut value) = (ptr::null(), ptr::null());
            // SAFETY: as above; the strings live as long as the model.
            unsafe {
                let error =
                    TRITONREPOAGENT_ModelParameter(self.agent, self.model, index, &mut name, &mut value);
                check(error)?;
                Ok((text(&bytes(name)?), text(&bytes(value)?)))
            }
        };
        (0..count).map(parameter).collect()
    }

    /// A parameter's value.
    ///
    /// # Errors
    /// The server's error.
    pub fn parameter(&self, name: &str) -> Result<Option<String>> {
        let parameters = self.parameters()?;
        Ok(parameters.into_iter().find(|(known, _)| known == name).map(|(_, value)| value))
    }

    /// The model's configuration as JSON, as written in its repository.
    ///
    /// # Errors
    /// The server's error.
    pub fn config(&self) -> Result<String> {
        let mut message = ptr::null_mut();
        // SAFETY: agent and model are alive, and the result is valid for writes.
        unsafe { check(TRITONREPOAGENT_ModelConfig(self.agent, self.model, 1, &mut message))? };
        let (mut base, mut size) = (ptr::null(), 0);
        // SAFETY: the message belongs to us; its text lives until it is deleted, and is copied before.
        unsafe {
            let read = check(TRITONSERVER_MessageSerializeToJson(message, &mut base, &mut size)).map(|()| {
                if size == 0 { String::new() } else { text(slice::from_raw_parts(base.cast(), size)) }
            });
            check(TRITONSERVER_MessageDelete(message))?;
            read
        }
    }
}

/// The bytes of a C string.
///
/// # Safety
/// `location` is null or a string that ends with a zero byte.
unsafe fn bytes(location: *const c_char) -> Result<Vec<u8>> {
    if location.is_null() {
        return Err(Error::internal("the server gave no text"));
    }
    // SAFETY: as the caller promises.
    Ok(unsafe { CStr::from_ptr(location) }.to_bytes().to_vec())
}

fn path(bytes: &[u8]) -> PathBuf {
    Path::new(OsStr::from_bytes(bytes)).to_owned()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
