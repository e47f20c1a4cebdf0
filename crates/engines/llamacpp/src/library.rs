//! Opens llama.cpp's library: looks up its functions, checks its release, and loads its processors' code.
//!
//! Does not know where to find the library.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nereid_dylib::{Binding, InUse, LoadError, open};

use crate::api::{Api, LOG_CONTINUES, LOG_ERROR};

/// The releases whose structures `api.rs` declares.
const SUPPORTED: std::ops::RangeInclusive<u32> = 4..=6;

/// Why a library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The dynamic loader rejects it.
    #[error(transparent)]
    Unloadable(#[from] LoadError),
    /// Another library, or one from before llama.cpp had releases with numbers.
    #[error(
        "{path} is not llama.cpp 0.4, 0.5 or 0.6: it does not export {function}; `npm install -g @node-llama-cpp/linux-x64@3.22.1` \
         has llama.cpp 0.5"
    )]
    Foreign {
        /// The library.
        path: PathBuf,
        /// The function.
        function: &'static str,
    },
    /// A release with other structures.
    #[error(
        "{path} is llama.cpp {version}, but this server supports 0.4, 0.5 and 0.6; `npm install -g \
         @node-llama-cpp/linux-x64@3.22.1` has llama.cpp 0.5"
    )]
    Unsupported {
        /// The library.
        path: PathBuf,
        /// The library's release; empty if unknown.
        version: String,
    },
    /// The library has no code for the machine's processor.
    #[error("{path} of llama.cpp {version} found no libggml-cpu-*.so for this processor beside it")]
    NoDevice {
        /// The library.
        path: PathBuf,
        /// The library's release.
        version: String,
    },
}

/// The library in use.
pub struct LlamaCpp {
    pub(crate) api: Api,
    version: String,
}

impl LlamaCpp {
    /// Loads a library, which stays open for the life of the process.
    ///
    /// # Errors
    /// The reason why this library cannot be used.
    pub fn open(path: &Path) -> Result<Arc<Self>, OpenError> {
        let _in_use = InUse::new();
        // SAFETY: loading runs the library's initialisers. It is the file that the operator names or installed as llama.cpp, and
        // trusted as such, as any backend library is.
        let library = unsafe { open(path, Binding::Lazy) }?;
        // SAFETY: a library that exports these names claims to be llama.cpp. It is never closed: its handle is forgotten below.
        let api = unsafe { Api::of(&library) };
        let api = api.map_err(|function| OpenError::Foreign { path: path.to_owned(), function })?;
        mem::forget(library);
        // SAFETY: the function takes nothing, and returns a text that is never freed, or null.
        let version = unsafe { text_at((api.version)()) };
        // SAFETY: both functions take nothing, and return structures that this release has in common with `api.rs`.
        let is_supported = is_supported(&version)
            && unsafe {
                (api.model_default_params)().are_defaults() && (api.context_default_params)().are_defaults()
            };
        if !is_supported {
            return Err(OpenError::Unsupported { path: path.to_owned(), version });
        }
        // SAFETY: the callback has the type that the library expects, and lives as long as the process.
        unsafe { (api.log_set)(Some(log), ptr::null_mut()) };
        // SAFETY: called once per open; further calls do nothing.
        unsafe { (api.backend_init)() };
        load_processors(&api, path);
        // SAFETY: the function takes nothing.
        if unsafe { (api.device_count)() } == 0 {
            return Err(OpenError::NoDevice { path: path.to_owned(), version });
        }
        Ok(Arc::new(Self { api, version }))
    }

    /// The library's release, such as `0.5.0`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Calls the library, and returns the errors logged during the call, on any thread.
    pub(crate) fn with_log<T>(&self, call: impl FnOnce(&Api) -> T) -> (T, String) {
        lock().clear();
        let outcome = call(&self.api);
        let logged = mem::take(&mut *lock());
        (outcome, logged.split_whitespace().collect::<Vec<_>>().join(" "))
    }
}

/// Whether the structures of a release are those that `api.rs` declares. The text may end in `-dev` or more.
fn is_supported(version: &str) -> bool {
    let mut numbers = version.split(|character: char| !character.is_ascii_digit());
    let mut number = || numbers.next().and_then(|number| number.parse::<u32>().ok());
    number() == Some(0) && number().is_some_and(|minor| SUPPORTED.contains(&minor))
}

/// Loads the code for this machine's processors, which builds for several processors keep in the library's folder.
fn load_processors(api: &Api, library: &Path) {
    // SAFETY: the function takes nothing.
    let has_devices = || unsafe { (api.device_count)() } > 0;
    let folder = library.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.and_then(|folder| CString::new(folder.as_os_str().as_encoded_bytes()).ok());
    if has_devices() {
        return;
    }
    match folder {
        // SAFETY: the text lives during the call.
        Some(folder) => unsafe { (api.load_backends_from)(folder.as_ptr()) },
        // SAFETY: the function takes nothing. It searches the folder that the system's package was built for.
        None => unsafe { (api.load_backends)() },
    }
}

/// A text of the library; empty for null.
///
/// # Safety
/// `text` is null, or points to a text that ends in a zero and does not change.
pub(crate) unsafe fn text_at(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: guaranteed by the caller.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// The errors that the library has logged since the last [`LlamaCpp::with_log`].
static ERRORS: Mutex<String> = Mutex::new(String::new());

/// The longest text of errors that is kept.
const MAX_ERRORS: usize = 2000;

fn lock() -> MutexGuard<'static, String> {
    // Nothing panics under this lock.
    ERRORS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Receives the library's log: errors are kept for messages, the rest is for debugging.
///
/// # Safety
/// `text` ends in a zero, and does not change during the call.
unsafe extern "C" fn log(level: c_int, text: *const c_char, _user_data: *mut c_void) {
    // SAFETY: guaranteed by the caller.
    let text = unsafe { text_at(text) };
    if level == LOG_ERROR {
        let mut errors = lock();
        if errors.len() < MAX_ERRORS {
            errors.push_str(&text);
        }
    }
    let line = text.trim();
    if !line.is_empty() && level != LOG_CONTINUES {
        tracing::debug!("llama.cpp: {line}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_with_the_declared_structures_are_supported() {
        for (version, expected) in [
            ("0.4.1", true),
            ("0.5.0", true),
            ("0.6.0-dev", true),
            ("0.6", true),
            ("0.3.9", false),
            ("0.7.0", false),
            ("1.5.0", false),
            ("b9000", false),
            ("", false),
        ] {
            assert_eq!(is_supported(version), expected, "{version}");
        }
    }

    #[test]
    fn another_library_is_refused_with_what_to_install() {
        let error = LlamaCpp::open(Path::new("libc.so.6")).err().unwrap().to_string();
        assert_eq!(
            error,
            "libc.so.6 is not llama.cpp 0.4, 0.5 or 0.6: it does not export llama_version; `npm install -g \
             @node-llama-cpp/linux-x64@3.22.1` has llama.cpp 0.5"
        );
    }
}
