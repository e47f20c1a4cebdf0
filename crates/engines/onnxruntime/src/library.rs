//! Opens ONNX Runtime's library: checks its version, and creates its environment.
//!
//! Does not know where to find the library.

use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Arc, OnceLock};

use nereid_backend_api::BackendSettings;
use nereid_dylib::{Binding, InUse, Library, LoadError, open};
use ort::AsPointer as _;
use ort::environment::{Environment, GlobalThreadPoolOptions};
use ort::logging::LogLevel;

use crate::accelerators::CUDA;
use crate::one_line;
use crate::options::number;

/// Switches the thread pool on that all sessions share.
const GLOBAL_POOL: &str = "enable-global-threadpool";
const INTRA_OP_THREADS: &str = "intra_op_thread_count";
const INTER_OP_THREADS: &str = "inter_op_thread_count";

/// The names of the library's settings.
pub const SETTINGS: [&str; 3] = [GLOBAL_POOL, INTRA_OP_THREADS, INTER_OP_THREADS];

/// Why a library cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The dynamic loader rejects it.
    #[error(transparent)]
    Unloadable(#[from] LoadError),
    /// The file is another library.
    #[error("{path} is not ONNX Runtime: it does not export OrtGetApiBase")]
    Foreign {
        /// The library.
        path: PathBuf,
    },
    /// The library lacks functions that are called.
    #[error("{path} is ONNX Runtime {version}, but 1.{} or newer is needed", ort::MINOR_VERSION)]
    TooOld {
        /// The library.
        path: PathBuf,
        /// The library's version.
        version: String,
    },
    /// A setting of the backend is wrong.
    #[error("the backend setting {0}")]
    Setting(String),
    /// The library refuses to work.
    #[error("ONNX Runtime {version} of {path} does not start: {why}")]
    Failed {
        /// The library.
        path: PathBuf,
        /// The library's version.
        version: String,
        /// The version that the library reports.
        why: String,
    },
}

/// The library in use. There is one for the process.
#[derive(Debug)]
pub struct OnnxRuntime {
    version: String,
    providers: Vec<String>,
    has_global_pool: bool,
}

impl OnnxRuntime {
    /// Loads a library and sets up its environment, with `enable-global-threadpool`, `intra_op_thread_count` and
    /// `inter_op_thread_count` of the settings.
    ///
    /// # Errors
    /// Says why this library cannot be used. Another one can be tried afterwards, unless this one failed to start.
    pub fn open(path: &Path, settings: &BackendSettings) -> Result<Arc<Self>, OpenError> {
        // The process may not exit while the library starts, either.
        let _alive = InUse::new();
        let (version, _library) = probe(path)?;
        let failed = |why: &str| OpenError::Failed {
            path: path.to_owned(),
            version: version.clone(),
            why: one_line(why),
        };
        let mut environment = ort::init_from(path)
            .map_err(|error| LoadError::new(path, &error))?
            .with_name("nereid")
            .with_telemetry(false)
            .with_logger(Arc::new(log));
        let pool = global_pool(settings)?;
        let has_global_pool = pool.is_some();
        if let Some((intra, inter)) = pool {
            let options = GlobalThreadPoolOptions::default()
                .with_intra_threads(intra)
                .and_then(|options| options.with_inter_threads(inter))
                .map_err(|error| failed(error.message()))?;
            environment = environment.with_global_thread_pool(options);
        }
        environment.commit();
        let environment = Environment::current().map_err(|error| failed(error.message()))?;
        environment.set_log_level(log_level());
        release_at_exit(environment.clone()).map_err(|error| failed(&error.to_string()))?;
        let providers = providers().map_err(|error| failed(error.message()))?;
        Ok(Arc::new(Self { version, providers, has_global_pool }))
    }

    /// The library's version, such as `1.31.1`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The execution providers it has, by its names for them.
    pub fn providers(&self) -> &[String] {
        &self.providers
    }

    /// Whether the library can run on GPUs.
    pub(crate) fn has_cuda(&self) -> bool {
        self.providers.iter().any(|provider| provider == CUDA)
    }

    /// Whether all sessions share one thread pool.
    pub(crate) fn has_global_pool(&self) -> bool {
        self.has_global_pool
    }

    #[cfg(test)]
    pub(crate) fn imagined(providers: &[&str]) -> Self {
        let providers = providers.iter().map(|&name| name.to_owned()).collect();
        Self { version: "1.99.0".to_owned(), providers, has_global_pool: false }
    }

    #[cfg(test)]
    pub(crate) fn share_threads(&mut self) {
        self.has_global_pool = true;
    }
}

/// The environment, which is never dropped: releasing it twice would end the process.
static ENVIRONMENT: OnceLock<Arc<Environment>> = OnceLock::new();

/// Releases the environment when the process exits.
///
/// The crate `ort` does so from the last destructors of this program, after the library's own. Releases of ONNX Runtime
/// from 1.19 to 1.22 crash there. Functions that are registered here run before the destructors of libraries that were
/// loaded earlier.
fn release_at_exit(environment: Arc<Environment>) -> io::Result<()> {
    if ENVIRONMENT.set(environment).is_err() {
        return Ok(());
    }
    // SAFETY: the function takes and returns nothing, and stays as long as this code is loaded.
    match unsafe { atexit(release_environment) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

extern "C" fn release_environment() {
    if let Some(environment) = ENVIRONMENT.get() {
        // SAFETY: the environment lives, since the static is never dropped, and this runs once; nothing uses it afterwards.
        unsafe { (ort::api().ReleaseEnv)(environment.ptr().cast_mut()) };
    }
}

// SAFETY: the function is the C library's, with this signature.
unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
}

/// Threads within and among operators of the pool that all sessions share, if there is one. 0 leaves it to the library.
fn global_pool(settings: &BackendSettings) -> Result<Option<(usize, usize)>, OpenError> {
    let count = |key: &str| {
        settings.get(key).map_or(Ok(0), |value| {
            number(value).ok_or_else(|| {
                OpenError::Setting(format!("'{key}' is '{value}', but takes a non-negative integer"))
            })
        })
    };
    match count(GLOBAL_POOL)? {
        0 => Ok(None),
        1 => Ok(Some((count(INTRA_OP_THREADS)?, count(INTER_OP_THREADS)?))),
        other => Err(OpenError::Setting(format!("'{GLOBAL_POOL}' is '{other}', but takes 0 or 1"))),
    }
}

/// The first two members of the library's `OrtApiBase`.
#[repr(C)]
struct ApiBase {
    get_api: unsafe extern "C" fn(u32) -> *const (),
    version: unsafe extern "C" fn() -> *const c_char,
}

/// The version of a library that is new enough, and the library, which stays loaded until another holder exists.
fn probe(path: &Path) -> Result<(String, Library), OpenError> {
    // SAFETY: loading runs the library's initialisers. It is the file that the operator names or installed as ONNX
    // Runtime, and trusted as such, as any backend library is.
    let library = unsafe { open(path, Binding::Lazy) }?;
    let foreign = || OpenError::Foreign { path: path.to_owned() };
    // SAFETY: every version of ONNX Runtime declares the symbol as this function, and a library that exports it claims
    // to be one. It takes nothing and returns a static structure, whose first two members never changed.
    let base = unsafe {
        let get = library.get::<unsafe extern "C" fn() -> *const ApiBase>(b"OrtGetApiBase\0");
        get.map_err(|_| foreign())?().as_ref()
    };
    let base = base.ok_or_else(foreign)?;
    // SAFETY: the function takes nothing and returns a static string that ends with a zero byte.
    let version = unsafe {
        let version = (base.version)();
        if version.is_null() { None } else { Some(CStr::from_ptr(version).to_string_lossy().into_owned()) }
    };
    let version = version.ok_or_else(foreign)?;
    let is_new_enough = matches!(major_and_minor(&version), Some((1, minor)) if minor >= ort::MINOR_VERSION);
    // SAFETY: the function takes a version of the API and returns a static structure, or null if it lacks that version.
    let has_api = is_new_enough && unsafe { !(base.get_api)(ort::MINOR_VERSION).is_null() };
    if !has_api {
        return Err(OpenError::TooOld { path: path.to_owned(), version });
    }
    Ok((version, library))
}

fn major_and_minor(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

/// The execution providers of the library in use.
fn providers() -> ort::Result<Vec<String>> {
    let (mut names, mut count): (*mut *mut c_char, c_int) = (ptr::null_mut(), 0);
    let api = ort::api();
    // SAFETY: both pointers are valid to write; the library fills in a list of this many strings that end with a zero
    // byte, which stays until it is released below, once.
    unsafe {
        ort::Error::result_from_status((api.GetAvailableProviders)(&raw mut names, &raw mut count))?;
        let list = (0..usize::try_from(count).unwrap_or(0))
            .map(|index| CStr::from_ptr(*names.add(index)).to_string_lossy().into_owned())
            .collect();
        ort::Error::result_from_status((api.ReleaseAvailableProviders)(names, count))?;
        Ok(list)
    }
}

/// A message of the library, at the matching level of this server's log.
pub(crate) fn log_level() -> LogLevel {
    if tracing::enabled!(tracing::Level::TRACE) {
        LogLevel::Verbose
    } else if tracing::enabled!(tracing::Level::DEBUG) {
        LogLevel::Info
    } else {
        LogLevel::Warning
    }
}

fn log(level: LogLevel, _category: &str, _id: &str, place: &str, message: &str) {
    match level {
        LogLevel::Verbose => tracing::trace!("ONNX Runtime: {message} ({place})"),
        LogLevel::Info => tracing::debug!("ONNX Runtime: {message} ({place})"),
        LogLevel::Warning => tracing::warn!("ONNX Runtime: {message} ({place})"),
        // Failures are reported where they happen; in the library's log they are one more message.
        LogLevel::Error | LogLevel::Fatal => tracing::warn!("ONNX Runtime: error: {message} ({place})"),
    }
}

#[cfg(test)]
mod tests {
    use tempfile::NamedTempFile;

    use super::*;

    #[test]
    fn a_file_that_is_not_a_library_is_refused_with_the_loaders_reason() {
        let file = NamedTempFile::new().unwrap();
        let error = OnnxRuntime::open(file.path(), &BackendSettings::default()).unwrap_err().to_string();
        assert_eq!(error, format!("cannot load {}: file too short", file.path().display()));
        let error = OnnxRuntime::open(Path::new("/no/such.so"), &BackendSettings::default()).unwrap_err();
        assert!(matches!(error, OpenError::Unloadable { .. }), "{error}");
    }

    #[test]
    fn versions_are_read_as_numbers() {
        assert_eq!(major_and_minor("1.31.1"), Some((1, 31)));
        assert_eq!(major_and_minor("1.9.0-dev"), Some((1, 9)));
        assert_eq!([major_and_minor(""), major_and_minor("1"), major_and_minor("a.b")], [None; 3]);
    }

    #[test]
    fn the_global_pool_is_one_only_where_it_is_switched_on() {
        let pool = |settings: &[(&str, &str)]| global_pool(&settings.iter().copied().collect());
        assert_eq!(pool(&[("intra_op_thread_count", "4")]).unwrap(), None);
        assert_eq!(pool(&[(GLOBAL_POOL, "1")]).unwrap(), Some((0, 0)));
        let both = [(GLOBAL_POOL, "1"), ("intra_op_thread_count", "4"), ("inter_op_thread_count", "2")];
        assert_eq!(pool(&both).unwrap(), Some((4, 2)));
        for (wrong, reported) in [("2", "takes 0 or 1"), ("yes", "a non-negative integer")] {
            let error = pool(&[(GLOBAL_POOL, wrong)]).unwrap_err().to_string();
            assert!(error.contains(GLOBAL_POOL) && error.contains(reported), "{error}");
        }
    }
}
